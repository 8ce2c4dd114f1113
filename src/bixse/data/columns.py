"""The columns of graded pairs: schema, checks, values read on demand, and numbers of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bixse.errors import InputError, shorten
from bixse.files.parquet import blocks

REQUIRED_COLUMNS = ("query", "document", "relevance")
OPTIONAL_COLUMNS = ("task", "grade", "grade_probs", "judge")
"""Optional columns: task name, grade on its scale, the judge's probabilities of the grades (a list), judge name."""
SCHEMA = pa.schema(
    {
        "query_id": pa.large_string(),  # 64-bit offsets: a column of texts may exceed 2 GiB
        "query": pa.large_string(),
        "document_id": pa.large_string(),
        "document": pa.large_string(),
        "relevance": pa.float64(),
        "task": pa.large_string(),
        "grade": pa.float64(),
        "grade_probs": pa.list_(pa.float64()),
        "judge": pa.large_string(),
    }
)
"""All columns of a table, in order."""
KEYS_AT_ONCE = 2**18
"""Approximate number of keys per hash table."""


def text_id(text: str) -> str:
    """Return a stable id for a text without an id: the start of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def checked_batches(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield record batches one at a time, each as `checked` returns a table."""
    rows = 0
    for batch in source:
        yield from checked(pa.Table.from_batches([batch]), rows).combine_chunks().to_batches()
        rows += batch.num_rows


def checked(table: pa.Table, rows_before: int = 0) -> pa.Table:
    """Return the columns of `SCHEMA` that a table has, with the types of `SCHEMA`."""
    renamed = {"relevance": "label"} if "relevance" not in table.column_names else {}
    sources = {name: renamed.get(name, name) for name in SCHEMA.names if renamed.get(name, name) in table.column_names}
    for name in REQUIRED_COLUMNS:
        if name not in sources:
            alternative = " (or label)" if name == "relevance" else ""
            raise InputError(
                f"graded pairs: got the columns {shorten(', '.join(table.column_names), 120)}; expected query, "
                f"document and relevance (or label); fix: rename or add the column {name}{alternative}"
            )
    columns: dict[str, pa.ChunkedArray] = {}
    for name, source in sources.items():
        kind = SCHEMA.field(name).type
        try:
            columns[name] = table[source].cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"graded pairs: got column {source!r} of type {table[source].type}; expected {kind}; "
                "fix: convert the column"
            ) from error
    for name, wanted in {"query": "a text", "document": "a text", "relevance": "a number in [0, 1]"}.items():
        values = columns[name]
        if values.null_count:
            row = rows_before + int(np.flatnonzero(values.is_null().to_numpy())[0]) + 1
            raise InputError(f"graded pairs: row {row}: got no {name}; expected {wanted}; fix: drop the row")
    relevance = columns["relevance"].to_numpy()
    invalid = np.flatnonzero(~((relevance >= 0) & (relevance <= 1)))
    if len(invalid):
        raise InputError(
            f"graded pairs: row {rows_before + int(invalid[0]) + 1}: got relevance {relevance[invalid[0]]:g}; expected "
            "a number in [0, 1]; fix: map grades first: (grade - lowest) / (highest - lowest)"
        )
    return pa.table(columns)


def lacking_ids(table: pa.Table) -> list[str]:
    """Return the kinds of texts, query or document, of which some rows have no id in the id column."""
    ids = {kind: table[f"{kind}_id"] for kind in ("query", "document") if f"{kind}_id" in table.column_names}
    return [kind for kind, column in ids.items() if column.null_count or pc.any(pc.equal(column, "")).as_py()]


def with_ids(table: pa.Table) -> pa.Table:
    """Fill missing ids of the id columns that a table has with ids of the texts."""
    for kind in lacking_ids(table):
        at, texts = table.column_names.index(f"{kind}_id"), table[kind].to_pylist()
        ids = [known or text_id(text) for known, text in zip(table[at].to_pylist(), texts, strict=True)]
        table = table.set_column(at, table.field(at), pa.chunked_array([ids], table.field(at).type))
    return table


def with_columns_of(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return columns of `SCHEMA` by name; a column that the table lacks is null."""
    schema = pa.schema([SCHEMA.field(name) for name in names])
    columns = [
        table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)


def without_empty_columns(table: pa.Table) -> pa.Table:
    """Return a table without the columns that are null in every row."""
    return table.drop_columns([n for n in table.column_names if len(table) and table[n].null_count == len(table)])


class Column(Sequence[Any]):
    """A column as a read-only sequence: equal to a list of the same values, without a list in memory."""

    def __init__(self, values: pa.ChunkedArray, convert: Callable[[Any], Any] | None = None) -> None:
        self._values = values
        self._convert = convert

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        value = self._values[int(index)].as_py()
        return self._convert(value) if self._convert is not None else value

    def __iter__(self) -> Iterator[Any]:
        for block in blocks(self._values):
            yield from map(self._convert, block.to_pylist()) if self._convert is not None else block.to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    __hash__ = None  # type: ignore[assignment]


def numbered(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return (M,) numbers from 0 up in order of first appearance, equal if the keys are equal.

    Keys are hashed in parts, so that no table of all distinct keys is in memory.
    """
    parts = 1 + len(keys) // KEYS_AT_ONCE
    part_of = (keys % parts).astype(np.uint16)
    first_of_row = np.empty(len(keys), dtype=np.int32)  # (M,) first row of each key
    for part in range(parts):
        rows = np.flatnonzero(part_of == part).astype(np.int32)
        encoded = pa.array(keys[rows]).dictionary_encode()
        codes = encoded.indices.to_numpy()
        first_of_code = np.empty(len(encoded.dictionary), dtype=np.int32)
        first_of_code[codes[::-1]] = rows[::-1]  # reversed, since the last assignment stays
        first_of_row[rows] = first_of_code[codes]
    is_first = first_of_row == np.arange(len(keys), dtype=np.int32)
    numbers: NDArray[np.int32] = (np.cumsum(is_first, dtype=np.int32) - 1)[first_of_row]
    return numbers


def first_rows(numbers: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the row at which each number of `numbered` first appears, in order of the numbers."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))


def numbered_texts(column: pa.ChunkedArray, release: Callable[[], None]) -> NDArray[np.int32]:
    """Return (M,) numbers of texts, equal for equal texts by Python's 64-bit hash, one block at a time."""
    hashes = np.empty(len(column), dtype=np.int64)
    row = 0
    for block in blocks(column):
        texts = block.to_numpy(zero_copy_only=False)
        hashes[row : row + len(texts)] = np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts))
        row += len(texts)
        release()
    return numbered(hashes)
