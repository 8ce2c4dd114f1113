"""`RowMapping`: rows of any format to judgements, as queries on tables; see `formats.toml` and `mapping.sql`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from bixse.data.io.hints import number_hint
from bixse.data.sources.score_scale import map_scores
from bixse.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.sources.formats import Format
    from bixse.data.sources.score_scale import ScoreMap
    from bixse.relevance import GradeScale

MEMORY_LIMIT = "256MB"
"""Of duckdb; what is larger goes to files in its folder."""
TEXTS_AT_ONCE = 20_000
"""Texts that are taken together."""
_UNSTATED = (
    "a stated scale or score map",
    "state what they mean: --scale LOW HIGH, or --score-map prob, percent, logit, platt:SLOPE,INTERCEPT or binary",
)
_ITEMS = """
CREATE OR REPLACE TEMP TABLE items AS
SELECT row, place, query_key, get(j, query_key) AS query, id_key, get(j, id_key) AS query_id, task,
       {own}, unnest(documents[place], recursive := true)
FROM (SELECT *, unnest(generate_series(1, len(documents))) AS place
      FROM (SELECT * REPLACE (CASE WHEN len(documents) = 0 THEN [document($first)] ELSE documents END AS documents)
            FROM (SELECT row, j, {query_key} AS query_key, {id_key} AS id_key,
                         {task} AS task, {documents} AS documents FROM rows)));
CREATE OR REPLACE TEMP TABLE texts AS
SELECT items.*, number(val) AS number, content(items.title->>'$', items.text->>'$') AS own,
       {by_id} AND NOT is_absent(items.id) AND is_absent(items.text) AND is_absent(items.title) AS by_id,
       found.id IS NOT NULL AS has_document, content(found.title, found.text) AS looked_up,
       asked.text AS asked
FROM items LEFT JOIN documents AS found ON {by_id} AND found.id = items.id->>'$'
LEFT JOIN queries AS asked ON {query_by_id} AND asked.id = query_id->>'$';
"""
_OWN = {
    "status": "get(j, 'status')->>'$'",
    "own_judge": "get(j, 'judge')->>'$'",
    "said": "get(j, 'said')->>'$'",
    "own_detail": "get(j, 'detail')->>'$'",
    "probabilities": "get(j, 'probabilities')::DOUBLE[]",
    "orders": "get(j, 'orders')::VARCHAR",
    "own_grade": "get(j, 'own_grade')::DOUBLE",
}
"""What only the functions of `row_functions.py` put into a row."""
_JUDGEMENTS = """
SELECT row, place, CASE WHEN {text_ids} THEN text_id(query_text) ELSE identifier(query_id, query_text) END AS query_id,
       CASE WHEN {text_ids} THEN text_id(document_text) ELSE identifier(id, document_text) END AS document_id,
       query_text AS query, document_text AS document,
       CASE WHEN state = 'graded' THEN coalesce(given, label) END AS grade, state AS status,
       task->>'$' AS task, label, CASE WHEN {scored} THEN number END AS score,
       CASE WHEN {mapped} AND val IS NOT NULL THEN $teacher ELSE coalesce(nullif(own_judge, ''),
            CASE WHEN label IS NULL THEN $judge ELSE 'binary labels' END) END AS judge,
       coalesce(said, CASE WHEN number IS NOT NULL AND {graded} THEN format('{{:g}}', number) END, '')
           AS text,
       coalesce(own_detail, CASE WHEN state = 'off-scale' THEN 'grade ' || format('{{:g}}', number)
           || '; the scale is ' || format('{{:g}}', $low) || ' to ' || format('{{:g}}', $high)
           WHEN state = $empty THEN 'the grade is empty' END, '') AS detail,
       probabilities, orders, own_grade
FROM (SELECT texts.*, CASE WHEN {query_by_id} THEN asked ELSE query->>'$' END AS query_text,
             CASE WHEN by_id THEN looked_up ELSE own END AS document_text,
             CASE WHEN {labels} AND label IS NOT NULL THEN NULL ELSE number END AS given,
             CASE WHEN status <> 'graded' THEN status
                  WHEN given IS NULL AND label IS NULL THEN $empty
                  WHEN NOT {mapped} AND given NOT BETWEEN $low AND $high THEN 'off-scale' ELSE 'graded' END AS state
      FROM texts WHERE row NOT IN (SELECT row FROM problems WHERE row IS NOT NULL))
ORDER BY row, place
"""


class RowMapping:
    """Maps tables of rows, written as JSON, to judgements and errors.

    Args:
        form: of the rows.
        scale: of the grades.
        stated: whether the user stated it.
        score_map: from a teacher's scores to relevance, where one is stated.
        folder: for what does not fit into memory.
        corpus: whether there is a corpus.
        text_ids: make ids from the texts instead of taking those of the rows.
    """

    def __init__(
        self,
        form: Format,
        scale: GradeScale,
        stated: bool,
        score_map: ScoreMap | None,
        folder: Path,
        corpus: bool,
        text_ids: bool = False,
    ) -> None:
        self.form, self.scale, self.score_map = form, scale, score_map
        for left in folder.glob("work.duckdb*"):
            left.unlink()
        self.database = database = duckdb.connect(folder / "work.duckdb")
        spill = str(folder / "spill").replace("'", "''")
        database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET temp_directory = '{spill}'")
        database.execute("SET autoinstall_known_extensions = false; SET preserve_insertion_order = false")
        database.execute(Path(__file__).with_name("mapping.sql").read_text(encoding="utf-8"))
        for name, value in (("scale_stated", stated), ("has_corpus", corpus)):
            database.execute(f"SET VARIABLE {name} = {value}")
        for name in ("documents", "queries"):
            database.execute(
                f"CREATE TABLE {name} (place BIGINT, row BIGINT, file INTEGER, id VARCHAR, title VARCHAR, text VARCHAR)"
            )
        labels = score_map is not None and score_map.kind == "binary"
        own = _OWN if form.python else {name: f"NULL{_type_of(name)}" for name in _OWN}
        self._parts = {
            "query_key": _first_key(form.query),
            "id_key": _first_key(form.query_id),
            "own": ", ".join(f"{expression} AS {name}" for name, expression in own.items()),
            "task": form.task,
            "documents": form.documents,
            "by_id": form.ids,
            "query_by_id": form.query_by_id,
            "mapped": score_map is not None and not labels,
            "labels": labels,
            "text_ids": text_ids,
            "scored": score_map is not None or form.needs_map,
            "graded": score_map is None and form.python != "graded_pair",
        }
        self._labels, self._stated = labels, stated or form.scale is not None
        self._checks = self._all_checks()

    def add_texts(self, table: str, file: int, texts: Iterator[tuple[int, str, str, str]]) -> None:
        """Take texts that rows name by id: number, id, title and text of each."""
        ((place,),) = self.database.execute(f"SELECT coalesce(max(place), 0) FROM {table}").fetchall()
        while block := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            rows, ids, titles, bodies = zip(*block, strict=True)
            places = range(place + 1, place + 1 + len(block))
            found = pa.table(
                {"place": places, "row": rows, "file": [file] * len(block), "id": ids, "title": titles, "text": bodies}
            )
            self.database.register("block", found)
            self.database.execute(f"INSERT INTO {table} SELECT * FROM block")
            place += len(block)

    def repeated_texts(self, table: str) -> list[tuple[int, int, str]]:
        """Leave the first text of each id; file, row and id of those with another text than the first."""
        self.database.execute(
            f"CREATE OR REPLACE TEMP TABLE firsts AS SELECT id, min(place) AS place FROM {table} GROUP BY id "
            "HAVING count(*) > 1"
        )
        found = self.database.execute(
            f"SELECT later.file, later.row, later.id FROM {table} AS later JOIN firsts ON firsts.id = later.id "
            f"JOIN {table} AS first ON first.place = firsts.place "
            "WHERE (later.title, later.text) IS DISTINCT FROM (first.title, first.text) ORDER BY later.place"
        ).fetchall()
        self.database.execute(
            f"DELETE FROM {table} WHERE EXISTS "
            f"(FROM firsts WHERE firsts.id = {table}.id AND firsts.place <> {table}.place)"
        )
        return [(file, row, identifier) for file, row, identifier in found]

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def map(self, rows: pa.Table, task: str | None, judge: str) -> tuple[pa.Table, list[RowError]]:
        """The judgements of rows, and what cannot be read of them; a row with an error gives no judgement.

        Args:
            rows: columns `row` (number) and `json`.
            task: of rows that do not say it.
            judge: likewise.
        """
        database = self.database
        database.register("json_rows", rows)
        database.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT row, json::JSON AS j FROM json_rows")
        items, looked_up = _ITEMS.format(**self._parts).split(";\n", 1)
        key = self.form.documents.partition("'")[2].partition("'")[0]
        database.execute(items, {"first": key})
        database.execute(looked_up)
        database.execute(f"CREATE OR REPLACE TEMP TABLE problems AS {self._checks}")
        found = database.execute("SELECT DISTINCT * FROM problems ORDER BY row, key").fetchall()
        errors = [
            RowError(row, column, _shown(what), expected, number_hint(what.strip('"'), fix))
            for row, column, what, expected, fix in found
        ]
        values = {"low": float(self.scale.minimum), "high": float(self.scale.maximum), "judge": judge}
        values |= {"teacher": f"teacher scores ({self.score_map})", "empty": self.form.may_be_empty or "no-grade"}
        table = database.sql(_JUDGEMENTS.format(**self._parts), params=values).to_arrow_table()
        return self._finished(table, task), errors

    def _finished(self, table: pa.Table, task: str | None) -> pa.Table:
        """With relevance, with the grade that a teacher's score stands for, and with the task of the file."""
        grade = np.array(table["grade"].to_numpy(zero_copy_only=False), dtype=np.float64)
        if self.score_map is not None and self._parts["mapped"]:
            score = np.array(table["score"].to_numpy(zero_copy_only=False), dtype=np.float64)
            grade = np.where(np.isnan(score), grade, map_scores(score, self.score_map))
        relevance = (grade - self.scale.minimum) / (self.scale.maximum - self.scale.minimum)
        for name, values in (("grade", grade), ("relevance", relevance)):
            column = pa.array(values, mask=np.isnan(values))
            known = name in table.column_names
            table = (
                table.set_column(table.column_names.index(name), name, column)
                if known
                else table.append_column(name, column)
            )
        if task is not None:
            place = table.column_names.index("task")
            table = table.set_column(place, "task", table["task"].cast(pa.string()).fill_null(task))
        return table

    def _all_checks(self) -> str:
        """The query of everything that can be wrong with a row: row, column, found, expected, fix."""
        text, fill = "a text", "fill it in or drop the row"
        identifier = ("a text or a whole number", "write ids as strings")
        by_id, form = self.form.query_by_id, self.form
        checks: list[tuple[str, str, str, str, str]] = []
        if not by_id:
            checks.append(("query_key", "text_error(query) IS NOT NULL", "text_error(query)", text, fill))
        else:
            checks += [
                ("id_key", "is_absent(query_id)", "'nothing'", "an id", fill),
                ("id_key", "NOT is_absent(query_id) AND asked IS NULL", "query_id || ', not among the queries'",
                 "the id of a query", "add the query, or drop its rows"),
            ]  # fmt: skip
        checks += [
            ("id_key", "id_error(query_id) IS NOT NULL", "id_error(query_id)", *identifier),
            ("key", "id_error(id) IS NOT NULL", "id_error(id)", *identifier),
            ("'task'", "NOT is_absent(task) AND json_type(task) <> 'VARCHAR'", "task::VARCHAR", text, fill),
            ("key", "NOT by_id AND NOT (is_absent(text) AND NOT is_absent(title)) AND text_error(text) IS NOT NULL",
             "text_error(text)", f"{text}, or an id" if form.ids else text, fill),
            ("key", "NOT is_absent(title) AND json_type(title) <> 'VARCHAR'", "title::VARCHAR", text, fill),
            ("key", "by_id AND has_corpus() AND NOT has_document", "id || ', not in the corpus'",
             "an id of the corpus", "add the document to the corpus, or drop it here"),
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
        if self._parts["mapped"] and self.score_map is not None:
            low, high = self.score_map.range
            slack = 1e-6 * (high - low) if np.isfinite(high) else 0.0
            checks += [
                ("val_key", "val_key IS NOT NULL AND is_absent(val)", "'nothing'", "a score of every text",
                 "score the pairs, or take the labels: --score-map binary"),
                ("val_key", f"number NOT BETWEEN '{low - slack}'::DOUBLE AND '{high + slack}'::DOUBLE", "val::VARCHAR",
                 f"{low:g} to {high:g} under the map {self.score_map}", "state another map"),
            ]  # fmt: skip
        elif self._labels and form.judge == "labels":
            expected = ("0 or 1 under the map binary", "state another map, or a scale")
            checks.append(("val_key", "number NOT IN (0, 1)", "val::VARCHAR", *expected))
        elif (not self._labels and not self._stated) or ("score_map" in form.options and self.score_map is None):
            unstated = "NOT is_absent(val)" + (" AND NOT has_scale()" if "scale" in form.options else "")
            checks.append(("val_key", unstated, "val::VARCHAR", *_UNSTATED))
        if not form.may_be_empty:
            checks.append(
                ("val_key", "label IS NULL AND status IS NULL AND val_key IS NOT NULL AND is_absent(val)",
                 "coalesce(val::VARCHAR, 'nothing')", "a number", fill)
            )  # fmt: skip
        queries = [_check("texts", *check) for check in checks]
        queries += [
            _check("rows", f"'{check['column']}'", check["when"], f"get(j, '{check['column']}')::VARCHAR",
                   check["expected"], check["fix"])
            for check in form.checks
        ]  # fmt: skip
        return " UNION ALL ".join(queries)


def _check(table: str, column: str, when: str, found: str, expected: str, fix: str) -> str:
    quoted = ("'" + words.replace("'", "''") + "'" for words in (expected, fix))
    return (
        f"SELECT row, {column} AS key, coalesce({found}, 'nothing') AS found, {', '.join(quoted)} "
        f"FROM {table} WHERE {when}"
    )


def _shown(found: str) -> str:
    return found if len(found) <= 60 else f"{found[:57]}..."


def _first_key(names: Sequence[str]) -> str:
    """SQL for the first of some keys that a row has."""
    quoted = ["'" + name.replace("'", "''") + "'" for name in names or ("-",)]
    return quoted[0] if len(quoted) == 1 else f"first_key(j, [{', '.join(quoted)}])"


def _type_of(name: str) -> str:
    return {"probabilities": "::DOUBLE[]", "own_grade": "::DOUBLE"}.get(name, "::VARCHAR")
