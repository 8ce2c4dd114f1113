"""Rows on their way through a conversion: Parquet files with the columns of graded pairs and keys to compare by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bixse.data.graded_pairs import text_id
from bixse.data.io.parquet import open_table, read_table, table_writer
from bixse.data.transforms.pair_columns import KEYS, PairColumns, key_of, key_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from bixse.data.sources.judgement_files import Judgement
    from bixse.data.transforms.pair_columns import Key

TEXTS = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("document_id", pa.string()),
        ("document", pa.string()),
        ("relevance", pa.float64()),
        ("task", pa.string()),
        ("grade", pa.float64()),
        ("grade_probs", pa.list_(pa.float64())),
        ("judge", pa.string()),
    ]
)
"""The columns of graded pairs, as they are written at the end."""
LABELS = ("grade", "grade_probs")
"""Columns that go with a row's label."""
EXACT = {"exact query": "query", "exact document": "document"}
"""Further keys: of texts as they are written, to see whether one id stands for one text."""
_KEY_COLUMNS = (*KEYS, *EXACT)
_KEYS = pa.schema([(f"key of {name}", pa.uint64()) for name in _KEY_COLUMNS])
ROWS_AT_ONCE = 4096
"""Rows of a row group, at most."""
CHARACTERS_AT_ONCE = 1 << 23
"""Characters of a row group, about."""


class PartWriter:
    """Writes graded judgements to a Parquet file with keys, a few thousand at a time.

    Args:
        path: the file.
        with_texts: False writes relevance and keys alone.
    """

    def __init__(self, path: Path, with_texts: bool) -> None:
        self.names = TEXTS.names if with_texts else ["relevance"]
        fields = [TEXTS.field(name) for name in self.names]
        self.schema = pa.schema([*fields, *_KEYS])
        self.rows = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        self._characters = 0
        self._file = table_writer(path, self.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def add(self, judgement: Judgement, task: str | None, text_ids: bool) -> None:
        """Take a graded judgement with both texts."""
        row = row_of(judgement, task, text_ids)
        for name in self.names:
            self._columns[name].append(row[name])
        for name in KEYS:
            self._columns[f"key of {name}"].append(key_value(name, row[name]))
        for name, column in EXACT.items():
            self._columns[f"key of {name}"].append(key_of(row[column]))
        self.rows += 1
        self._characters += len(row["query"]) + len(row["document"])
        if len(self._columns["relevance"]) >= ROWS_AT_ONCE or self._characters >= CHARACTERS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._columns["relevance"]:
            self._file.write_table(pa.table(self._columns, schema=self.schema))
        self._columns = {name: [] for name in self.schema.names}
        self._characters = 0


def row_of(judgement: Judgement, task: str | None = None, text_ids: bool = False) -> dict[str, Any]:
    """The row of graded pairs that a graded judgement becomes.

    Args:
        judgement: graded, with both texts.
        task: in the place of the judgement's own.
        text_ids: make ids from the texts.
    """
    query, document = judgement.query or "", judgement.document or ""
    own = judgement.extra
    grade: float | None = judgement.grade
    probabilities: Sequence[float] | None = judgement.probabilities
    if "grade" in own:  # graded pairs of ours: the grade may be on any scale, and need not be there
        grade, probabilities = own["grade"], own.get("grade_probs")
    return {
        "query_id": text_id(query) if text_ids else judgement.query_id,
        "query": query,
        "document_id": text_id(document) if text_ids else judgement.document_id,
        "document": document,
        "relevance": judgement.relevance,
        "task": task if task is not None else judgement.task,
        "grade": grade,
        "grade_probs": list(probabilities) if probabilities else None,
        "judge": judgement.judge or None,
    }


def read_columns(paths: Sequence[Path], keys: Sequence[Key]) -> PairColumns:
    """Relevance and some keys of all rows of several files, texts left where they are."""
    names = [f"key of {name}" for name in keys]
    tables = [read_table(path, columns=["relevance", *names]) for path in paths]
    table = pa.concat_tables(tables)
    found = {key: np.array(table[name].to_numpy()) for key, name in zip(keys, names, strict=True)}
    return PairColumns.numbered(np.array(table["relevance"].to_numpy(), dtype=np.float64), found)


def row_groups(
    paths: Sequence[Path], columns: Sequence[str], step: Callable[[int], None] | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """Number of the first row and content of every row group of several files, in order.

    Args:
        paths: the files.
        columns: what is read of them.
        step: is told after each group how many bytes of the files that was.
    """
    start = 0
    for path in paths:
        with open_table(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(columns))
                yield start, table
                start += table.num_rows
                if step is not None:
                    step(path.stat().st_size // file.num_row_groups)


def rows_at(paths: Sequence[Path], rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
    """A few rows by their numbers, which rise."""
    found: list[dict[str, Any]] = []
    for start, table in row_groups(paths, columns):
        here = [row - start for row in rows if start <= row < start + table.num_rows]
        found += table.take(here).to_pylist() if here else []
    return found
