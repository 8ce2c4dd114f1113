from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bixse.data.graded_pairs import text_id
from bixse.data.sources import UmbrelaFile
from bixse.data.sources.umbrela import written_score
from bixse.errors import InputError, InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

ROW = {
    "model": "gpt-4o",
    "query": "how long is the life of a flea",
    "passage": "A flea lives for weeks to months.",
    "prompt": "Given a query and a passage ...",
    "prediction": "##final score: 3",
    "judgment": 3,
    "result_status": 1,
}


def write(folder: Path, *rows: Any, raw: str = "") -> Path:
    path = folder / "judged.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + raw, encoding="utf-8")
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(InvalidFileError) as caught:
        list(UmbrelaFile(path).rows())
    assert str(path) in str(caught.value)
    assert all("; expected " in str(fault) and "; fix: " in str(fault) for fault in caught.value.errors)
    return [str(fault) for fault in caught.value.errors]


def test_a_missing_file_a_folder_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got no such file"):
        UmbrelaFile(tmp_path / "judged.jsonl")
    with pytest.raises(InputError, match="got a folder"):
        UmbrelaFile(tmp_path)
    with pytest.raises(InputError, match="got no rows"):
        list(UmbrelaFile(write(tmp_path)).rows())


def test_a_failed_parse_is_no_zero(tmp_path: Path) -> None:
    broken = {**ROW, "prediction": "I cannot say.", "judgment": 0, "result_status": 0}
    source = UmbrelaFile(write(tmp_path, ROW, broken, {**ROW, "judgment": 0, "prediction": "##final score: 0"}))
    found = [(row.grade, row.status) for row in source.rows()]
    assert found == [(3.0, "graded"), (None, "no-option"), (0.0, "graded")]
    assert source.warnings() == ["judged.jsonl: 1 of 3 judgements carry no grade (1 no-option)"]


@pytest.mark.parametrize(("prediction", "status"), [("I cannot say.", "no-option"), ("##final score: 0", "graded")])
def test_a_zero_of_the_early_format_needs_a_score_in_its_text(tmp_path: Path, prediction: str, status: str) -> None:
    row = {key: value for key, value in ROW.items() if key != "result_status"}
    (found,) = UmbrelaFile(write(tmp_path, {**row, "judgment": 0, "prediction": prediction})).rows()
    assert found.status == status
    (found,) = UmbrelaFile(write(tmp_path, {**row, "judgment": 2, "prediction": prediction})).rows()
    assert found.grade == 2.0


@pytest.mark.parametrize("stated", [4, 10, -1, 5.0, 1.5])
def test_impossible_grades_are_off_the_scale_and_never_clipped(tmp_path: Path, stated: float) -> None:
    (found,) = UmbrelaFile(write(tmp_path, {**ROW, "judgment": stated})).rows()
    assert (found.grade, found.status) == (None, "off-scale")
    assert f"{stated:g}" in found.detail


def test_texts_ids_judge_and_row(tmp_path: Path) -> None:
    (found,) = UmbrelaFile(write(tmp_path, ROW)).rows()
    assert (found.query, found.document, found.judge, found.row) == (ROW["query"], ROW["passage"], "gpt-4o", 1)
    assert (found.query_id, found.document_id) == (text_id(found.query or ""), text_id(found.document or ""))
    assert (found.relevance, found.text) == (1.0, "##final score: 3")


@pytest.mark.parametrize(
    "nested",
    [
        {"query": {"text": "q", "qid": 1037798}, "passage": {"doc": {"segment": "p"}, "docid": "7065735"}},
        {"query": {"text": "q", "qid": "1037798"}, "passage": {"segment": "p", "docid": "7065735"}},
        {"query": "q", "passage": "p", "qid": "1037798", "docid": "7065735"},
    ],
)
def test_ids_of_the_request_form(tmp_path: Path, nested: dict[str, Any]) -> None:
    (found,) = UmbrelaFile(write(tmp_path, {**ROW, **nested})).rows()
    assert (found.query_id, found.query, found.document_id, found.document) == ("1037798", "q", "7065735", "p")


def test_a_request_is_no_judgement(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": {"text": "q", "qid": "1"}, "candidates": [{"doc": {"segment": "p"}}]})
    assert faults(path) == [
        "row 1, column 'candidates': got a request to judge; expected a judgement; "
        "fix: run umbrela on it first, or give it to `bixse grade --pairs`"
    ]


def test_all_faults_are_told_with_row_and_key_and_counted(tmp_path: Path) -> None:
    rows: list[Any] = [
        {**ROW, "query": None},
        {key: value for key, value in ROW.items() if key != "judgment"},
        {**ROW, "judgment": "high"},
        {**ROW, "result_status": "ok"},
        {**ROW, "passage": {"docid": "d"}},
        {**ROW, "query": {"text": "q", "qid": [1]}},
        {**ROW, "passage": "half of a pair: \ud83d"},
        [1],
        {**ROW, "judgment": True},
    ]
    found = faults(write(tmp_path, *rows, raw="{broken\n"))
    assert [fault.partition(":")[0] for fault in found] == [
        "row 1, column 'query'",
        "row 2, column 'judgment'",
        "row 3, column 'judgment'",
        "row 4, column 'result_status'",
        "row 5, column 'segment'",
        "row 6, column 'qid'",
        "row 7, column 'passage'",
        "row 8",
        "row 9, column 'judgment'",
        "row 10",
    ]
    with pytest.raises(InvalidFileError, match="30 errors") as caught:
        list(UmbrelaFile(write(tmp_path, *[{**ROW, "judgment": "high"}] * 30)).rows())
    assert len(caught.value.errors) == 20


def test_contradicting_predictions_are_counted_and_the_judgement_kept(tmp_path: Path) -> None:
    wrong = {**ROW, "prediction": "On a scale of 0 to 3, I would rate this passage a 1."}
    source = UmbrelaFile(write(tmp_path, ROW, wrong, {**ROW, "prediction": "no number"}))
    assert [row.grade for row in source.rows()] == [3.0, 3.0, 3.0]
    (warning,) = source.warnings()
    assert "another than the judgement in 1 rows" in warning
    list(source.rows())
    assert source.warnings() == [warning]  # counted anew, not added up


def test_half_of_a_pair_in_a_prediction_can_be_written(tmp_path: Path) -> None:
    (found,) = UmbrelaFile(write(tmp_path, {**ROW, "prediction": "\ud83d 3"})).rows()
    assert found.text.encode("utf-8") == b"? 3"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("##final score: 2", 2),
        ("## Final Score: **1**", 1),
        ("M: 3\nT: 2\nO: 1", 1),
        ('{"M": 3, "T": 2, "O": 0}', 0),
        ("On a scale of 0 to 3, I would rate this passage a 1.", 1),
        ("I give it 2 out of 3.", 2),
        ("score: 2/3", 2),
        ("First I thought the score is 3. The final score is 2", 2),
        (" 3\n", 3),
        ("relevance category: 0", 0),
        ("The passage is from 2019 and has 3 parts.", None),
        ("The scale is 0-3.", None),
        ("I rate it on a scale of 0 to 3.", None),
        ("A score between 0 and 3 is hard to give.", None),
        ("", None),
        ("final score " * 5000, None),
    ],
)
def test_the_score_a_text_ends_with(text: str, score: int | None) -> None:
    assert written_score(text) == score
