"""Tables of sentence-transformers: an anchor with a positive and negatives, or with a positive and a label."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.io.parquet import column_names
from bixse.data.sources.binary_labels import BINARY, labelled
from bixse.data.sources.judgement_files import Judgement, JudgementSource, placed
from bixse.data.sources.reading import RowErrors, kind_of
from bixse.data.sources.score_scale import ScoreMap, parse_score_map
from bixse.data.sources.tables import TABLES, table_rows
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.relevance import GradeScale

ANCHORS = ("anchor", "query", "question", "sentence1", "sentence_A", "text1")
"""Names of the column of queries."""
POSITIVES = ("positive", "pos", "answer", "document", "passage", "sentence2", "sentence_B", "text2")
"""Names of the column of documents."""
LABELS = ("label", "score", "labels", "scores")
"""Names of the column of grades."""
_NEGATIVE = re.compile(r"(?:negative|neg)(?:_?\d+)?")
"""Names of columns of negatives: negative, negative_1, negative_2, ..."""


class TupleFiles(JudgementSource):
    r"""Triplets, n-tuples and labelled pairs as sentence-transformers' losses take them.

    Columns: one of `ANCHORS`, one of `POSITIVES`, then either `negative`, `negative_1`, ... (labels: 1 for the
    positive, 0 for the negatives), or a label, or both with a list of scores, one for the positive and one for each
    negative. What labels mean must be stated: the scale of grades, or the map of a teacher's scores. A single label
    beside negatives is a difference of two scores (Margin MSE), which says nothing absolute: it is a fault.

    Args:
        path: .jsonl, .csv, .tsv or .parquet, or a folder of them.
        scale: of the labels.
        score_map: of the labels, in the place of a scale.

    Raises:
        InputError: the path is missing, no such map, or both a scale and a map.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "nli.csv"
        >>> _ = path.write_text("anchor,positive,negative\ncopy a folder,copytree,walk\n")
        >>> [(row.document, row.relevance) for row in TupleFiles(path).rows()]
        [('copytree', 1.0), ('walk', 0.0)]
    """

    name = "sentence-transformers"
    file_format = "table of sentence-transformers: anchor, positive, negative, negative_1, ..., or label"
    citation = "Reimers and Gurevych 2019, arXiv:1908.10084; sbert.net, dataset overview"
    suffixes = TABLES

    def __init__(
        self, path: str | Path, scale: GradeScale | None = None, score_map: ScoreMap | str | None = None
    ) -> None:
        super().__init__(path, scale or BINARY)
        if scale is not None and score_map is not None:
            raise InputError(f"{path}: got a scale and a score map; expected one of them; fix: leave one out")
        self.stated = scale is not None
        self.score_map = parse_score_map(score_map) if isinstance(score_map, str) else score_map

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also the map."""
        return {**super().settings, "map": str(self.score_map) if self.score_map else None, "stated": self.stated}

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        named = _columns(file, faults)
        for number, row in table_rows(file, (), tuple(named), faults):
            before = faults.total
            anchor = next((key for key in ANCHORS if key in row), ANCHORS[0])
            positive = next((key for key in POSITIVES if key in row), POSITIVES[0])
            negatives = [key for key in row if _NEGATIVE.fullmatch(key) and row[key] is not None]
            query = faults.text(number, anchor, row)
            documents = [faults.text(number, key, row) for key in (positive, *negatives)]
            label = next((key for key in LABELS if row.get(key) is not None), None)
            if label is None and not negatives and faults.total == before:
                expected = "a negative or a label beside anchor and positive"
                fix = "mine negatives first (`bixse mine`), or convert the pairs with the source table"
                faults.add(number, None, f"columns {shorten(', '.join(row), 80)}", expected, fix)
            grades = self._grades(number, label, row, len(documents), faults) if label is not None else []
            if query is None or faults.total > before:
                continue
            for place, document in enumerate(documents):
                if document is not None and label is None:
                    yield labelled(query, document, place == 0, number)
                elif document is not None:
                    yield self._judgement(number, query, document, grades[place])

    def _grades(self, number: int, key: str, row: Mapping[str, Any], count: int, faults: RowErrors) -> list[float]:
        """One finite number a document; fewer where there was a fault."""
        value = row[key]
        if not self.stated and self.score_map is None:
            fix = "state what they mean: --scale 0 1 (LOW HIGH), or --score-map prob, percent, logit, platt:..."
            faults.add(number, key, shorten(value), "a stated scale or score map of the labels", fix)
            return []
        values = value if isinstance(value, list) else [value]
        if len(values) != count:
            found = f"one label for {count} documents" if not isinstance(value, list) else f"{len(values)} labels"
            fix = "a difference of scores (Margin MSE) is no grade: give the scores themselves"
            faults.add(number, key, found, f"a list of {count} scores, the positive's first", fix)
            return []
        found_numbers = [faults.number(number, key, item) for item in values]
        grades = [item for item in found_numbers if item is not None]
        for grade in grades if self.score_map is not None and self.score_map.kind != "binary" else ():
            if self.score_map is not None and not self.score_map.takes(grade):
                lowest, highest = self.score_map.range
                expected = f"{lowest:g} to {highest:g} under the map {self.score_map}"
                faults.add(number, key, f"{grade:g}", expected, "state another map")
        if self.score_map is not None and self.score_map.kind == "binary" and not set(grades) <= {0.0, 1.0}:
            faults.add(number, key, shorten(value), "0 or 1 under the map binary", "state another map, or a scale")
        return grades

    def _judgement(self, number: int, query: str, document: str, stated: float) -> Judgement:
        if self.score_map is not None and self.score_map.kind != "binary":
            grade, status, detail = self.score_map.relevance(stated), "graded", ""
            judge = f"teacher scores ({self.score_map})"
        else:
            found, status, detail = placed(stated, self.scale)
            return Judgement(
                text_id(query), text_id(document), self.scale, query, document, found, status,
                judge="labels", text=f"{stated:g}", detail=detail, row_group=str(number), row=number,
            )  # fmt: skip
        return Judgement(
            text_id(query), text_id(document), self.scale, query, document, grade, status,
            judge=judge, detail=detail, row_group=str(number), row=number, extra={"score": stated},
        )  # fmt: skip


def _columns(file: Path, faults: RowErrors) -> list[str]:
    """The columns of a Parquet file that are read; any name elsewhere."""
    if kind_of(file) != ".parquet":
        return []
    try:
        names = column_names(file)
    except InputError:
        return []  # the reading itself says what is wrong
    known = {*ANCHORS, *POSITIVES, *LABELS}
    return [name for name in names if name in known or _NEGATIVE.fullmatch(name)]
