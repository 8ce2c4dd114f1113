"""The graded pairs of a conversion on disk: checked, transformed and written in bounded memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bixse.data.columns import SCHEMA
from bixse.data.transforms import NO_LABEL, PairColumns, TransformReport, key_value, reported
from bixse.data.trec import write_qrels
from bixse.errors import InputError, shorten
from bixse.files.files import storage_errors
from bixse.files.parquet import open_table, read_table, table_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from bixse.data.transforms import Key
    from bixse.preparing.convert_settings import ConvertSettings
    from bixse.relevance import GradeScale

WHOLE = "pairs"
"""Name of the only part if nothing is split."""
ROWS_AT_ONCE = 4096
"""Rows read and written together."""
_DIGITS = 6
"""Decimal digits of a grade in qrels: enough to tell grades apart, too few to show rounding errors."""


class PairsTable:
    """The graded pairs in a Parquet file, and a view `pairs` of it with the row number n from 0."""

    def __init__(self, database: duckdb.DuckDBPyConnection, path: Path, writer: pa.parquet.ParquetWriter) -> None:
        self._database, self._path, self._writer = database, path, writer
        self.count = 0

    @classmethod
    @contextmanager
    def filled(cls, database: duckdb.DuckDBPyConnection, path: Path) -> Iterator[PairsTable]:
        """Yield a table to `add` rows to; after the block it can be selected from and written."""
        with storage_errors(path), table_writer(path, SCHEMA) as writer:
            table = cls(database, path, writer)
            yield table
        quoted = str(path).replace("'", "''")
        database.execute(
            "CREATE OR REPLACE TEMP VIEW pairs AS SELECT file_row_number AS n, * EXCLUDE (file_row_number) "
            f"FROM read_parquet('{quoted}', file_row_number = true)"
        )
        database.execute("SET preserve_insertion_order = true")

    def add(self, judgements: pa.Table, task: str | None, own_grades: bool) -> None:
        """Add the judgements with a grade; `task` replaces the task of all rows."""
        table = judgements.filter(pc.equal(judgements["status"], "graded"))
        columns = {name: table[name] for name in table.column_names}
        columns["grade_probs"] = columns["probabilities"]
        columns["judge"] = pc.if_else(pc.equal(columns["judge"], ""), None, columns["judge"])
        if own_grades:
            columns["grade"] = columns["own_grade"]
        if task is not None:
            columns["task"] = pa.repeat(task, len(table))
        self._writer.write_table(pa.table({name: columns[name] for name in SCHEMA.names}).cast(SCHEMA))
        self.count += len(table)

    def select(self, settings: ConvertSettings) -> tuple[dict[str, PairColumns], list[TransformReport]]:
        """Check ids, transform and split; return part -> its rows in source order, and the reports of the steps."""
        for kind in ("query", "document"):
            self._check_ids(kind)
        transforms, split = settings.transforms(), settings.parts()
        keys = [key for step in (*transforms, split) if step is not None for key in step.needs]
        columns = self._columns(list(dict.fromkeys(keys)))
        applied: list[TransformReport] = []
        if not settings.dedup and (once := self._firsts()) is not None:
            applied.append(TransformReport("repeats written once", {}, len(columns), len(once)))
            columns = columns.take(once)
        for transform in transforms:
            found, notes = transform.apply(columns)
            applied.append(reported(transform, columns, found, notes))
            if not len(found):
                raise InputError(
                    f"{transform.name}: got no row of {len(columns)} that stays; expected at least one; fix: look at "
                    "the relevances first (--dry-run)"
                )
            columns = found
        if split is None:
            return {WHOLE: columns}, applied
        parts = split.parts(columns)
        if empty := [name for name, part in parts.items() if not len(part)]:
            raise InputError(
                f"--split: got no query for {', '.join(empty)} among {len(columns)} pairs; expected some in every "
                "part; fix: other shares, or another --seed"
            )
        return parts, [*applied, reported(split, columns, columns, {name: len(part) for name, part in parts.items()})]

    def tasks(self, columns: PairColumns) -> dict[str, tuple[int, int]]:
        """Return task -> number of rows and of queries; rows without a task are under "-"."""
        self._use(columns)
        found = self._database.execute(
            "SELECT task, sum(rows)::BIGINT, count(*) FROM (SELECT coalesce(task, '-') AS task, count(*) AS rows "
            "FROM selected JOIN pairs USING (n) GROUP BY coalesce(task, '-'), query_id) GROUP BY task ORDER BY task"
        ).fetchall()
        return {task: (rows, queries) for task, rows, queries in found}

    def write(
        self, parts: Mapping[str, PairColumns], folder: Path, step: Callable[[int], None] | None = None
    ) -> dict[str, Path]:
        """Write each part as Parquet below a folder; return output name -> file. `step` gets the number of new rows."""
        written = {f"{name}.parquet": folder / f"{name}.new" for name in parts}
        with storage_errors(folder):
            for columns, target in zip(parts.values(), written.values(), strict=True):
                with table_writer(target, SCHEMA) as writer:
                    for table in _of_equal_size(self._selected(columns)):
                        writer.write_table(table)
                        if step is not None:
                            step(len(table))
        return written

    def _selected(self, columns: PairColumns) -> Iterator[pa.Table]:
        grades = labels = None
        if not np.array_equal(columns.labels, columns.rows):
            grades = read_table(self._path, ("grade", "grade_probs"))
            labels = pa.array(columns.labels, mask=columns.labels == NO_LABEL)
        start = done = 0
        with open_table(self._path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                end = start + batch.num_rows
                until = int(np.searchsorted(columns.rows, end))
                table = pa.Table.from_batches([batch]).take(columns.rows[done:until] - start)
                found = {name: table[name] for name in SCHEMA.names}
                found["relevance"] = pa.array(columns.relevance[done:until])
                if grades is not None and labels is not None:
                    own = grades.take(labels.slice(done, until - done))
                    found |= {name: own[name] for name in grades.column_names}
                yield pa.table(found).cast(SCHEMA)
                start, done = end, until

    def write_collection(
        self, parts: Mapping[str, PairColumns], folder: Path, scale: GradeScale, has_corpus: bool
    ) -> tuple[dict[str, Path], list[str]]:
        """Write `corpus.jsonl`, `queries.jsonl` and `qrels/<part>.tsv`; return output name -> file, and warnings."""
        written, notes = {}, []
        judged = np.concatenate([columns.rows for columns in parts.values()])
        with storage_errors(folder):
            for name, columns in parts.items():
                # A grade in qrels is the relevance on a scale of the same width that begins at 0.
                written[f"qrels/{name}.tsv"] = target = folder / f"qrels-{name}.new"
                write_qrels(target, self._qrels(columns, scale.maximum - scale.minimum))
            self._database.register("judged", pa.table({"n": judged}))
            first = "FROM pairs WHERE n IN (SELECT n FROM judged) GROUP BY ALL ORDER BY min(n)"
            corpus = f"SELECT document_id AS _id, '' AS title, document AS text {first}"
            if has_corpus:  # else the judged documents are the corpus
                corpus = "SELECT id AS _id, title, text FROM documents WHERE NOT is_blank(title || text) ORDER BY place"
                count = "SELECT count(*) FROM documents WHERE is_blank(title || text)"
                ((empty,),) = self._database.execute(count).fetchall()
                notes = [f"{empty} documents of the corpus are empty and were left out"] if empty else []
            for name, query in (("corpus", corpus), ("queries", f"SELECT query_id AS _id, query AS text {first}")):
                written[f"{name}.jsonl"] = target = folder / f"{name}.new"
                quoted = str(target).replace("'", "''")
                self._database.execute(f"COPY ({query}) TO '{quoted}' (FORMAT json)")
        return written, notes

    def _qrels(self, columns: PairColumns, width: float) -> dict[str, dict[str, float]]:
        self._use(columns)
        rows = self._database.execute(
            "SELECT query_id, document_id, selected.relevance FROM selected JOIN pairs USING (n) ORDER BY selected.n"
        ).fetchall()
        qrels: dict[str, dict[str, float]] = {}
        for query, document, relevance in rows:
            grade = round(relevance * width, _DIGITS)
            known = qrels.setdefault(query, {}).setdefault(document, grade)
            if known != grade:
                raise InputError(
                    f"qrels: got the grades {known:g} and {grade:g} for query {shorten(query)} and document "
                    f"{shorten(document)} in two tasks; expected one grade per pair; fix: convert one task at a time"
                )
        return qrels

    def _use(self, columns: PairColumns) -> None:
        chosen = pa.table({"n": columns.rows, "label": columns.labels, "relevance": columns.relevance})
        self._database.register("chosen", chosen)
        self._database.execute("CREATE OR REPLACE TEMP TABLE selected AS SELECT * FROM chosen")

    def _columns(self, keys: Sequence[Key]) -> PairColumns:
        relevance, found = np.zeros(self.count), {key: np.zeros(self.count, dtype=np.uint64) for key in keys}
        start = 0
        rows = self._database.sql(f"SELECT {', '.join(['relevance', *keys])} FROM pairs ORDER BY n")
        for batch in rows.to_arrow_reader(ROWS_AT_ONCE):
            end = start + batch.num_rows
            relevance[start:end] = batch["relevance"].to_numpy()
            for key in keys:
                found[key][start:end] = [key_value(key, value) for value in batch[key].to_pylist()]
            start = end
        return PairColumns.numbered(relevance, found)

    def _check_ids(self, kind: str) -> None:
        """Refuse an id with several texts: different queries or documents would be joined."""
        clashes = self._database.execute(
            f"SELECT {kind}_id FROM pairs GROUP BY ALL HAVING min(hash({kind})) <> max(hash({kind})) ORDER BY min(n)"
        ).fetchall()
        if not clashes:
            return
        texts = self._database.execute(
            f"SELECT {kind} FROM pairs WHERE {kind}_id = ? GROUP BY ALL ORDER BY min(n) LIMIT 2", clashes[0]
        ).fetchall()
        shown = " and ".join(shorten(text) for (text,) in texts)
        raise InputError(
            f"{kind} ids: got {len(clashes)} that stand for several texts, first {shorten(clashes[0][0])} for {shown}; "
            "expected one text per id; fix: --text-ids makes ids from the texts, or give each text its own id"
        )

    def _firsts(self) -> np.ndarray | None:
        """Return the first row of each pair per task, None without repeats; refuse repeats with another relevance."""
        self._database.execute(
            "CREATE OR REPLACE TEMP TABLE firsts AS SELECT min(n) AS n, min(relevance) AS low, max(relevance) AS high "
            "FROM pairs GROUP BY query_id, document_id, task"
        )
        differ = self._database.execute("SELECT n, low, high FROM firsts WHERE low < high ORDER BY n").fetchall()
        if differ:
            row, low, high = differ[0]
            found = self._database.execute("SELECT query, document FROM pairs WHERE n = ?", [row]).fetchall()
            query, document = map(shorten, found[0])
            raise InputError(
                f"pairs: got {len(differ)} with several relevances, first {low:g} and {high:g} for query {query} "
                f"and document {document}; expected one relevance per pair; fix: --dedup takes their mean, or "
                "correct the file"
            )
        ((count,),) = self._database.execute("SELECT count(*) FROM firsts").fetchall()
        if count == self.count:
            return None
        return np.asarray(self._database.execute("SELECT n FROM firsts ORDER BY n").fetchnumpy()["n"])


def _of_equal_size(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    held = SCHEMA.empty_table()
    for table in tables:
        held = pa.concat_tables([held, table])
        while len(held) >= ROWS_AT_ONCE:
            yield held.slice(0, ROWS_AT_ONCE).combine_chunks()
            held = held.slice(ROWS_AT_ONCE)
    if len(held):
        yield held.combine_chunks()
