"""`OwnPairs`: bixse's own graded pairs as a source, so that transforms apply to files of one's own."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.io.hints import number_hint
from bixse.data.sources.judgement_files import Judgement, JudgementSource
from bixse.data.sources.reading import RowErrors, number_of
from bixse.data.sources.tables import TABLES, table_rows
from bixse.errors import shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class OwnPairs(JudgementSource):
    r"""The table that `bixse train` reads: query, document, relevance, and the optional columns.

    A row's own grade, probabilities and judge, which may be on any scale, are carried in `extra`; its relevance is the
    grade on the scale of relevance, 0 to 1.

    Args:
        path: .parquet, .jsonl, .csv or .tsv, or a folder of them.

    Raises:
        InputError: the path is missing.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.jsonl"
        >>> row = {"query": "copy a folder", "document": "copytree", "relevance": 0.75, "grade": 4}
        >>> _ = path.write_text(json.dumps(row))
        >>> [(row.relevance, row.extra) for row in OwnPairs(path).rows()]
        [(0.75, {'grade': 4.0, 'grade_probs': None})]
    """

    name = "pairs"
    file_format = "graded pairs of bixse: query, document, relevance"
    citation = ""
    licence = "yours"
    suffixes = TABLES

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, GradeScale(0, 1))

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        needed = ("query", "document", "relevance")
        optional = ("query_id", "document_id", "task", "grade", "grade_probs", "judge")
        for number, row in table_rows(file, needed, optional, faults):
            before = faults.total
            query, document = (faults.text(number, name, row) for name in ("query", "document"))
            query_id, document_id = (faults.identifier(number, name, _present(row)) for name in optional[:2])
            task, judge = (faults.optional_text(number, name, _present(row)) for name in ("task", "judge"))
            relevance = number_of(row.get("relevance"))
            if not 0.0 <= relevance <= 1.0:
                value = row.get("relevance")
                fix = number_hint(value, "drop the row: an unusable grade is no 0")
                if math.isfinite(relevance):
                    fix = "map grades to [0, 1] first: the source table takes a --scale"
                found = "nothing" if "relevance" not in row else "null" if value is None else shorten(value)
                faults.add(number, "relevance", found, "a number in [0, 1]", fix)
            extra = _own(number, _present(row), faults)
            if query is None or document is None or faults.total > before:
                continue
            yield Judgement(
                query_id or text_id(query), document_id or text_id(document), self.scale, query, document, relevance,
                judge=judge or "", task=task, row=number, extra=extra,
            )  # fmt: skip


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without the NaN that data frames write for what is absent."""
    return {key: value for key, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def _own(number: int, row: Mapping[str, Any], faults: RowErrors) -> dict[str, Any]:
    """The grade and the probabilities of a row, where it has them."""
    found: dict[str, Any] = {"grade": None, "grade_probs": None}
    if row.get("grade") not in (None, ""):
        found["grade"] = faults.number(number, "grade", row["grade"])
    shares = row.get("grade_probs")
    if isinstance(shares, str) and shares:
        with contextlib.suppress(ValueError, RecursionError):
            shares = json.loads(shares)
    if shares not in (None, ""):
        numbers = [number_of(share) for share in shares] if isinstance(shares, list) else [math.nan]
        if not all(map(math.isfinite, numbers)):
            faults.add(number, "grade_probs", shorten(shares), "a list of numbers, one a grade", "write [0.1, 0.9]")
        found["grade_probs"] = numbers
    return found
