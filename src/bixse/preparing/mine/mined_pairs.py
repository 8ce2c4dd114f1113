"""Mined pairs on disk: pairs to grade, without relevance, each with where it was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pyarrow as pa

from bixse.data.pairs_files import PAIR_COLUMNS
from bixse.errors import InputError
from bixse.files.rows import read_rows, write_rows
from bixse.files.values import FileColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PairsFormat: TypeAlias = Literal["parquet", "jsonl", "csv"]
FORMATS: tuple[str, ...] = get_args(PairsFormat)


@dataclass(frozen=True, slots=True)
class MinedPair:
    """A pair to grade. Its grade becomes its relevance; that it was mined as a negative counts for nothing."""

    query_id: str
    query: str
    document_id: str
    document: str
    task: str | None
    source: str
    """Retrievers that found it and its rank in each: "bm25:3,demo:17"."""
    rank: int
    """Its rank in the fused ranking, from 1."""

    @property
    def retrievers(self) -> list[str]:
        return [entry.rpartition(":")[0] or entry for entry in self.source.split(",")]


COLUMNS = (*PAIR_COLUMNS, FileColumn("source"), FileColumn("rank", "integer", low=1))


def pairs_path(folder: Path, form: str) -> Path:
    """The file of mined pairs in an output folder."""
    return folder / f"pairs.{form}"


def save_mined_pairs(pairs: Sequence[MinedPair], path: Path) -> None:
    """Write mined pairs as .parquet, .jsonl or .csv; the file appears whole or not at all."""
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
