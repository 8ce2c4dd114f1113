"""What a format needs beyond a mapping: functions that a row goes through first (`python` in `formats.toml`)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from bixse.data.row_files.values import FileColumn, InvalidValueError, number_of
from bixse.errors import shorten

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from bixse.errors import InvalidFileError

_ORDERS = {"document-query": "32B_score_probs", "query-document": "32B_score_probs_rev"}
"""Input order -> its column of probabilities. `_rev` is the other order of query and text, not the other scale."""
_STATED = {"document-query": "prob_exp_val", "query-document": "rev_prob_exp_val"}
"""Input order -> the column with the expected grade that was computed from them."""
_GRADES = (1.0, 2.0, 3.0, 4.0, 5.0)
_ROUNDING = 0.02
"""How far a sum of probabilities may pass 1."""
_AGREES = 1e-3
"""Stated and computed expected grades further apart than this are counted."""


def lightblue(number: int, row: dict[str, Any], errors: InvalidFileError, notes: Counter[str]) -> dict[str, Any]:
    """The grade of a row of LightBlue: the mean over both input orders of the expected grade.

    Each order's five probabilities are renormalised (BiXSE paper, section 3). Tokens outside the ten most probable were
    written as 0, so a sum may fall short of 1. A row without probability in one order, or with numbers that are not
    probabilities, has the status "no-probabilities". `doc_id` names the sources of the question's positive texts, the
    same for both siblings, and not the text of the row: it is left aside.
    """
    orders = {order: _five(number, column, row, errors) for order, column in _ORDERS.items()}
    unusable = [f"{_ORDERS[order]}: {why}" for order, shares in orders.items() if (why := _why_unusable(shares))]
    kept = {key: row[key] for key in ("question", "context", "row_id", "dataset_name") if key in row}
    if unusable:
        return kept | {"status": "no-probabilities", "detail": "; ".join(unusable)}
    grades = {order: expected(shares) for order, shares in orders.items()}
    notes["disagreeing"] += any(
        math.isfinite(stated := number_of(row.get(_STATED[order]))) and abs(stated - grade) > _AGREES
        for order, grade in grades.items()
    )
    mean = math.fsum(grades.values()) / len(grades)
    return kept | {"grade": mean, "probabilities": mean_probabilities(list(orders.values())), "orders": orders}


def expected(probabilities: Sequence[float]) -> float:
    """The expected grade of five raw probabilities, renormalised: sum i p(i) / sum p(i) over i = 1 to 5.

    Example:
        >>> expected([0.0, 0.0, 0.25, 0.25, 0.25])
        4.0
    """
    weighted = math.fsum(grade * share for grade, share in zip(_GRADES, probabilities, strict=True))
    return min(max(weighted / math.fsum(probabilities), _GRADES[0]), _GRADES[-1])  # rounding may pass the ends


def mean_probabilities(orders: Sequence[Sequence[float]]) -> list[float]:
    """One distribution for several orders: the mean of the renormalised ones, times the least mass of any order.

    So its expected grade is the mean of theirs.
    """
    sums = [math.fsum(shares) for shares in orders]
    mass = min(1.0, *sums)
    normalised = ([share / total for share in shares] for shares, total in zip(orders, sums, strict=True))
    return [mass * math.fsum(column) / len(orders) for column in zip(*normalised, strict=True)]


def _five(number: int, column: str, row: Mapping[str, Any], errors: InvalidFileError) -> list[float]:
    """The five numbers of a column; NaN where one is not a number."""
    value = row.get(column)
    if isinstance(value, list) and len(value) == len(_GRADES):
        return [number_of(share) for share in value]
    found = "null" if value is None else f"{len(value)} values" if isinstance(value, list) else shorten(value)
    errors.add(number, column, found, "a list of 5 probabilities, of the grades 1 to 5", "drop the row")
    return []


def _why_unusable(probabilities: Sequence[float]) -> str:
    if not all(0 <= share <= 1 + _ROUNDING for share in probabilities):
        return f"{shorten(probabilities)} are not probabilities"
    total = math.fsum(probabilities)
    if not total > 0:
        return "the judge gave none of the grades any probability"
    return f"a sum of {total:g} is above 1" if total > 1 + _ROUNDING else ""


_NUMBER = r"[\s\"'*:=#-]*(?:(?:is|of)\b[\s\"'*:]*)?(\d+)\b"
_FINAL = (
    re.compile(rf"final[ _]?score{_NUMBER}", re.IGNORECASE),
    re.compile(rf"\boverall(?:[ _]score)?{_NUMBER}", re.IGNORECASE),
    re.compile(r"[\"']?\bO\b[\"']?\s*[:=]\s*(\d+)\b"),
    re.compile(rf"\b(?:score|rating|grade|category){_NUMBER}", re.IGNORECASE),
    re.compile(r"\b(?:rate|give|assign|grade|score|judge)\b[^.\n]*?(?<![\d.])(\d)(?![\d.]*\d)", re.IGNORECASE),
)
"""Ways to write the score, the plainest first; the last one in the text counts."""
_OTHER_NUMBERS = re.compile(r"\b\d+\s*(?:to|through|and|-|–)\s*\d+\b|(?:\bout of|/)\s*\d+\b", re.IGNORECASE)
"""The scale itself ("of 0 to 3", "out of 3", "/3"), which is not a score."""
_END = 2000
"""Characters at the end of a prediction that are looked at."""


def umbrela(number: int, row: dict[str, Any], errors: InvalidFileError, notes: Counter[str]) -> dict[str, Any] | None:
    """A judgement of umbrela with texts and ids beside each other, and the grade only where it was read.

    Texts and ids stand in the row, or inside `query` and `passage` as in umbrela's requests. umbrela writes 0 where it
    could not read the prediction and says so by `result_status` 0: such a row has no grade. Files of early versions
    lack `result_status`; there a 0 whose prediction holds no score has no grade either. A judgement is kept where the
    prediction's own last score is another, and counted.
    """
    if "judgment" not in row and "candidates" in row:
        fix = "run umbrela on it first, or give it to `bixse grade --pairs`"
        errors.add(number, "candidates", "a request to judge", "a judgement", fix)
        return None
    told = [value for key in ("prediction", "reasoning") if isinstance(value := row.get(key), str)]
    said = told[0][:200].encode("utf-8", "replace").decode() if told else ""
    found = {"judge": _value(FileColumn("model", needed=False), number, row, errors), "said": said}
    for key, text_keys, id_key, id_keys in (
        ("query", ("text",), "qid", ("qid", "query_id")),
        ("passage", ("segment", "text"), "docid", ("docid", "document_id", "doc_id")),
    ):
        value = row.get(key)
        inner: dict[str, Any] = value if isinstance(value, dict) else {}
        holder = inner["doc"] if isinstance(inner.get("doc"), dict) else inner
        texts = [holder[name] for name in text_keys if name in holder] if inner else [value]
        found[key] = texts[0] if texts else None
        ids = [where[name] for where in (inner, row) for name in id_keys if where.get(name) not in (None, "")]
        found[id_key] = ids[0] if ids else None
    return found | _umbrela_grade(number, row, told, errors, notes)


def _umbrela_grade(
    number: int, row: Mapping[str, Any], told: list[str], errors: InvalidFileError, notes: Counter[str]
) -> dict[str, Any]:
    parsed, stated = row.get("result_status"), row.get("judgment")
    none = {"status": "no-option", "detail": ""}
    if parsed not in (None, 0, 1):
        errors.add(number, "result_status", shorten(parsed), "0 or 1", "write 1 where the prediction was read")
        return none
    if parsed is not None and not parsed:
        return none | {"detail": "umbrela could not read the prediction (result_status 0)"}
    if "judgment" not in row:
        errors.add(number, "judgment", "nothing", "a grade, 0 to 3", "add the key 'judgment'")
        return none
    if stated is None:
        return none | {"detail": "judgment is null"}
    grade = _value(FileColumn("judgment", "number"), number, row, errors)
    if grade is None:
        return none
    score = next((score for text in told if (score := written_score(text)) is not None), None)
    if parsed is None and grade == 0 and score is None:
        return none | {"detail": "0 without a score in the prediction and without result_status"}
    notes["contradicted"] += score is not None and score != grade
    if grade != round(grade):
        return {"status": "off-scale", "detail": f"grade {grade:g}; umbrela's grades are whole numbers"}
    return {"grade": grade}


def written_score(text: str) -> int | None:
    """The score a prediction ends with, or None where no one number can be told; the scale it names is not a score.

    Example:
        >>> written_score("##final score: 2"), written_score("On a scale of 0 to 3, I would rate this passage a 1.")
        (2, 1)
    """
    text = _OTHER_NUMBERS.sub(" ", text[-_END:])
    if text.strip().isdecimal():
        return int(text)
    for pattern in _FINAL:
        if found := pattern.findall(text):
            return int(found[-1])
    return None


def graded_pair(number: int, row: dict[str, Any], errors: InvalidFileError, notes: Counter[str]) -> dict[str, Any]:
    """A graded pair of bixse; its own grade and probabilities, which may be on any scale, are carried along."""
    empty = {key for key, value in row.items() if isinstance(value, float) and math.isnan(value)} - {"relevance"}
    found = {key: value for key, value in row.items() if key not in empty | {"grade", "grade_probs"}}
    return found | {
        "own_grade": _value(FileColumn("grade", "number", needed=False), number, row, errors),
        "probabilities": _value(FileColumn("grade_probs", "numbers", needed=False), number, row, errors),
        "judge": _value(FileColumn("judge", needed=False), number, row, errors),
    }


def _value(column: FileColumn, number: int, row: Mapping[str, Any], errors: InvalidFileError) -> Any:
    """The value of a column in a row; None, and an error, where it cannot be used."""
    try:
        return column.read(row.get(column.name))
    except InvalidValueError as error:
        errors.add(number, column.name, error.got, error.expected, error.fix)
        return None


ROW_FUNCTIONS: Mapping[str, Callable[..., dict[str, Any] | None]] = {
    "lightblue": lightblue,
    "umbrela": umbrela,
    "graded_pair": graded_pair,
}
"""Name in `formats.toml` -> function of the row's number, the row, its errors and what is counted."""
