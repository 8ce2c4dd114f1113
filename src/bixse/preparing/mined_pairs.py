"""Mined pairs: pairs to grade, without relevance, with the retrievers that found each; and the share of relevant ones.

A mined document that a judge finds relevant would have been a false negative if it had been taken as a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bixse.data.pairs_files import PAIR_COLUMNS, load_graded_pairs
from bixse.errors import InputError
from bixse.evaluation.statistics import wilson_interval
from bixse.files.rows import read_rows, write_rows
from bixse.files.values import FileColumn
from bixse.preparing.candidates import rank_band
from bixse.report.table import format_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import GradedPairs

FORMATS = ("parquet", "jsonl", "csv")
COLUMNS = (*PAIR_COLUMNS, FileColumn("source"), FileColumn("rank", "integer", low=1))
RELEVANT_FROM = 0.5
"""Lowest relevance at which a mined document counts as a false negative."""


@dataclass(frozen=True, slots=True)
class MinedPair:
    """A pair to grade. Its grade becomes its relevance; the fact that it was mined as a negative counts for nothing."""

    query_id: str
    query: str
    document_id: str
    document: str
    task: str | None
    source: str
    """Retrievers that found the pair, and its rank in each: "bm25:3,demo:17"."""
    rank: int

    @property
    def retrievers(self) -> list[str]:
        return [entry.rpartition(":")[0] or entry for entry in self.source.split(",")]


def pairs_path(folder: Path, form: str) -> Path:
    """Return the file of mined pairs in an output folder."""
    return folder / f"pairs.{form}"


def save_mined_pairs(pairs: Sequence[MinedPair], path: Path) -> None:
    """Write mined pairs as .parquet, .jsonl or .csv; the file appears complete or not at all."""
    columns = {column.name: [getattr(pair, column.name) for pair in pairs] for column in COLUMNS}
    types = {name: pa.int32() if name == "rank" else pa.string() for name in columns}
    write_rows(pa.table(columns, schema=pa.schema(types)), path)


def load_mined_pairs(folder: Path) -> list[MinedPair]:
    """Read the mined pairs of an output folder of `bixse mine`."""
    path = next((path for form in FORMATS if (path := pairs_path(folder, form)).is_file()), None)
    if path is None:
        raise InputError(
            f"{folder}: got no pairs.parquet, pairs.jsonl or pairs.csv; expected the output folder of `bixse mine`; "
            "fix: name the --out folder of the mining run"
        )
    return [MinedPair(**row) for _, row in read_rows(path, COLUMNS)]


@dataclass(frozen=True)
class RelevantShare:
    """The relevant share of graded pairs, with its 95 % Wilson interval."""

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
    """The shares of mined pairs that a judge found relevant."""

    overall: RelevantShare
    by_band: Mapping[str, RelevantShare]
    """Band of the fused rank -> share, from the top down."""
    by_retriever: Mapping[str, RelevantShare]
    """Retriever -> share of the pairs it found; a pair found by several retrievers counts for each."""
    mined: int
    """Number of mined pairs, graded or not."""
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
    """Compare a file of graded pairs with the output folder of a mining run, see `false_negatives`."""
    return false_negatives(load_graded_pairs(graded), load_mined_pairs(Path(mined)), threshold)


def false_negatives(
    graded: GradedPairs, mined: Sequence[MinedPair], threshold: float = RELEVANT_FROM
) -> FalseNegatives:
    """Measure the share of mined pairs with at least `threshold` relevance, per band of rank and per retriever."""
    if not 0 < threshold <= 1:
        raise InputError(
            f"--relevant-from: got {threshold}; expected a relevance above 0, at most 1; fix: 0.5 is a start"
        )
    pairs = zip(graded.query_ids, graded.document_ids, strict=True)
    relevance = dict(zip(pairs, graded.relevance.tolist(), strict=True))
    known = [pair for pair in mined if (pair.query_id, pair.document_id) in relevance]
    if not known:
        raise InputError(
            f"graded pairs: got {len(graded)} pairs, none of them one of the {len(mined)} mined pairs; expected the "
            "same query_id and document_id; fix: give the graded file that was made from these mined pairs"
        )

    def share(chosen: list[MinedPair]) -> RelevantShare:
        found = [relevance[pair.query_id, pair.document_id] >= threshold for pair in chosen]
        return RelevantShare(sum(found), len(found))

    bands: dict[str, list[MinedPair]] = {}
    for pair in sorted(known, key=lambda pair: pair.rank):
        bands.setdefault(rank_band(pair.rank), []).append(pair)
    retrievers = sorted({label for pair in known for label in pair.retrievers})
    return FalseNegatives(
        overall=share(known),
        by_band={band: share(chosen) for band, chosen in bands.items()},
        by_retriever={label: share([pair for pair in known if label in pair.retrievers]) for label in retrievers},
        mined=len(mined),
        threshold=threshold,
    )
