"""How many mined documents per judge finds relevant: the false negatives that a zero for each would have made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError
from bixse.evaluation.statistics import wilson_interval
from bixse.mining.mined_pairs import load_mined_pairs
from bixse.mining.selection import rank_band
from bixse.report.table import format_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import GradedPairs
    from bixse.mining.mined_pairs import MinedPair

RELEVANT_FROM = 0.5
"""Relevance from which a mined document would have been a false negative."""


@dataclass(frozen=True)
class RelevantShare:
    """A share of graded pairs with its interval.

    Example:
        >>> print(RelevantShare(relevant=10, graded=100))
        10 of 100 (10.0 %, 95 % interval 5.5 to 17.4 %)
    """

    relevant: int
    """Pairs at or above the threshold."""
    graded: int
    """Pairs with a grade, at least 1."""

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.relevant / self.graded

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson_interval(self.relevant, self.graded)

    def to_json(self) -> dict[str, Any]:
        """Counts, share and interval as plain data."""
        low, high = self.interval
        return {"graded": self.graded, "relevant": self.relevant, "share": self.value, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.relevant} of {self.graded} "
            f"({100 * self.value:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
        )


@dataclass(frozen=True)
class FalseNegatives:
    """What a judge made of mined pairs."""

    overall: RelevantShare
    """Of all graded mined pairs."""
    by_band: Mapping[str, RelevantShare] = field(default_factory=dict)
    """Band of the fused rank -> share, from the top down."""
    by_retriever: Mapping[str, RelevantShare] = field(default_factory=dict)
    """Retriever -> share of the pairs it found; a pair found by several counts for each."""
    mined: int = 0
    """Mined pairs, graded or not."""
    threshold: float = RELEVANT_FROM
    """Relevance from which a pair counts as relevant."""

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data."""
        return {
            "threshold": self.threshold,
            "mined": self.mined,
            "overall": self.overall.to_json(),
            "by_band": {name: share.to_json() for name, share in self.by_band.items()},
            "by_retriever": {name: share.to_json() for name, share in self.by_retriever.items()},
        }

    def __str__(self) -> str:
        """The overall share in words, and a table of all."""
        shares = {"all": self.overall}
        shares |= {f"rank {name}": share for name, share in self.by_band.items()}
        shares |= {f"found by {name}": share for name, share in self.by_retriever.items()}
        rows: list[list[str | int | float]] = [
            [name, one.graded, one.relevant, one.value, *one.interval] for name, one in shares.items()
        ]
        return (
            f"{self.overall.graded} of {self.mined} mined pairs have a grade. "
            f"Relevant, at {self.threshold:g} and above: {self.overall}.\n"
            "As zeros, these would have been false negatives; graded, each keeps its relevance.\n\n"
            f"{format_table(rows, ['mined pairs', 'graded', 'relevant', 'share', 'from', 'to'])}"
        )


def report_mined(graded: str | Path, mined: str | Path, threshold: float = RELEVANT_FROM) -> FalseNegatives:
    """What a judge made of the pairs of a mining run, see `false_negatives`.

    Args:
        graded: file of graded pairs.
        mined: output folder of the mining run.
        threshold: relevance from which a pair counts as relevant, above 0, at most 1.

    Raises:
        InputError: a file is missing, a threshold out of range, or no mined pair has a grade.
        InvalidFileError: every error of a file together.
    """
    return false_negatives(load_graded_pairs(graded), load_mined_pairs(Path(mined)), threshold)


def false_negative_share(graded: GradedPairs, threshold: float = RELEVANT_FROM) -> RelevantShare:
    """The share of graded pairs whose relevance is at least `threshold`.

    For mined hard negatives these are the pairs that would be false negatives if each counted as 0.

    Args:
        graded: mined pairs with their relevance.
        threshold: above 0, at most 1.

    Raises:
        InputError: a threshold out of range, or no pair.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> rows = [{"query": "copy", "document": f"page {n}", "relevance": n / 3} for n in range(4)]
        >>> false_negative_share(GradedPairs.from_rows(rows)).value
        0.5
    """
    return _share(graded.relevance.tolist(), threshold)


def false_negatives(
    graded: GradedPairs, mined: Sequence[MinedPair], threshold: float = RELEVANT_FROM
) -> FalseNegatives:
    """The share of mined pairs that a judge found relevant, by band of rank and by retriever.

    Args:
        graded: what the judge made of them; pairs that were not mined do not count.
        mined: the mined pairs.
        threshold: above 0, at most 1.

    Raises:
        InputError: a threshold out of range, or no mined pair has a grade.
    """
    pairs = zip(graded.query_ids, graded.document_ids, strict=True)
    relevance = dict(zip(pairs, graded.relevance.tolist(), strict=True))
    found: list[float] = []
    bands: dict[str, list[float]] = {}
    retrievers: dict[str, list[float]] = {}
    for pair in sorted(mined, key=lambda pair: pair.rank):
        value = relevance.get((pair.query_id, pair.document_id))
        if value is not None:
            found.append(value)
            bands.setdefault(rank_band(pair.rank), []).append(value)
            for label in pair.retrievers:
                retrievers.setdefault(label, []).append(value)
    if not found:
        raise InputError(
            f"graded pairs: got {len(graded)} pairs, none of them one of the {len(mined)} mined pairs; expected the "
            "same query_id and document_id; fix: give the graded file that was made from these mined pairs"
        )
    return FalseNegatives(
        overall=_share(found, threshold),
        by_band={band: _share(values, threshold) for band, values in bands.items()},
        by_retriever={label: _share(retrievers[label], threshold) for label in sorted(retrievers)},
        mined=len(mined),
        threshold=threshold,
    )


def _share(values: Sequence[float], threshold: float) -> RelevantShare:
    if not 0 < threshold <= 1:
        raise InputError(
            f"--relevant-from: got {threshold}; expected a relevance above 0, at most 1; fix: 0.5 is a start"
        )
    if not values:
        raise InputError("graded pairs: got none; expected at least one; fix: grade the mined pairs first")
    return RelevantShare(sum(value >= threshold for value in values), len(values))
