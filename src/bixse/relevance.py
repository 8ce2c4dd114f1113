"""Grades and rankings: the affine map from a grade scale to relevance in [0, 1], and the order of scores."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bixse.errors import InputError, shorten

Qrels: TypeAlias = Mapping[str, Mapping[str, float]]
Ranking: TypeAlias = Mapping[str, Mapping[str, float]]
Kind: TypeAlias = Literal["query", "document"]
"""The kind of a text. A model may have one prompt and, behind a router, one encoder per kind."""

DEPTH = 100
"""Default number of documents retrieved per query."""
MIN_RELEVANT_GRADE = 1.0
"""Default of the lowest relevant grade of the binary metrics."""
ROUNDING = 1e-9  # a mean of grades may pass the end of its scale


@dataclass(frozen=True)
class GradeScale:
    """An ordinal grade scale, maximum above minimum, and its affine map to relevance z in [0, 1].

    z = (grade - minimum) / (maximum - minimum): 0 is irrelevant, 1 perfectly relevant (BiXSE paper, section 3).

    Example:
        >>> GradeScale(0, 3).to_relevance(2.25)
        0.75
        >>> GradeScale(1, 5).to_grade(0.5)
        3.0
    """

    minimum: float = 0.0
    maximum: float = 3.0

    def __post_init__(self) -> None:
        if not self.maximum > self.minimum:
            raise InputError(
                f"grade scale: got {self.minimum} to {self.maximum}; expected the maximum above the minimum; "
                "fix: give the lowest grade first"
            )

    def check(self, where: object, grades: Iterable[tuple[float, object]]) -> None:
        """Refuse, by an InputError, grades of a file that are off its stated scale: a whole level would be left out.

        Each grade has its row, or its pair. Grades below 0 pass if the scale begins at 0 or higher: TREC marks junk so.
        """
        low, high = self.minimum - ROUNDING, self.maximum + ROUNDING
        off = [each for each in grades if not (low <= each[0] <= high or each[0] < 0 <= self.minimum)]
        if off:
            values, (row, *_) = zip(*off, strict=True)
            got = f"the highest grade {max(values):g}" if max(values) > high else f"the lowest grade {min(values):g}"
            got += f" ({len(off):,} off the scale, the first in {'row' if isinstance(row, int) else 'pair'} {row})"
            raise InputError(
                f"{where}: got {got}; expected {self.minimum:g} to {self.maximum:g}, as the scale says; fix: "
                "give the lowest and the highest grade of the file as the scale, or correct these grades"
            )

    def to_relevance(self, grade: float) -> float:
        """Return z in [0, 1]; raises InputError for a grade outside the scale."""
        if not self.minimum <= grade <= self.maximum:
            raise InputError(
                f"grade: got {grade}; expected {self.minimum} to {self.maximum}; fix: state the scale of your grades"
            )
        return (grade - self.minimum) / (self.maximum - self.minimum)

    def to_grade(self, relevance: float) -> float:
        """Return the grade, which may be fractional; raises InputError for a relevance outside [0, 1]."""
        if not 0.0 <= relevance <= 1.0:
            raise InputError(f"relevance: got {relevance}; expected 0 to 1; fix: map grades with to_relevance first")
        return self.minimum + relevance * (self.maximum - self.minimum)


def best_first(
    scores: Sequence[float], documents: Sequence[str], top_k: int | None = None, return_documents: bool = False
) -> list[dict[str, Any]]:
    """Return documents as `CrossEncoder.rank` does, the best first: position, score and, if wanted, text.

    Example:
        >>> best_first([0.2, 0.9], ["os.remove", "shutil.copy"], top_k=1)
        [{'corpus_id': 1, 'score': 0.9}]
    """
    order = sorted(range(len(documents)), key=lambda position: -scores[position])[:top_k]
    texts = [{"text": documents[position]} if return_documents else {} for position in order]
    return [{"corpus_id": n, "score": float(scores[n]), **text} for n, text in zip(order, texts, strict=True)]


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Return document ids as trec_eval ranks them: score descending in float32, ties by document id descending.

    trec_eval stores scores as C floats and ignores the order and the ranks of a run (`form_res_rels.c`), so two scores
    that differ only beyond float32 are a tie.
    """
    with np.errstate(over="ignore"):  # a score beyond float32 is infinite, as a C float is
        values = numbers(scores, "score", infinite=True).astype(np.float32)
    return [document_id for _, document_id in sorted(zip(values.tolist(), scores, strict=True), reverse=True)]


def numbers(entries: Mapping[str, Any], what: str, infinite: bool = False) -> NDArray[np.float64]:
    """Return the values of documents as an array; raise InputError for NaN, text, and infinity unless `infinite`."""
    if all(issubclass(kind, Real) for kind in {*map(type, entries.values())}):
        values = np.fromiter(entries.values(), dtype=np.float64, count=len(entries))
        if not (np.isnan(values) if infinite else ~np.isfinite(values)).any():
            return values
    valid = (lambda value: not math.isnan(value)) if infinite else math.isfinite
    wrong = next(name for name, value in entries.items() if not isinstance(value, Real) or not valid(value))
    raise InputError(
        f"{what} of document {wrong!r}: got {shorten(entries[wrong])}; expected a {'' if infinite else 'finite '}"
        "number; fix: drop it, or make it a number with float()"
    )


def normal_form(text: str) -> str:
    r"""Return the text for comparisons: NFKC, case folded, white space as one space."""
    # NFKC leaves ASCII as it is, and lower() is then equal to casefold() and faster
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())
