"""LightBlue's reranker data: pairs graded 1 to 5 by a 32B model in both input orders, with the probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.sources.judgement_files import Judgement, JudgementSource
from bixse.data.sources.reading import RowErrors, json_rows, kind_of, number_of, parquet_rows
from bixse.errors import shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

ORDERS = {"document-query": "32B_score_probs", "query-document": "32B_score_probs_rev"}
"""Input order -> its column of probabilities. `_rev` is the other order of query and text, not the other scale."""
STATED = {"document-query": "prob_exp_val", "query-document": "rev_prob_exp_val"}
"""Input order -> the column with the expected grade that was computed from them."""
_GRADES = (1.0, 2.0, 3.0, 4.0, 5.0)
_NEEDED = ("question", "context", *ORDERS.values())
_OPTIONAL = ("row_id", "dataset_name", "language", "label", "added_neg", "doc_id", *STATED.values())
_ROUNDING = 0.02
"""How far a sum of probabilities may pass 1 before they are no probabilities."""
_AGREES = 1e-3
"""Stated and computed expected grades further apart than this are counted."""


class LightBlueFiles(JudgementSource):
    r"""`lightblue/reranker_continuous_filt_max7_train`: Parquet shards in a folder, one shard, or JSONL.

    The grade is the mean over both orders of the expected grade, each order's five probabilities renormalised (BiXSE
    paper, section 3; relevance = (grade - 1) / 4). Tokens outside the ten most probable were written as 0, so a sum may
    fall short of 1: the raw probabilities of each order are in `orders`. A row without probability in one order, or
    with numbers that are no probabilities, has the status "no-probabilities".

    Rows of one `row_id` are judgements of one question and share the query id. `doc_id` names the sources of the
    question's positive texts, the same for both siblings, and not the text of the row: documents are named by their
    text, and `doc_id` is carried in `extra`.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> row = {"question": "copy a folder", "context": "shutil.copytree", "row_id": 7, "dataset_name": "pydocs",
        ...        "32B_score_probs": [0, 0, 0, 0.5, 0.5], "32B_score_probs_rev": [0, 0, 0, 0.25, 0.25]}
        >>> _ = path.write_text(json.dumps(row) + "\n")
        >>> [(row.query_id, row.task, row.grade, row.relevance) for row in LightBlueFiles(path).rows()]
        [('7', 'pydocs', 4.5, 0.875)]
    """

    name = "lightblue"
    file_format = "Parquet or JSONL of LightBlue: question, context, 32B_score_probs, 32B_score_probs_rev"
    citation = "huggingface.co/datasets/lightblue/reranker_continuous_filt_max7_train, Apache-2.0"
    suffixes = (".parquet", ".jsonl")
    licence = "Apache-2.0"
    instructions = "paper"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, GradeScale(1, 5))

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        is_parquet = kind_of(file) == ".parquet"
        rows = parquet_rows(file, _NEEDED, _OPTIONAL, faults) if is_parquet else json_rows(file, faults)
        for number, row in rows:
            before = faults.total
            query, document = faults.text(number, "question", row), faults.text(number, "context", row)
            orders = {order: _five(number, column, row, faults) for order, column in ORDERS.items()}
            row_id = faults.identifier(number, "row_id", row)
            task = faults.optional_text(number, "dataset_name", row)
            faults.optional_text(number, "language", row)
            if query is None or document is None or faults.total > before:
                continue
            yield self._judgement(number, row, query, document, orders, row_id, task)

    def _judgement(
        self,
        number: int,
        row: Mapping[str, Any],
        query: str,
        document: str,
        orders: Mapping[str, tuple[float, ...]],
        row_id: str | None,
        task: str | None,
    ) -> Judgement:
        unusable = [f"{ORDERS[order]}: {why}" for order, shares in orders.items() if (why := _why_unusable(shares))]
        grades = {} if unusable else {order: expected(shares) for order, shares in orders.items()}
        self.notes["disagreeing"] += any(
            math.isfinite(stated := number_of(row.get(STATED[order]))) and abs(stated - grade) > _AGREES
            for order, grade in grades.items()
        )
        named = ("language", "label", "added_neg", "doc_id")
        return Judgement(
            row_id or text_id(query),
            text_id(document),
            self.scale,
            query,
            document,
            math.fsum(grades.values()) / len(grades) if grades else None,
            "no-probabilities" if unusable else "graded",
            () if unusable else mean_probabilities(list(orders.values())),
            () if unusable else tuple(orders.items()),
            judge="Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4",
            task=task,
            row_group=row_id,
            detail="; ".join(unusable),
            row=number,
            extra={key: row[key] for key in named if row.get(key) is not None},
        )

    def warnings(self) -> list[str]:
        """Also how many rows state an expected grade that their probabilities do not give."""
        found = super().warnings()
        if count := self.notes["disagreeing"]:
            found.append(
                f"{self.path.name}: {count} rows state an expected grade that is off by more than {_AGREES:g} from "
                "their probabilities; the probabilities were taken"
            )
        return found


def expected(probabilities: Sequence[float]) -> float:
    """The expected grade of five raw probabilities, renormalised: sum i p(i) / sum p(i) over i = 1 to 5.

    Example:
        >>> expected([0.0, 0.0, 0.25, 0.25, 0.25])
        4.0
    """
    weighted = math.fsum(grade * share for grade, share in zip(_GRADES, probabilities, strict=True))
    return min(max(weighted / math.fsum(probabilities), _GRADES[0]), _GRADES[-1])  # rounding may pass the ends


def mean_probabilities(orders: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """One distribution for several orders: the mean of the renormalised ones, times the least mass of any order.

    So its expected grade is the mean of theirs.
    """
    sums = [math.fsum(shares) for shares in orders]
    mass = min(1.0, *sums)
    normalised = ([share / total for share in shares] for shares, total in zip(orders, sums, strict=True))
    columns = zip(*normalised, strict=True)
    return tuple(mass * math.fsum(column) / len(orders) for column in columns)


def _five(number: int, column: str, row: Mapping[str, Any], faults: RowErrors) -> tuple[float, ...]:
    """The five numbers of a column; NaN where one is none; a fault where it is no list of five."""
    value = row.get(column)
    if isinstance(value, list) and len(value) == len(_GRADES):
        return tuple(number_of(share) for share in value)
    found = "null" if value is None else f"{len(value)} values" if isinstance(value, list) else shorten(value)
    faults.add(number, column, found, "a list of 5 probabilities, of the grades 1 to 5", "drop the row")
    return ()


def _why_unusable(probabilities: Sequence[float]) -> str:
    """Why numbers are no probabilities, or ""."""
    if not all(0 <= share <= 1 + _ROUNDING for share in probabilities):
        return f"{shorten(list(probabilities))} are no probabilities"
    total = math.fsum(probabilities)
    if not total > 0:
        return "the judge gave none of the grades any probability"
    return f"a sum of {total:g} is above 1" if total > 1 + _ROUNDING else ""
