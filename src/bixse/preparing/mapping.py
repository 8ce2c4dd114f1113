"""Map rows of any format to judgements by SQL queries; see `formats.toml` and `mapping.sql`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from bixse.errors import RowError
from bixse.files.values import number_hint
from bixse.preparing.formats import TABLE_COLUMNS
from bixse.preparing.score_scale import map_scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.preparing.formats import Format, SourceSettings
    from bixse.preparing.score_scale import ScoreMap
    from bixse.relevance import GradeScale

MEMORY_LIMIT = "256MB"
"""Memory limit of duckdb; larger data goes to files in its folder."""
TEXTS_AT_ONCE = 20_000
ID_OF_A_QUERY, ID_OF_A_DOCUMENT = "the id of a query", "an id of the corpus"
"""The expected values in place of an id that is not among the texts."""
_TEXT_COLUMNS = {
    "ordinal": "BIGINT", "row": "BIGINT", "file": "INTEGER", "id": "VARCHAR", "title": "VARCHAR", "text": "VARCHAR",
}  # fmt: skip
"""Columns of texts that rows name by id."""
_FIELD_TYPES = {
    "status": "VARCHAR", "detail": "VARCHAR", "judge": "VARCHAR", "text": "VARCHAR", "probabilities": "DOUBLE[]",
    "orders": "VARCHAR", "grade": "DOUBLE",
}  # fmt: skip
"""Columns that the `fields` of a format may fill."""
_ROWS = """
CREATE OR REPLACE TEMP TABLE rows AS
SELECT row, j, keys{values} FROM (SELECT row, json::JSON AS j, json_keys(json) AS keys FROM json_rows)
"""
_TEXTS = """
CREATE OR REPLACE TEMP TABLE texts AS
SELECT items.*, number(val) AS number, {by_id} AS by_id, {has_document} AS has_document, {looked_up} AS looked_up,
       {asked} AS asked
FROM (SELECT * EXCLUDE (d), unnest(d, recursive := true)
      FROM (SELECT * EXCLUDE (documents), unnest(documents) AS d, generate_subscripts(documents, 1) AS ordinal
            FROM (SELECT row, query_key, {query} AS query, id_key, {query_id} AS query_id, task, {fields},
                         CASE WHEN len(documents) = 0 THEN [document('{column}')] ELSE documents END AS documents
                  FROM (SELECT *, {query_key} AS query_key, {id_key} AS id_key, {task} AS task,
                               {documents} AS documents FROM rows)))) AS items {joins}
"""
_JUDGEMENTS = """
SELECT row, CASE WHEN {text_ids} THEN text_id(query_text) ELSE identifier(query_id, query_text) END AS query_id,
       CASE WHEN {text_ids} THEN text_id(document_text) ELSE identifier(id, document_text) END AS document_id,
       query_text AS query, document_text AS document,
       CASE WHEN state = 'graded' THEN coalesce(given, label) END AS grade, state AS status,
       coalesce(CASE WHEN NOT is_blank(task->>'$') THEN task->>'$' END, $task) AS task, label,
       CASE WHEN {scored} THEN number END AS score,
       CASE WHEN {mapped} AND val IS NOT NULL THEN $teacher ELSE coalesce(nullif(own_judge, ''),
            CASE WHEN label IS NULL THEN $judge ELSE 'binary labels' END) END AS judge,
       coalesce(own_text, CASE WHEN number IS NOT NULL AND {graded} THEN format('{{:g}}', number) END, '') AS text,
       coalesce(nullif(own_detail, ''), CASE WHEN state = 'off-scale' THEN 'grade ' || format('{{:g}}', number)
           || '; the scale is ' || format('{{:g}}', $low) || ' to ' || format('{{:g}}', $high)
           WHEN state = $empty THEN 'the grade is empty' END, '') AS detail,
       own_probabilities AS probabilities, own_orders AS orders, own_grade
FROM (SELECT texts.*, {query_text} AS query_text, CASE WHEN by_id THEN looked_up
                  ELSE content(title->>'$', text->>'$') END AS document_text,
             CASE WHEN {labels} AND label IS NOT NULL THEN NULL ELSE number END AS given,
             CASE WHEN own_status IS NOT NULL THEN own_status
                  WHEN given IS NULL AND label IS NULL THEN $empty
                  WHEN NOT {mapped} AND given NOT BETWEEN $low AND $high THEN 'off-scale' ELSE 'graded' END AS state
      FROM texts WHERE row NOT IN (SELECT row FROM problems WHERE row IS NOT NULL))
ORDER BY row, ordinal
"""


class RowMapping:
    """The mapping from tables of JSON rows of a source to judgements and errors, in a database below `folder`."""

    def __init__(
        self, settings: SourceSettings, form: Format, scale: GradeScale, score_map: ScoreMap | None, folder: Path
    ) -> None:
        self.form, self.scale, self.score_map = form, scale, score_map
        self.database = database = duckdb.connect(folder / "work.duckdb")
        spill = str(folder / "spill").replace("'", "''")
        database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET temp_directory = '{spill}'")
        # No downloads. Queries order their rows themselves, and keeping the order costs memory.
        database.execute("SET autoinstall_known_extensions = false; SET preserve_insertion_order = false")
        stated = settings.grade_scale is not None
        for name in TABLE_COLUMNS:
            database.execute(f"SET VARIABLE {name} = {_quoted(settings.columns.get(name, name))}")
        for name, value in (("scale_stated", stated), ("has_corpus", bool(form.folder) or settings.corpus is not None)):
            database.execute(f"SET VARIABLE {name} = {value}")
        database.execute(Path(__file__).with_name("mapping.sql").read_text(encoding="utf-8"))
        for name in ("documents", "queries"):
            columns = ", ".join(f"{column} {kind}" for column, kind in _TEXT_COLUMNS.items())
            database.execute(f"CREATE TABLE {name} ({columns})")
        self._labels = self.score_map is not None and self.score_map.kind == "binary"
        self._mapped = self.score_map is not None and not self._labels
        self._stated = stated or form.scale is not None
        self._parts = {
            "values": "".join(f", {value} AS {name}" for name, value in form.values.items()),
            "query_key": _first_key(form.query),
            "id_key": _first_key(form.query_id),
            "query": form.query_value,
            "query_id": form.query_id_value,
            "fields": ", ".join(
                f"({form.fields.get(name, 'NULL')})::{kind} AS own_{name}" for name, kind in _FIELD_TYPES.items()
            ),
            "task": form.task,
            "documents": form.documents,
            "column": form.documents.partition("'")[2].partition("'")[0],
            "mapped": self._mapped,
            "labels": self._labels,
            "text_ids": settings.text_ids,
            "scored": self.score_map is not None or form.needs_map,
            "graded": self.score_map is None and "grade" not in form.fields,
            "query_text": "asked" if form.query_by_id else "query->>'$'",
            **_look_up(form),
        }
        # The SQL is built once: it is the same for every block of rows.
        self._checks = self._all_checks()

    def add_texts(self, table: str, file: int, texts: Iterator[tuple[int, str, str, str]]) -> None:
        """Add texts that rows name by id: number, id, title and text of each."""
        ((last,),) = self.database.execute(f"SELECT coalesce(max(ordinal), 0) FROM {table}").fetchall()
        while block := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            rows, ids, titles, bodies = zip(*block, strict=True)
            ordinals = range(last + 1, last + 1 + len(block))
            columns = [ordinals, rows, [file] * len(block), ids, titles, bodies]
            texts_table = pa.table(dict(zip(_TEXT_COLUMNS, columns, strict=True)))
            self.database.register("block", texts_table)
            self.database.execute(f"INSERT INTO {table} SELECT * FROM block")
            last += len(block)

    def repeated_texts(self, table: str) -> list[tuple[int, int, str]]:
        """Keep the first text of each id; return file, row and id of repeats with another text."""
        self.database.execute(
            f"CREATE OR REPLACE TEMP TABLE firsts AS SELECT id, min(ordinal) AS ordinal FROM {table} GROUP BY id "
            "HAVING count(*) > 1"
        )
        repeats = self.database.execute(
            f"SELECT later.file, later.row, later.id FROM {table} AS later JOIN firsts ON firsts.id = later.id "
            f"JOIN {table} AS first ON first.ordinal = firsts.ordinal "
            "WHERE (later.title, later.text) IS DISTINCT FROM (first.title, first.text) ORDER BY later.ordinal"
        ).fetchall()
        self.database.execute(
            f"DELETE FROM {table} WHERE EXISTS "
            f"(FROM firsts WHERE firsts.id = {table}.id AND firsts.ordinal <> {table}.ordinal)"
        )
        return [(file, row, identifier) for file, row, identifier in repeats]

    def judgements(self, rows: pa.Table, task: str | None, judge: str) -> tuple[pa.Table, list[RowError], int]:
        """Return judgements of the rows without errors, the errors, and the number of rows that the note counts."""
        database = self.database
        database.register("json_rows", rows)
        database.execute(_ROWS.format(**self._parts))
        database.execute(_TEXTS.format(**self._parts))
        database.execute(f"CREATE OR REPLACE TEMP TABLE problems AS {self._checks}")
        # DISTINCT: an error of a row would appear for each of its texts.
        problems = database.execute("SELECT DISTINCT * FROM problems ORDER BY row, key").fetchall()
        errors = [
            RowError(row, column, _shown(got), expected, number_hint(got.strip('"'), fix))
            for row, column, got, expected, fix in problems
        ]
        noted = 0
        if self.form.note:
            ((noted,),) = database.execute(f"SELECT count(*) FROM rows WHERE {self.form.note['when']}").fetchall()
        low, high = float(self.scale.minimum), float(self.scale.maximum)
        values = {
            "low": low, "high": high, "task": task, "judge": judge, "teacher": f"teacher scores ({self.score_map})",
            "empty": self.form.may_be_empty or "no-grade",
        }  # fmt: skip
        table = database.sql(_JUDGEMENTS.format(**self._parts), params=values).to_arrow_table()
        columns = {name: table[name] for name in table.column_names}
        grade = _floats(table["grade"])
        if self.score_map is not None and self._mapped:
            score = _floats(table["score"])
            grade = np.where(np.isnan(score), grade, map_scores(score, self.score_map))
            columns["grade"] = pa.array(grade, from_pandas=True)
        columns["relevance"] = pa.array((grade - low) / (high - low), from_pandas=True)
        return pa.table(columns), errors, noted

    def _all_checks(self) -> str:
        """Return SQL for everything that can be wrong with a row: row, column, got, expected, fix."""
        form, text, fill = self.form, "a text", "fill it in or drop the row"
        identifier = ("a text without white space, or a whole number", "write ids as such strings, or give --text-ids")
        wrong = f"id_error({{}}, NOT {self._parts['text_ids']})"
        checks: list[tuple[str, str, str, str, str]] = []
        if form.query_by_id:
            checks += [
                ("id_key", "is_absent(query_id)", "'nothing'", "an id", fill),
                ("id_key", "NOT is_absent(query_id) AND asked IS NULL", "query_id || ', not among the queries'",
                 ID_OF_A_QUERY, "add the query, or drop its rows"),
            ]  # fmt: skip
        else:
            checks.append(("query_key", "text_error(query) IS NOT NULL", "text_error(query)", text, fill))
        checks += [
            ("id_key", f"{wrong.format('query_id')} IS NOT NULL", wrong.format("query_id"), *identifier),
            ("key", f"{wrong.format('id')} IS NOT NULL", wrong.format("id"), *identifier),
            ("'task'", "NOT is_absent(task) AND json_type(task) <> 'VARCHAR'", "task::VARCHAR", text, fill),
            ("key", "NOT by_id AND NOT (is_absent(text) AND NOT is_absent(title)) AND text_error(text) IS NOT NULL",
             "text_error(text)", f"{text}, or an id" if form.ids else text, fill),
            ("key", "NOT is_absent(title) AND json_type(title) <> 'VARCHAR'", "title::VARCHAR", text, fill),
        ]  # fmt: skip
        if form.ids:
            checks += [
                ("key", "by_id AND has_corpus() AND NOT has_document", "id || ', not in the corpus'",
                 ID_OF_A_DOCUMENT, "add the document to the corpus, or drop it here"),
                ("key", "by_id AND has_document AND is_blank(looked_up)", "id || ', an empty document'", text,
                 "fill the document in, or drop it here"),
                ("key", "by_id AND NOT has_corpus()", "'the id ' || id || ' without a text'", "a text, or a corpus",
                 "give the corpus too (--corpus FILE)"),
            ]  # fmt: skip
        if not self._labels or form.judge == "labels" or form.needs_map:
            checks.append(
                ("val_key", "NOT is_absent(val) AND NOT coalesce(isfinite(number), false)", "val::VARCHAR",
                 "a finite number", "drop the row")
            )  # fmt: skip
        if self.score_map is not None and self._mapped:
            low, high = self.score_map.range
            checks += [
                ("val_key", "val_key IS NOT NULL AND is_absent(val)", "'nothing'", "a score of every text",
                 "score the pairs, or take the labels: --score-map binary"),
                ("val_key", f"number NOT BETWEEN '{low}'::DOUBLE AND '{high}'::DOUBLE", "val::VARCHAR",
                 f"a score in the range of the map {self.score_map}", "state another map"),
            ]  # fmt: skip
        elif self._labels and form.judge == "labels":
            checks.append(
                ("val_key", "number NOT IN (0, 1)", "val::VARCHAR", "0 or 1 under the map binary",
                 "state another map, or a scale")
            )  # fmt: skip
        elif (not self._labels and not self._stated) or ("score_map" in form.options and self.score_map is None):
            unstated = "NOT is_absent(val)" + (" AND NOT has_scale()" if "scale" in form.options else "")
            checks.append(
                ("val_key", unstated, "val::VARCHAR", "a stated scale or score map",
                 "state what they mean: --scale LOW HIGH, or --score-map prob, percent, logit, "
                 "platt:SLOPE,INTERCEPT or binary")
            )  # fmt: skip
        if not form.may_be_empty:
            checks.append(
                ("val_key", "label IS NULL AND own_status IS NULL AND val_key IS NOT NULL AND is_absent(val)",
                 "coalesce(val::VARCHAR, 'nothing')", "a number", fill)
            )  # fmt: skip
        queries = [_check("texts", *check) for check in checks]
        for check in form.checks:
            column = check["column"]
            got = f"get(j, '{column}')::VARCHAR"
            queries.append(_check("rows", f"'{column}'", check["when"], got, check["expected"], check["fix"]))
        return " UNION ALL ".join(queries)


def _look_up(form: Format) -> dict[str, str]:
    """Return SQL for the texts that rows name by id."""
    by_id = "NOT is_absent(items.id) AND is_absent(items.text) AND is_absent(items.title)"
    documents = f"LEFT JOIN documents AS target ON target.id = items.id->>'$' AND {by_id} "
    return {
        "by_id": by_id if form.ids else "false",
        "has_document": "target.id IS NOT NULL" if form.ids else "false",
        "looked_up": "content(target.title, target.text)" if form.ids else "NULL::VARCHAR",
        "asked": "asked.text" if form.query_by_id else "NULL::VARCHAR",
        "joins": (documents if form.ids else "")
        + ("LEFT JOIN queries AS asked ON asked.id = query_id->>'$'" if form.query_by_id else ""),
    }


def _check(table: str, column: str, when: str, got: str, expected: str, fix: str) -> str:
    return (
        f"SELECT row, {column} AS key, coalesce({got}, 'nothing') AS got, {_quoted(expected)}, {_quoted(fix)} "
        f"FROM {table} WHERE {when}"
    )


def _shown(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def _first_key(names: Sequence[str]) -> str:
    """Return SQL for the first of `names` that is a key of the row."""
    quoted = [_quoted(name) for name in names or ("-",)]
    return quoted[0] if len(quoted) == 1 else f"first_key(keys, [{', '.join(quoted)}])"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_numpy(zero_copy_only=False), dtype=np.float64)
