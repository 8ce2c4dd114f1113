"""Mined pairs: pairs to grade, without relevance, each with the retrievers that ranked it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bixse.data.graded_pairs import Pair
from bixse.files.rows import write_rows

MINED_FILE = "pairs.parquet"
SCHEMA = pa.schema(
    {name: pa.string() for name in ("query_id", "query", "document_id", "document", "task", "source")}
    | {"rank": pa.int32()}
)


@dataclass(frozen=True)
class MinedPair(Pair):
    """A pair to grade. Its grade becomes its relevance; the fact that it was mined as a negative counts for nothing."""

    source: str = ""
    """Retrievers that found the pair, and its rank in each: "bm25:3,demo:17"."""
    rank: int = 1

    @property
    def retrievers(self) -> list[str]:
        return [entry.rpartition(":")[0] or entry for entry in self.source.split(",")]


def save_mined_pairs(pairs: Sequence[MinedPair], path: Path) -> None:
    """Write mined pairs; the file appears complete or not at all."""
    columns = {name: [getattr(pair, name) for pair in pairs] for name in SCHEMA.names}
    write_rows(pa.table(columns, schema=SCHEMA), path)
