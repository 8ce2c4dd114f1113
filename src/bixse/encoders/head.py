"""The relevance head, which maps a cosine to a probability of relevance, and its thresholds."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from bixse.errors import InputError, ModelError, first_fault
from bixse.files.files import file_hash, storage_errors, write_with_hash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD_FILE = "relevance_head.json"
EXPORT_FOLDER = "export"
"""Folder in a model folder with the head as code for stores, written by `bixse calibrate`."""
_WEIGHTS = ("*.safetensors", "*[0-9]_[A-Z]*/**/*.safetensors")
"""Weights of a model and of its modules, such as 2_Dense; not those of checkpoints and copies inside the folder."""
Cosines = TypeVar("Cosines", float, "NDArray[np.float64]")
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""Ranges are checked when a file is read, not for a head made in Python."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Threshold:
    """The probability from which documents reach the requested precision on held-out queries, with the most recall."""

    precision: Share
    """Requested precision."""
    probability: Share
    reached: float
    """Precision of the held-out documents at or above `probability`."""
    low: float
    """Lower end of the 95 % interval of `reached`, over queries."""
    high: float
    recall: float
    """Share of all relevant documents that are at or above `probability`."""
    pairs: int
    queries: int
    positive_from: float
    """Lowest relevance that counts as relevant."""


@dataclass(frozen=True)
class RelevanceHead:
    """The map p = sigma(slope * (logit_scale * cosine + logit_bias) + intercept).

    Scale and bias come from training (BiXSE paper, section 3). Slope and intercept come from calibration on held-out
    pairs (Platt 1999) and are 1 and 0 before it.

    Example:
        >>> head = RelevanceHead(logit_scale=20.0, logit_bias=-10.0)
        >>> head.probability(0.5), round(head.probability(0.6), 3)
        (0.5, 0.881)
    """

    logit_scale: Annotated[Finite, Field(gt=0)]
    """alpha, above 0."""
    logit_bias: Finite
    """beta."""
    slope: Annotated[Finite, Field(ge=0)] = 1.0
    intercept: Finite = 0.0
    calibrated_on: str | None = None
    """Description of the calibration data; None if not calibrated."""
    trained_prior: Share | None = None
    """Mean target of the pairs that scale and bias were trained on, between 0 and 1; None if unknown."""
    prior: Share | None = None
    """Mean relevance of the pairs that the probabilities are for, between 0 and 1; None if unknown."""
    thresholds: tuple[Threshold, ...] = ()
    scored_by: str | None = None
    """The model whose scores the head is for, in words; None: the model in whose folder it is."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Number of dimensions that embeddings are cut to before the cosine; None: they are not cut."""

    def logit(self, cosine: Cosines) -> Cosines:
        return self.slope * (self.logit_scale * cosine + self.logit_bias) + self.intercept

    def probability(self, cosine: Cosines) -> Cosines:
        """Return the probability of relevance in [0, 1] of a cosine or an array of cosines."""
        if isinstance(cosine, float):  # tanh: a sigmoid by exp overflows
            return 0.5 * (1.0 + math.tanh(0.5 * self.logit(cosine)))
        import numpy as np

        return 0.5 * (1.0 + np.tanh(0.5 * self.logit(cosine)))

    def cosine_at(self, probability: float) -> float:
        """Return the cosine of a probability between 0 and 1: the inverse of `probability`."""
        if self.slope == 0:
            raise InputError(
                "relevance head: got slope 0, where every cosine has the same probability; expected above 0; fix: "
                "calibrate on pairs whose cosines rise with relevance"
            )
        return ((log_odds(probability) - self.intercept) / self.slope - self.logit_bias) / self.logit_scale

    def as_trained(self) -> RelevanceHead:
        return replace(self, slope=1.0, intercept=0.0, calibrated_on=None, prior=self.trained_prior, thresholds=())

    def at_prior(self, prior: float) -> RelevanceHead:
        """Return the head for pairs of mean relevance `prior`, between 0 and 1; drop the thresholds, now invalid.

        By Bayes' rule the log-odds of every pair move by log odds(new prior) - log odds(old prior) (Saerens, Latinne
        and Decaestecker 2002, doi:10.1162/089976602753284446). It is exact if only the numbers of relevant and
        irrelevant documents change, not their scores.
        """
        shift = log_odds(prior, "prior")
        if self.prior is None:
            raise InputError(
                "prior: got a head without the mean relevance of its training pairs; expected a head with a prior; "
                "fix: run `bixse calibrate` on the model"
            )
        intercept = self.intercept + shift - log_odds(self.prior, "the head's own prior")
        return replace(self, intercept=intercept, prior=prior, thresholds=())

    def threshold_for(self, precision: float) -> float:
        """Return the probability from which documents reach a precision."""
        for threshold in self.thresholds:
            if abs(threshold.precision - precision) < 1e-9:
                return threshold.probability
        known = ", ".join(f"{threshold.precision:g}" for threshold in self.thresholds) or "none"
        raise InputError(
            f"precision: got {precision:g}; expected a precision with a threshold in the model ({known}); fix: "
            f"`bixse calibrate MODEL --collection DIR --at-precision {precision:g}`"
        )

    def save(self, folder: Path) -> None:
        """Write the head into a model folder, next to heads of other dimensions; raises StorageError."""
        save_heads({**load_heads(folder), self.dimensions: self}, folder)

    @classmethod
    def of_scores(cls, folder: Path, scored_by: str) -> RelevanceHead:
        """Return the head that `bixse calibrate --scores` wrote; raises InputError if it is of another model's scores.

        Example:
            ::

                head = RelevanceHead.of_scores(Path("runs/cutoff"), "all-MiniLM-L6-v2, 384 dimensions")
                probabilities = head.probability(np.array(scores))
        """
        head = cls.load(folder)
        if head is None or head.scored_by != scored_by:
            made = "no relevance head" if head is None else f"a head for scores by {head.scored_by!r}"
            raise InputError(
                f"{folder}: got {made}; expected one for scores by {scored_by!r}; fix: run `bixse calibrate --scores "
                f"FILE --scored-by {scored_by!r}`"
            )
        return head

    @classmethod
    def load(cls, folder: Path) -> RelevanceHead | None:
        """Return the head of whole embeddings, or None without one; raises ModelError for a damaged file."""
        return load_heads(folder).get(None)


@dataclass(frozen=True)
class _HeadFile(RelevanceHead):
    """The first head of a model; the fields of the file of a model with one head are those of the head."""

    cut: tuple[RelevanceHead, ...] = ()
    """The heads of shorter embeddings."""
    weights: dict[str, str] = field(default_factory=dict)
    """File of weights -> SHA-256 when the heads were saved; {} in files of earlier versions."""


def at_lengths(head: RelevanceHead | None, dimensions: Iterable[int]) -> dict[int | None, RelevanceHead]:
    """Return dimensions -> the same head, for whole embeddings (None) and those cut to `dimensions`; {} without one."""
    return {} if head is None else {cut: replace(head, dimensions=cut) for cut in (None, *dimensions)}


def load_heads(folder: Path) -> dict[int | None, RelevanceHead]:
    """Return dimensions -> head of a model folder; raises ModelError for a damaged file.

    Heads of other weights than lie in the folder are left out, with a warning.
    """
    path = folder / HEAD_FILE
    if not path.is_file():
        return {}
    try:
        file = TypeAdapter(_HeadFile).validate_json(path.read_bytes(), strict=True)  # no numbers from texts or booleans
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: got no readable relevance head ({first_fault(error)}); expected a finite logit_scale "
            "above 0, logit_bias, slope and intercept, and priors and thresholds between 0 and 1; fix: delete the "
            "file and run `bixse calibrate` on the model"
        ) from error
    # a file that is missing was not downloaded, or is now in parts, which have other names
    there = _weights(folder) if file.weights else []
    if changed := [name for name in there if file.weights.get(name) != _hash(folder / name)]:
        log.warning(
            "%s: left out, since it was made for other weights than %s; run `bixse calibrate` on the model",
            path, ", ".join(changed[:3]),
        )  # fmt: skip
        return {}
    first = RelevanceHead(**{each.name: getattr(file, each.name) for each in fields(RelevanceHead)})
    return {head.dimensions: head for head in (first, *file.cut)}


def save_heads(heads: Mapping[int | None, RelevanceHead], folder: Path, *, before_weights: bool = False) -> None:
    """Write the heads of the weights in a folder, that of the whole embedding first, and their hash if it has hashes.

    With `before_weights` the heads are those of weights that are written later, and belong to any weights.
    """
    if not heads:  # those of an earlier model
        with storage_errors(folder):
            (folder / HEAD_FILE).unlink(missing_ok=True)
        return
    first, *rest = sorted(heads.values(), key=lambda head: -(head.dimensions or math.inf))
    content = asdict(first) | ({"cut": [asdict(head) for head in rest]} if rest else {})
    content["weights"] = {} if before_weights else {name: file_hash(folder / name) for name in _weights(folder)}
    write_with_hash(folder / HEAD_FILE, json.dumps(content, indent=2) + "\n")


def _weights(folder: Path) -> list[str]:
    return sorted({path.relative_to(folder).as_posix() for pattern in _WEIGHTS for path in folder.glob(pattern)})


def _hash(path: Path) -> str:
    facts = path.stat()
    return _hash_of(path, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(256)  # seconds for a large decoder, whose heads are read several times
def _hash_of(path: Path, changed: int, size: int) -> str:
    return file_hash(path)


def log_odds(probability: float, name: str = "probability") -> float:
    """Return log(p / (1 - p)); raises InputError unless 0 < p < 1."""
    if not 0 < probability < 1:
        raise InputError(
            f"{name}: got {probability}; expected a number between 0 and 1; fix: 0.01 if one pair in a hundred "
            "is relevant"
        )
    return math.log(probability / (1 - probability))
