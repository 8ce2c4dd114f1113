"""Third stage of a conversion: the selected rows as Parquet files of graded pairs, or as a collection folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from bixse.data.conversion.reading import PAIRS
from bixse.data.conversion.row_selection import ROWS_AT_ONCE
from bixse.data.io.files import storage_errors
from bixse.data.io.parquet import table_writer
from bixse.data.trec import write_qrels
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import duckdb

    from bixse.data.transforms.pair_columns import PairColumns
    from bixse.relevance import GradeScale

_DIGITS = 6
"""Digits of a grade in qrels: enough to tell grades apart, and none that rounding made."""
_SELECTED = """
SELECT pairs.* EXCLUDE (n) REPLACE (selected.relevance AS relevance, labels.grade AS grade,
                                    labels.grade_probs AS grade_probs)
FROM selected JOIN pairs USING (n) LEFT JOIN (SELECT n, grade, grade_probs FROM pairs) AS labels
ON labels.n = selected.label ORDER BY selected.n
"""


@dataclass
class WrittenFiles:
    """What was written, under temporary names."""

    files: dict[str, Path] = field(default_factory=dict)
    """Name in the output folder -> the file that will get it."""
    notes: list[str] = field(default_factory=list)
    """What people should know."""


def use_selection(database: duckdb.DuckDBPyConnection, columns: PairColumns) -> dict[str, int]:
    """Make the table `selected` of the rows of a part, and count them by task; rows without a task are under "-"."""
    chosen = pa.table({"n": columns.rows, "label": columns.labels, "relevance": columns.relevance})
    database.register("chosen", chosen)
    database.execute("CREATE OR REPLACE TEMP TABLE selected AS SELECT * FROM chosen")
    return dict(
        database.execute(
            "SELECT coalesce(task, '-') AS task, count(*) FROM selected JOIN pairs USING (n) GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    )


def write_pairs(
    database: duckdb.DuckDBPyConnection,
    parts: Mapping[str, PairColumns],
    folder: Path,
    step: Callable[[int], None],
) -> WrittenFiles:
    """Write each part as `<part>.parquet`, a few thousand rows at a time.

    Args:
        database: with the view `pairs`.
        parts: part -> rows to write.
        folder: receives the files.
        step: is told how many more rows were written.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    written = WrittenFiles()
    with storage_errors(folder):
        for name, columns in parts.items():
            use_selection(database, columns)
            written.files[f"{name}.parquet"] = target = folder / f"{name}.new"
            with table_writer(target, PAIRS) as writer:
                for batch in database.sql(_SELECTED).to_arrow_reader(ROWS_AT_ONCE):
                    writer.write_table(pa.Table.from_batches([batch]).cast(PAIRS))
                    step(batch.num_rows)
    return written


def write_collection(
    database: duckdb.DuckDBPyConnection,
    parts: Mapping[str, PairColumns],
    folder: Path,
    scale: GradeScale,
    has_corpus: bool,
) -> WrittenFiles:
    """Write `corpus.jsonl`, `queries.jsonl` and `qrels/<part>.tsv`.

    A grade in the qrels is the relevance on a scale of the same width that begins at 0. The corpus is that of the
    source, where it has one, else the judged documents.

    Args:
        database: with the view `pairs`, and the table `documents` of the corpus.
        parts: part -> rows to write.
        folder: receives the files.
        scale: of the grades.
        has_corpus: whether the source has a corpus.

    Raises:
        InputError: a pair has several grades, as rows of several tasks, or an id that qrels cannot hold.
        StorageError: the disk is full or the folder cannot be written.
    """
    written = WrittenFiles()
    judged: list[str] = []
    with storage_errors(folder):
        for number, (name, columns) in enumerate(parts.items()):
            use_selection(database, columns)
            database.execute(f"CREATE OR REPLACE TEMP TABLE selected_{number} AS FROM selected")
            judged.append(f"SELECT n FROM selected_{number}")
            qrels: dict[str, dict[str, float]] = {}
            for query, document, relevance in database.execute(
                "SELECT query_id, document_id, selected.relevance FROM selected JOIN pairs USING (n) "
                "ORDER BY selected.n"
            ).fetchall():
                grade = round(relevance * (scale.maximum - scale.minimum), _DIGITS)
                known = qrels.setdefault(query, {}).setdefault(document, grade)
                if known != grade:
                    raise InputError(
                        f"qrels: got the grades {known:g} and {grade:g} for query {shorten(query)} and document "
                        f"{shorten(document)} in two tasks; expected one grade per pair; fix: convert one task at a "
                        "time"
                    )
            written.files[f"qrels/{name}.tsv"] = target = folder / f"qrels-{name}.new"
            write_qrels(target, qrels)
        first = f"FROM pairs WHERE n IN ({' UNION ALL '.join(judged)}) GROUP BY ALL ORDER BY min(n)"
        corpus = f"SELECT document_id AS _id, '' AS title, document AS text {first}"
        if has_corpus:
            corpus = "SELECT id AS _id, title, text FROM documents WHERE NOT is_blank(title || text) ORDER BY place"
            ((empty,),) = database.execute("SELECT count(*) FROM documents WHERE is_blank(title || text)").fetchall()
            written.notes += [f"{empty} documents of the corpus are empty and were left out"] if empty else []
        for name, query in (("corpus", corpus), ("queries", f"SELECT query_id AS _id, query AS text {first}")):
            written.files[f"{name}.jsonl"] = target = folder / f"{name}.new"
            quoted = str(target).replace("'", "''")
            database.execute(f"COPY ({query}) TO '{quoted}' (FORMAT json)")
    return written
