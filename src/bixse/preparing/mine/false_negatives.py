"""How many mined documents a judge finds relevant: the false negatives that a zero for each would have made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError
from bixse.evaluation.statistics import wilson_interval
from bixse.preparing.mine.mined_pairs import load_mined_pairs
from bixse.preparing.mine.selection import rank_band
from bixse.report.table import format_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import GradedPairs
    from bixse.preparing.mine.mined_pairs import MinedPair

RELEVANT_FROM = 0.5
"""Relevance from which a mined document would have been a false negative."""


@dataclass(frozen=True)
class RelevantShare:
    """A share of graded pairs with its 95 % Wilson interval."""

    relevant: int
    graded: int

    @property
    def value(self) -> float:
        return self.relevant / self.graded

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.relevant, self.graded)

    def to_json(self) -> dict[str, Any]:
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
    by_band: Mapping[str, RelevantShare]
    """Band of the fused rank -> share, from the top down."""
    by_retriever: Mapping[str, RelevantShare]
    """Retriever -> share of the pairs it found; a pair found by several counts for each."""
    mined: int
    """Mined pairs, graded or not."""
    threshold: float

    @property
    def groups(self) -> dict[str, RelevantShare]:
        bands = {f"rank {name}": share for name, share in self.by_band.items()}
        return {"all": self.overall, **bands} | {f"found by {name}": own for name, own in self.by_retriever.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "mined": self.mined,
            "overall": self.overall.to_json(),
            "by_band": {name: share.to_json() for name, share in self.by_band.items()},
            "by_retriever": {name: share.to_json() for name, share in self.by_retriever.items()},
        }

    def __str__(self) -> str:
        rows: list[list[str | int | float]] = [
            [name, one.graded, one.relevant, one.value, *one.interval] for name, one in self.groups.items()
        ]
        return (
            f"{self.overall.graded} of {self.mined} mined pairs have a grade. "
            f"Relevant, at {self.threshold:g} and above: {self.overall}.\n"
            "As zeros, these would have been false negatives; graded, each keeps its relevance.\n\n"
            f"{format_table(rows, ['mined pairs', 'graded', 'relevant', 'share', 'from', 'to'])}"
        )


def report_mined(graded: str | Path, mined: str | Path, threshold: float = RELEVANT_FROM) -> FalseNegatives:
    """`false_negatives` of a file of graded pairs and the output folder of a mining run."""
    return false_negatives(load_graded_pairs(graded), load_mined_pairs(Path(mined)), threshold)


def false_negatives(
    graded: GradedPairs, mined: Sequence[MinedPair], threshold: float = RELEVANT_FROM
) -> FalseNegatives:
    """The share of mined pairs that a judge found relevant (from `threshold` up), by band of rank and by retriever."""
    if not 0 < threshold <= 1:
        raise InputError(
            f"--relevant-from: got {threshold}; expected a relevance above 0, at most 1; fix: 0.5 is a start"
        )
    pairs = zip(graded.query_ids, graded.document_ids, strict=True)
    relevance = dict(zip(pairs, graded.relevance.tolist(), strict=True))
    found: list[bool] = []
    bands: dict[str, list[bool]] = {}
    retrievers: dict[str, list[bool]] = {}
    for pair in sorted(mined, key=lambda pair: pair.rank):
        value = relevance.get((pair.query_id, pair.document_id))
        if value is not None:
            relevant = value >= threshold
            found.append(relevant)
            bands.setdefault(rank_band(pair.rank), []).append(relevant)
            for label in pair.retrievers:
                retrievers.setdefault(label, []).append(relevant)
    if not found:
        raise InputError(
            f"graded pairs: got {len(graded)} pairs, none of them one of the {len(mined)} mined pairs; expected the "
            "same query_id and document_id; fix: give the graded file that was made from these mined pairs"
        )
    return FalseNegatives(
        overall=_share(found),
        by_band={band: _share(values) for band, values in bands.items()},
        by_retriever={label: _share(retrievers[label]) for label in sorted(retrievers)},
        mined=len(mined),
        threshold=threshold,
    )


def _share(relevant: Sequence[bool]) -> RelevantShare:
    return RelevantShare(sum(relevant), len(relevant))
