"""A plain table of pairs with a grade, columns named by the user; and WANDS, which is such a table in three files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.sources.corpus import need_scale
from bixse.data.sources.judgement_files import Judgement, JudgementSource, placed
from bixse.data.sources.tables import TABLES, table_rows
from bixse.errors import InputError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bixse.data.sources.reading import RowErrors


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a table."""

    query: str = "query"
    """Texts of queries."""
    document: str = "document"
    """Texts of documents."""
    grade: str = "grade"
    """Grades."""
    query_id: str = "query_id"
    """Ids of queries; made from the texts where the column is absent."""
    document_id: str = "document_id"
    """Ids of documents; likewise."""
    task: str = "task"
    """Tasks; may be absent."""


class TableFiles(JudgementSource):
    r"""CSV, TSV, JSONL or Parquet with a query, a document and a grade on a stated scale in each row.

    Args:
        path: the file, or a folder of them.
        scale: of the grades.
        columns: what they are called.

    Raises:
        InputError: the path is missing, or no scale is stated.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clicks.csv"
        >>> _ = path.write_text("search,title,stars\ncopy a folder,copytree,4\n")
        >>> columns = TableColumns(query="search", document="title", grade="stars")
        >>> [(row.document, row.relevance) for row in TableFiles(path, GradeScale(1, 5), columns).rows()]
        [('copytree', 0.75)]
    """

    name = "table"
    file_format = "table of pairs: a query, a document and a grade in each row"
    citation = ""
    licence = "yours"
    suffixes = TABLES

    def __init__(self, path: str | Path, scale: GradeScale | None, columns: TableColumns | None = None) -> None:
        super().__init__(path, need_scale(path, scale))
        self.columns = columns or TableColumns()
        names = [getattr(self.columns, column.name) for column in fields(TableColumns)]
        if len(set(names)) < len(names):
            raise InputError(f"columns: got {', '.join(names)}; expected a column of its own for each; fix: rename one")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also the columns."""
        return {**super().settings, "columns": {c.name: getattr(self.columns, c.name) for c in fields(TableColumns)}}

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        names = self.columns
        needed, optional = (names.query, names.document, names.grade), (names.query_id, names.document_id, names.task)
        for number, row in table_rows(file, needed, optional, faults):
            before = faults.total
            query, document = (faults.text(number, name, row) for name in (names.query, names.document))
            query_id, document_id = (faults.identifier(number, name, row) for name in optional[:2])
            task = faults.optional_text(number, names.task, row)
            stated = _grade(number, names.grade, row, faults)
            if query is None or document is None or faults.total > before:
                continue
            if stated is None:
                grade, status, detail = None, "no-grade", "the grade is empty"
            else:
                grade, status, detail = placed(stated, self.scale)
            yield Judgement(
                query_id or text_id(query), document_id or text_id(document), self.scale, query, document, grade,
                status, judge="table", task=task, text="" if stated is None else f"{stated:g}", detail=detail,
                row=number,
            )  # fmt: skip


def _grade(number: int, key: str, row: Mapping[str, Any], faults: RowErrors) -> float | None:
    """The grade of a row; None where it is empty, and a fault where it is no number or the key is not there."""
    if key not in row:
        faults.add(number, key, "nothing", "a grade", f"add the key {key!r}")
        return None
    value = row[key]
    return None if value is None or value == "" else faults.number(number, key, value)


WANDS_LABELS = {"exact": 2.0, "partial": 1.0, "irrelevant": 0.0}
"""WANDS' labels as grades."""


class WandsFolder(JudgementSource):
    """Wayfair's product search data: `query.csv`, `product.csv`, `label.csv`, tab-separated, in a folder.

    Labels Exact, Partial and Irrelevant are the grades 2, 1 and 0. A product's text is its name, then its description.
    Queries and products (43,000) are held in memory. A pair that was judged several times has a row for each.

    Args:
        path: the folder.

    Raises:
        InputError: a file is missing.
    """

    name = "wands"
    file_format = "folder of WANDS: query.csv, product.csv, label.csv (tab-separated)"
    citation = "Chen et al. 2022, WANDS, ECIR; github.com/wayfair/WANDS"
    licence = "MIT"

    def __init__(self, path: str | Path) -> None:
        self._texts = {name: Path(path) / f"{name}.csv" for name in ("query", "product")}
        super().__init__(Path(path) / "label.csv", GradeScale(0, 2))
        for file in self._texts.values():
            if not file.is_file():
                raise InputError(f"{file}: got no such file; expected it beside label.csv; fix: add it")
        self._queries: dict[str, str] = {}
        self._products: dict[str, str] = {}

    def inputs(self) -> dict[str, Path]:
        """All three files."""
        return {file.name: file for file in (self.path, *self._texts.values())}

    def prepare(self, faults_of: Callable[[Path], RowErrors]) -> None:
        """Read queries and products."""
        self._queries, self._products = {}, {}
        for name, (id_key, text_key, more) in _WANDS_KEYS.items():
            file, found = self._texts[name], self._queries if name == "query" else self._products
            faults = faults_of(file)
            for number, row in _tab_separated(file, (id_key, text_key), more, faults):
                before = faults.total
                identifier, text = faults.identifier(number, id_key, row), faults.text(number, text_key, row)
                rest = [value for key in more if (value := faults.optional_text(number, key, row))]
                if identifier is None and faults.total == before:
                    faults.add(number, id_key, "nothing", "an id", "fill it in or drop the row")
                if identifier is not None and text is not None and faults.total == before:
                    content = " ".join([text, *rest])
                    if found.setdefault(identifier, content) != content:
                        fix = "drop the repeat"
                        faults.add(number, id_key, f"{shorten(identifier)} with two texts", "one text an id", fix)

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        for number, row in _tab_separated(file, ("query_id", "product_id", "label"), (), faults):
            ids = {key: faults.identifier(number, key, row) for key in ("query_id", "product_id")}
            label = faults.text(number, "label", row)
            texts = []
            for (key, identifier), known in zip(ids.items(), (self._queries, self._products), strict=True):
                texts.append(known.get(identifier or ""))
                if texts[-1] is None:
                    faults.add(number, key, shorten(identifier), "an id of the other files", "add it or drop the row")
            query, document = texts
            grade = WANDS_LABELS.get((label or "").strip().lower())
            if label is not None and grade is None:
                expected = "Exact, Partial or Irrelevant"
                faults.add(number, "label", shorten(label), expected, "correct the label or drop the row")
            query_id, product_id = ids.values()
            if query is not None and document is not None and grade is not None and query_id and product_id:
                yield Judgement(
                    query_id, product_id, self.scale, query, document, grade,
                    judge="WANDS", task="wands", text=label or "", row=number,
                )  # fmt: skip


_WANDS_KEYS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "query": ("query_id", "query", ()),
    "product": ("product_id", "product_name", ("product_description",)),
}


def _tab_separated(
    file: Path, needed: tuple[str, ...], optional: tuple[str, ...], faults: RowErrors
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a .csv that is separated by tabs."""
    from bixse.data.sources.tables import csv_rows

    return csv_rows(file, needed, optional, faults, "\t")
