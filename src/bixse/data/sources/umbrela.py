"""Judgements of umbrela: JSONL with the prompt, the prediction and the grade that was read out of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.sources.judgement_files import Judgement, JudgementSource, placed
from bixse.data.sources.reading import RowErrors, json_rows
from bixse.errors import shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
"""The scale itself ("of 0 to 3", "out of 3", "/3"), which is no score."""
_END = 2000
"""Characters at the end of a prediction that are looked at."""
_QUERY_IDS = ("qid", "query_id")
_DOCUMENT_IDS = ("docid", "document_id", "doc_id")


class UmbrelaFile(JudgementSource):
    r"""Output of `umbrela judge`, a JSON object per line.

    Keys: `query` and `passage` (texts, or the objects of umbrela's requests, `{"text", "qid"}` and
    `{"doc": {"segment"}, "docid"}`), `judgment`, `result_status`, `model`, `prediction`, `reasoning`; ids also as `qid`
    and `docid` beside them. umbrela writes 0 where it could not read the prediction and says so by `result_status` 0:
    such a row has no grade. Files of early versions lack `result_status`; there a 0 whose prediction holds no score has
    none either. A judgement is kept where the prediction's own last score is another, and counted.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "judged.jsonl"
        >>> row = {"query": "copy a folder", "passage": "shutil.copytree", "judgment": 3, "result_status": 1}
        >>> _ = path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "judgment": 0, "result_status": 0}))
        >>> [(judgement.grade, judgement.status) for judgement in UmbrelaFile(path).rows()]
        [(3.0, 'graded'), (None, 'no-option')]
    """

    name = "umbrela"
    file_format = "JSONL of umbrela: query, passage, judgment, result_status"
    citation = "Upadhyay et al. 2024, UMBRELA, arXiv:2406.06519; github.com/castorini/umbrela"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, GradeScale(0, 3))

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        for number, row in json_rows(file, faults):
            before = faults.total
            if "judgment" not in row and "candidates" in row:
                fix = "run umbrela on it first, or give it to `bixse grade --pairs`"
                faults.add(number, "candidates", "a request to judge", "a judgement", fix)
                continue
            query_id, query = _side(number, "query", row, ("text",), _QUERY_IDS, faults)
            document_id, document = _side(number, "passage", row, ("segment", "text"), _DOCUMENT_IDS, faults)
            model = faults.optional_text(number, "model", row)
            told = [value for key in ("prediction", "reasoning") if isinstance(value := row.get(key), str)]
            grade, status, detail = self._grade(number, row, told, faults)
            if query is None or document is None or faults.total > before:
                continue
            yield Judgement(
                query_id or text_id(query),
                document_id or text_id(document),
                self.scale,
                query,
                document,
                grade,
                status,
                judge=model or "umbrela",
                text=told[0][:200].encode("utf-8", "replace").decode() if told else "",
                detail=detail,
                row=number,
            )

    def _grade(
        self, number: int, row: Mapping[str, Any], told: list[str], faults: RowErrors
    ) -> tuple[float | None, str, str]:
        """Grade, status and detail; faults where the row says neither."""
        parsed = row.get("result_status")
        if parsed not in (None, 0, 1):
            faults.add(number, "result_status", shorten(parsed), "0 or 1", "write 1 where the prediction was read")
            return None, "no-option", ""
        if parsed == 0 and parsed is not None:
            return None, "no-option", "umbrela could not read the prediction (result_status 0)"
        if "judgment" not in row:
            faults.add(number, "judgment", "nothing", "a grade, 0 to 3", "add the key 'judgment'")
            return None, "no-option", ""
        if row["judgment"] is None:
            return None, "no-option", "judgment is null"
        stated = faults.number(number, "judgment", row["judgment"])
        if stated is None:
            return None, "no-option", ""
        found = next((score for text in told if (score := written_score(text)) is not None), None)
        if parsed is None and stated == 0 and found is None:
            return None, "no-option", "0 without a score in the prediction and without result_status"
        self.notes["contradicted"] += found is not None and found != stated
        if stated != round(stated):
            return None, "off-scale", f"grade {stated:g}; umbrela's grades are whole numbers"
        return placed(stated, self.scale)

    def warnings(self) -> list[str]:
        """Also how many predictions say another score than the judgement."""
        found = super().warnings()
        if count := self.notes["contradicted"]:
            found.append(
                f"{self.path.name}: the prediction's own score is another than the judgement in {count} rows; the "
                "judgement was taken; look at them, or grade the pairs again"
            )
        return found


def written_score(text: str) -> int | None:
    """The score a prediction ends with, or None where no one number can be told; the scale it names is no score.

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


def _side(
    number: int,
    key: str,
    row: Mapping[str, Any],
    text_keys: tuple[str, ...],
    id_keys: tuple[str, ...],
    faults: RowErrors,
) -> tuple[str | None, str | None]:
    """Id and text of a row's query or passage, written flat or as in umbrela's requests."""
    value = row.get(key)
    inner: Mapping[str, Any] = value if isinstance(value, dict) else {}
    holder: Mapping[str, Any] = inner["doc"] if isinstance(inner.get("doc"), dict) else inner
    text_key = next((name for name in text_keys if name in holder), text_keys[0])
    text = faults.text(number, text_key, holder) if inner else faults.text(number, key, row)
    places = [(name, where) for where in (inner, row) for name in id_keys if where.get(name) not in (None, "")]
    return (faults.identifier(number, places[0][0], places[0][1]) if places else None), text
