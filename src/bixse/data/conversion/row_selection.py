"""Second stage of a conversion: checks of ids and repeats, then the transforms, on numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.transforms.column_transforms import Applied
from bixse.data.transforms.pair_columns import PairColumns, key_value
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.data.conversion.reading import Part
    from bixse.data.transforms.pair_columns import Key

WHOLE = "pairs"
"""Name of the one part where nothing is split."""
ROWS_AT_ONCE = 4096
"""Rows that are read and written together."""


@dataclass(frozen=True)
class Selection:
    """What is to be written."""

    parts: dict[str, PairColumns]
    """Part -> its rows, in the order of the source."""
    applied: list[Applied]
    """What was done, in order."""


def open_pairs(database: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> None:
    """Make the view `pairs` of all parts, with the number of each row from 0."""
    starts = np.cumsum([0, *(part.rows for part in parts)]).tolist()
    selects = [
        f"SELECT file_row_number + {start} AS n, * EXCLUDE (file_row_number) "
        f"FROM read_parquet('{str(part.path).replace(chr(39), chr(39) * 2)}', file_row_number = true)"
        for start, part in zip(starts, parts, strict=False)
    ]
    database.execute(f"CREATE OR REPLACE TEMP VIEW pairs AS {' UNION ALL '.join(selects)}")
    database.execute("SET preserve_insertion_order = true")


def select_rows(database: duckdb.DuckDBPyConnection, settings: ConvertSettings) -> Selection:
    """Check ids, apply the transforms, and split.

    Args:
        database: with the view `pairs`.
        settings: of the conversion.

    Raises:
        InputError: one id stands for two texts, a pair has two relevances (without dedup), or nothing is left.
    """
    for kind in ("query", "document"):
        _check_ids(database, kind)
    transforms, split = settings.transforms(), settings.parts()
    keys: list[Key] = ["query_id", "task"]
    keys += [key for step in (*transforms, split) if step is not None for key in step.needs]
    columns = read_columns(database, list(dict.fromkeys(keys)))
    applied: list[Applied] = []
    if not settings.dedup:
        columns, repeats = _once(database, columns)
        applied += [repeats] if repeats.rows_after < repeats.rows_before else []
    for transform in transforms:
        columns, done = transform.apply(columns)
        applied.append(done)
        if not len(columns):
            raise InputError(
                f"{done.name}: got no row of {done.rows_before} that stays; expected at least one; fix: look at "
                "the relevances first (--dry-run)"
            )
    if split is None:
        return Selection({WHOLE: columns}, applied)
    parts, done = split.apply(columns)
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise InputError(
            f"--split: got no query for {', '.join(empty)} among {len(columns)} pairs; expected some in every part; "
            "fix: other shares, or another --seed"
        )
    return Selection(parts, [*applied, done])


def read_columns(database: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> PairColumns:
    """Relevance and some keys of all rows, texts left where they are."""
    relevance, found = [np.zeros(0)], {key: [np.zeros(0, dtype=np.uint64)] for key in keys}
    for batch in database.sql(f"SELECT relevance, {', '.join(keys)} FROM pairs").to_arrow_reader(ROWS_AT_ONCE):
        relevance.append(batch["relevance"].to_numpy())
        for key in keys:
            values = (key_value(key, value) for value in batch[key].to_pylist())
            found[key].append(np.fromiter(values, dtype=np.uint64, count=batch.num_rows))
    return PairColumns.numbered(np.concatenate(relevance), {key: np.concatenate(found[key]) for key in keys})


def _check_ids(database: duckdb.DuckDBPyConnection, kind: str) -> None:
    """One id, one text: else queries would be joined that are different ones."""
    clashes = database.execute(
        f"SELECT {kind}_id FROM pairs GROUP BY ALL HAVING min(hash({kind})) <> max(hash({kind})) ORDER BY min(n)"
    ).fetchall()
    if not clashes:
        return
    texts = database.execute(
        f"SELECT {kind} FROM pairs WHERE {kind}_id = ? GROUP BY ALL ORDER BY min(n) LIMIT 2", clashes[0]
    ).fetchall()
    shown = " and ".join(shorten(text) for (text,) in texts)
    raise InputError(
        f"{kind} ids: got {len(clashes)} that stand for several texts, first {shorten(clashes[0][0])} for {shown}; "
        "expected one text per id; fix: --text-ids makes ids from the texts, or give each text its own id"
    )


def _once(database: duckdb.DuckDBPyConnection, columns: PairColumns) -> tuple[PairColumns, Applied]:
    """Rows that repeat a pair with the same relevance are written once; with another they are refused."""
    database.execute(
        "CREATE OR REPLACE TEMP TABLE firsts AS SELECT min(n) AS n, min(relevance) AS low, max(relevance) AS high "
        "FROM pairs GROUP BY query_id, document_id, task"
    )
    differ = database.execute("SELECT n, low, high FROM firsts WHERE low < high ORDER BY n").fetchall()
    if differ:
        row, low, high = differ[0]
        ((query, document),) = database.execute("SELECT query, document FROM pairs WHERE n = ?", [row]).fetchall()
        raise InputError(
            f"pairs: got {len(differ)} with several relevances, first {low:g} and {high:g} for query {shorten(query)} "
            f"and document {shorten(document)}; expected one relevance per pair; fix: --dedup takes their mean, or "
            "correct the file"
        )
    kept = columns.take(database.execute("SELECT n FROM firsts ORDER BY n").fetchnumpy()["n"])
    return kept, Applied("repeats written once", {}, len(columns), len(kept))
