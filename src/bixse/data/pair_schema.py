"""The columns of graded pairs, and the check that every table from outside goes through."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIRED_COLUMNS = ("query", "document", "relevance")
"""Columns every table of graded pairs has."""
OPTIONAL_COLUMNS = ("task", "grade", "grade_probs", "judge")
"""Columns carried along: task name, grade on its scale, the judge's probability of each grade (a list), its name."""
SCHEMA = pa.schema(
    {
        "query_id": pa.large_string(),
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
"""Every column a table may have, in order."""


def text_id(text: str) -> str:
    """A stable id for a text that has none: the start of its SHA-256.

    Example:
        >>> text_id("copy a folder")
        'f21ca126cf2f02a5'
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def checked_batches(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record batches as `checked` leaves a table, one at a time."""
    rows = 0
    for batch in source:
        yield from checked(pa.Table.from_batches([batch]), rows).combine_chunks().to_batches()
        rows += batch.num_rows


def checked(table: pa.Table, rows_before: int = 0) -> pa.Table:
    """The columns of `SCHEMA` that a table has, in its types.

    Args:
        table: from outside.
        rows_before: rows of earlier batches, for messages.
    """
    given = {"relevance": "label"} if "relevance" not in table.column_names else {}
    sources = {name: given.get(name, name) for name in SCHEMA.names if given.get(name, name) in table.column_names}
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


def needs_ids(table: pa.Table) -> bool:
    """Whether some rows have ids and some have none."""
    return any(
        name in table.column_names and (table[name].null_count or pc.any(pc.equal(table[name], "")).as_py())
        for name in ("query_id", "document_id")
    )


def with_ids(table: pa.Table) -> pa.Table:
    """The columns of ids that a table has, with ids of the texts where there is none."""
    for kind in ("query", "document"):
        if f"{kind}_id" in table.column_names:
            at, texts = table.column_names.index(f"{kind}_id"), table[kind].to_pylist()
            ids = [own or text_id(text) for own, text in zip(table[at].to_pylist(), texts, strict=True)]
            table = table.set_column(at, table.field(at), pa.chunked_array([ids], table.field(at).type))
    return table


def without_empty_columns(table: pa.Table) -> pa.Table:
    """A table without the columns that hold nothing in any row."""
    return table.drop_columns([n for n in table.column_names if len(table) and table[n].null_count == len(table)])
