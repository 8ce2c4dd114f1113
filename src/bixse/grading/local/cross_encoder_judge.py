"""A plain reranker as a judge: the score of a cross-encoder through a map that is stated."""

from __future__ import annotations

import hashlib
import json
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bixse.data.io.files import read_text
from bixse.data.sources.score_scale import map_scores, parse_score_map
from bixse.errors import InputError, ModelError, shorten
from bixse.grading.judge import Answer, Usage
from bixse.grading.local.local_model import judge_device, weights_dtype
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from bixse.data.sources.score_scale import ScoreMap
    from bixse.grading.judge import Question

MODE: Final = "score"
SIGMOID = "sigmoid"
_ALIKE = 1e-6
"""Scores that differ less than this, relative to their size, are the same."""
_FEW = 16
"""Texts from which equal scores are no chance."""


class FittedMap(BaseModel):
    """A map from raw scores to relevance that was fitted on pairs with human labels.

    Example:
        >>> FittedMap(kind="isotonic", knots=((-5.0, 0.0), (5.0, 1.0))).apply(np.array([-9.0, 0.0])).tolist()
        [0.0, 0.5]
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["platt", "isotonic"]
    slope: float = Field(default=1.0, gt=0.0)
    """platt: a of sigmoid(a * score + c)."""
    intercept: float = 0.0
    """platt: c."""
    knots: tuple[tuple[float, float], ...] = ()
    """isotonic: (score, relevance), joined by straight lines and level beyond the ends."""

    @model_validator(mode="after")
    def _rising(self) -> FittedMap:
        if self.kind == "isotonic" and len(self.knots) < 2:
            raise ValueError("knots: expected two or more")
        rises = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.knots))
        if not rises or not all(0 <= relevance <= 1 for _, relevance in self.knots):
            raise ValueError("knots: expected rising scores with relevance in [0, 1] that never falls")
        return self

    def apply(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Relevance of raw scores."""
        if self.kind == "platt":
            return map_scores(scores, parse_score_map(f"platt:{self.slope!r},{self.intercept!r}"))
        found, relevance = (np.array(column) for column in zip(*self.knots, strict=True))
        return np.asarray(np.interp(scores, found, relevance))

    @classmethod
    def load(cls, path: Path) -> FittedMap:
        """Read a map from JSON; raises InputError where the file holds none."""
        try:
            return cls.model_validate(json.loads(read_text(path)))
        except (ValidationError, ValueError, RecursionError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
            place = ".".join(map(str, first["loc"])) or "file"
            raise InputError(
                f"{path}: {place}: got {shorten(first['msg'])}; expected a map of raw scores; fix: write "
                '{"kind": "platt", "slope": 1.0, "intercept": 0.0} or {"kind": "isotonic", "knots": [[-5, 0], [5, 1]]}'
            ) from error


class CrossEncoderJudge:
    """Grades by the raw score of a sentence-transformers CrossEncoder, mapped to relevance once (mode "score").

    The activation that a model brings along is set aside, since it differs between models and a second sigmoid on top
    of it squeezes all relevance into 0.5 to 0.73 without a word. The rubric is not read; grades are relevance, 0 to 1.
    A pair that is longer than the model reads is answered "too-long", never cut.

    Args:
        model: folder or hub name.
        activation: map from raw score to relevance: "sigmoid"; "prob" for a model whose raw scores lie in [0, 1];
            "platt:SLOPE,INTERCEPT"; or a JSON file with a `FittedMap`.
        device: "cpu", "cuda", ...; None: the best there is.
        batch_size: pairs of one forward pass.
        window: questions taken ahead.
        revision: branch, tag or commit of a hub name.
        trust_remote_code: run code that comes with the model; only for sources you trust.
        dtype: number type of the weights, see `LocalJudge`.

    Raises:
        ModelError: no such model, or one without a trained head.
        InputError: a model with several scores per pair, one that gives all pairs the same, or no such map.

    Example:
        Grade pairs with a reranker::

            answers = CrossEncoderJudge("cross-encoder/ms-marco-MiniLM-L6-v2").answers(questions)
    """

    def __init__(
        self,
        model: str | Path,
        activation: str | Path | None = SIGMOID,
        device: str | None = None,
        batch_size: int = 32,
        window: int = 512,
        revision: str | None = None,
        trust_remote_code: bool = False,
        dtype: str = "auto",
    ) -> None:
        for setting, value in (("batch_size", batch_size), ("window", window)):
            if value < 1:
                raise InputError(f"{setting}: got {value}; expected 1 or more; fix: leave it out")
        self._map = _read_map(SIGMOID if activation is None else activation)
        place = judge_device(device)
        number = weights_dtype(dtype, place)
        self._encoder = _load(str(model), place, number, revision, trust_remote_code)
        self._tokenizer = self._encoder.tokenizer
        self._longest = _longest_input(self._encoder)
        self.batch_size, self.window = batch_size, window
        local = Path(model).is_dir()
        self.name = Path(model).name if local else str(model)
        self.scale = GradeScale(0.0, 1.0)
        commit = getattr(self._encoder.config, "_commit_hash", None) or revision or "main"
        self.identity: Mapping[str, Any] = {
            "kind": "cross-encoder",
            "model": self.name,
            "revision": _content(Path(model)) if local else str(commit),
            "mode": MODE,
            "dtype": str(number).removeprefix("torch."),
            "map": self._map.model_dump(mode="json") if isinstance(self._map, FittedMap) else str(self._map),
        }
        self.at_once = 1
        self.warnings: list[str] = []
        """What the user should know about the scores; grows while questions are answered."""
        self._check_contrast(str(model))

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions, window by window."""
        source = iter(questions)
        while taken := list(islice(source, self.window)):
            started = time.perf_counter()
            lengths = self.count_tokens(taken)
            fits = [self._longest is None or length <= self._longest for length in lengths]
            scores = self._scores([(q.query, q.document) for q, fit in zip(taken, fits, strict=True) if fit])
            self._check_window(scores, [q.document for q, fit in zip(taken, fits, strict=True) if fit])
            seconds = (time.perf_counter() - started) / len(taken)
            left = iter(scores.tolist())
            for question, length, fit in zip(taken, lengths, fits, strict=True):
                yield question, self._answer(next(left) if fit else None, length, seconds)

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        """Tokens of each pair."""
        if not questions:
            return []
        pairs = ([q.query for q in questions], [q.document for q in questions])
        return [len(ids) for ids in self._tokenizer(*pairs, truncation=False, verbose=False)["input_ids"]]

    def close(self) -> None:
        """Free the weights."""
        self._encoder = None

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Raw scores (N,): whatever activation the model brings along is replaced by none."""
        from torch import nn

        if not pairs:
            return np.zeros(0)
        found = self._encoder.predict(
            list(pairs), batch_size=self.batch_size, show_progress_bar=False, activation_fn=nn.Identity()
        )
        return np.asarray(found, dtype=np.float64)

    def _answer(self, score: float | None, length: int, seconds: float) -> Answer:
        common: dict[str, Any] = {"usage": Usage(prompt=length), "seconds": seconds, "judge": self.name}
        if score is None:
            detail = f"a pair of {length} tokens: the model reads {self._longest}"
            return Answer("too-long", MODE, detail=detail, **common)
        if not np.isfinite(score):
            return Answer("failed", MODE, detail=f"the model gave the score {score}", **common)
        if not isinstance(self._map, FittedMap) and not self._map.range[0] <= score <= self._map.range[1]:
            detail = f"score {score:.4g}: outside the range of the map {self._map}"
            return Answer("off-scale", MODE, text=f"{score:.6g}", detail=detail, **common)
        z = float(_mapped(self._map, np.array([score]))[0])
        return Answer("graded", MODE, (1.0 - z, z), z, z, z, text=f"{score:.6g}", **common)

    def _check_contrast(self, model: str) -> None:
        """Refuse a model whose score does not depend on the pair."""
        scores = self._scores(
            [("copy a file", "shutil.copy copies a file."), ("copy a file", "Rain falls."), ("a", "b")]
        )
        if scores.ndim != 1:
            raise InputError(
                f"cross-encoder {model!r}: got {scores.shape[-1]} scores per pair; expected one; "
                "fix: choose a reranker (one label), not a classifier"
            )
        if _all_alike(scores):
            raise InputError(
                f"cross-encoder {model!r}: got the score {scores[0]:.6g} for three different pairs; expected scores "
                "that differ; fix: choose another model, this one is not trained or not loaded whole"
            )

    def _check_window(self, scores: NDArray[np.float64], documents: Sequence[str]) -> None:
        """Refuse scores that carry no grades; warn of those that look like probabilities already."""
        if len(set(documents)) < _FEW:
            return
        mapped_as_logits = not isinstance(self._map, FittedMap) and self._map.kind == "logit"
        if mapped_as_logits and not self.warnings and scores.min() >= 0 and scores.max() <= 1:
            self.warnings.append(
                f"cross-encoder {self.name!r}: all raw scores lie in [0, 1] and pass a sigmoid; where they are "
                "probabilities already, use the map 'prob'"
            )
        if _all_alike(scores):
            raise InputError(
                f"cross-encoder {self.name!r}: got the score {scores[0]:.6g} for all of {len(scores)} pairs; expected "
                "scores that differ; fix: choose another model, or look at the texts"
            )


def _load(name: str, device: torch.device, dtype: torch.dtype, revision: str | None, trust_remote_code: bool) -> Any:
    """The CrossEncoder; raises ModelError for a model without a trained head and InputError for several labels."""
    from sentence_transformers import CrossEncoder

    from bixse.encoders.loading.build import quiet_loading

    try:
        with quiet_loading():
            encoder = CrossEncoder(
                name,
                device=str(device),
                revision=revision,
                trust_remote_code=trust_remote_code,
                model_kwargs={"dtype": dtype},
            )
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise ModelError(
            f"cross-encoder {name!r}: got {type(error).__name__}: {reason}; expected a CrossEncoder of "
            "sentence-transformers; fix: check the name, and that a hub name can be reached"
        ) from error
    kinds = encoder.config.architectures or []
    trained = any(kind.endswith(("ForSequenceClassification", "ForCausalLM")) for kind in kinds)
    if len(encoder) == 1 and not trained:  # a head among further modules is stored with them
        raise ModelError(
            f"cross-encoder {name!r}: got the architecture {', '.join(kinds) or 'none'}; expected one with a trained "
            "head for pairs (...ForSequenceClassification); fix: choose a reranker, an encoder has no such head"
        )
    if encoder.num_labels != 1:
        raise InputError(
            f"cross-encoder {name!r}: got {encoder.num_labels} scores per pair; expected one; "
            "fix: choose a reranker (one label), not a classifier"
        )
    return encoder


def _longest_input(encoder: Any) -> int | None:
    """Most tokens of a pair that are read, or None where nothing is cut."""
    positions = getattr(encoder.config.get_text_config(), "max_position_embeddings", None)
    limits = (getattr(encoder, "max_length", None), positions)
    return min((int(limit) for limit in limits if limit and 0 < limit < 10**9), default=None)


def _content(folder: Path) -> str:
    """SHA-256 over the contents of a model's files."""
    from bixse.encoders.identity import model_hashes

    return hashlib.sha256(json.dumps(model_hashes(folder), sort_keys=True).encode("utf-8")).hexdigest()


def _read_map(activation: str | Path) -> FittedMap | ScoreMap:
    """The map that a word or a JSON file stands for."""
    if str(activation).endswith(".json"):
        return FittedMap.load(Path(activation))
    found = parse_score_map("logit" if activation == SIGMOID else str(activation))
    if found.kind == "binary":
        raise InputError(
            "activation: got 'binary'; expected a map of scores; fix: use sigmoid, prob, platt:SLOPE,INTERCEPT or "
            "a JSON file"
        )
    return found


def _mapped(score_map: FittedMap | ScoreMap, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return score_map.apply(scores) if isinstance(score_map, FittedMap) else map_scores(scores, score_map)


def _all_alike(scores: NDArray[np.float64]) -> bool:
    return bool(np.ptp(scores) <= _ALIKE * max(1e-6, float(np.abs(scores).max())))
