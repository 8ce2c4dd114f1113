from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bixse.data.sources import FlagEmbeddingFile
from bixse.errors import InputError, InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

ROW: dict[str, Any] = {
    "query": "what is a flea",
    "pos": ["a small insect"],
    "neg": ["a market", "a play"],
    "pos_scores": [0.9],
    "neg_scores": [0.2, 0.4],
    "prompt": "Given a query, find the passage",
    "type": "normal",
}
UNSCORED = {key: value for key, value in ROW.items() if not key.endswith("_scores")}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "msmarco.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scored(positive: list[float], negative: list[float]) -> dict[str, Any]:
    return {
        "query": f"q {positive}",
        "pos": [f"p{i} {positive}" for i in range(len(positive))],
        "neg": [f"n{i} {negative}" for i in range(len(negative))],
        "pos_scores": positive,
        "neg_scores": negative,
    }


def faults(path: Path, score_map: str) -> list[str]:
    with pytest.raises(InvalidFileError) as caught:
        list(FlagEmbeddingFile(path, score_map).rows())
    assert all("; expected " in str(fault) and "; fix: " in str(fault) for fault in caught.value.errors)
    return [str(fault).partition(";")[0] for fault in caught.value.errors]


def test_a_map_is_demanded_and_the_scores_are_shown(tmp_path: Path) -> None:
    path = write(tmp_path, scored([96.5, 91.0], [12.0, 94.0]), scored([77.0], [3.0]))
    with pytest.raises(InputError, match="got no score map; expected prob, percent, logit, platt") as caught:
        FlagEmbeddingFile(path)
    message = str(caught.value)
    assert "looks like: percent (all scores lie in [0, 100])" in message
    assert "6 scores from 3 to 96.5" in message
    assert "1 rows score a negative above a positive" in message
    assert message.count("|") == 12 and "#" in message


@pytest.mark.parametrize(
    ("score_map", "scores", "relevance"),
    [
        ("prob", (0.75, 0.25), (0.75, 0.25)),
        ("percent", (75, 25), (0.75, 0.25)),
        ("logit", (1.0986122886681098, -1.0986122886681098), (0.75, 0.25)),
        ("platt:0.5,-40", (82.19722457733622, 77.80277542266378), (0.75, 0.25)),
    ],
)
def test_maps(tmp_path: Path, score_map: str, scores: tuple[float, float], relevance: tuple[float, float]) -> None:
    path = write(tmp_path, scored([scores[0]], [scores[1]]))
    found = list(FlagEmbeddingFile(path, score_map).rows())
    assert [row.relevance for row in found] == pytest.approx(relevance)
    assert [row.extra["score"] for row in found] == list(scores)
    assert [row.extra["label"] for row in found] == ["positive", "negative"]
    assert found[0].judge == f"teacher scores ({score_map})" or score_map.startswith("platt")


def test_rows_of_one_query_share_its_group_and_the_file_is_the_task(tmp_path: Path) -> None:
    found = list(FlagEmbeddingFile(write(tmp_path, ROW, scored([0.5], [0.1])), "prob").rows())
    assert [row.document for row in found[:3]] == ["a small insect", "a market", "a play"]
    assert [row.row_group for row in found] == ["1", "1", "1", "2", "2"]
    assert len({row.query_id for row in found[:3]}) == 1
    assert {row.task for row in found} == {"msmarco"}
    assert (found[0].extra["prompt"], found[0].extra["type"]) == (ROW["prompt"], "normal")


def test_percents_above_100_are_faults_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, scored([96.6875], [90.5625]), scored([103.5], [83.1875, 100.0625]))
    assert faults(path, "percent") == [
        "row 2, column 'pos_scores': got 103.5",
        "row 2, column 'neg_scores': got 100.0625",
    ]
    with pytest.raises(InputError, match="for all 5 under the map logit"):
        list(FlagEmbeddingFile(path, "logit").rows())
    assert len(list(FlagEmbeddingFile(path, "platt:0.5,-46").rows())) == 5


def test_faulty_rows_are_told_together_and_before_any_row(tmp_path: Path) -> None:
    rows = [
        ROW,
        {**ROW, "neg_scores": [0.2]},
        {**ROW, "pos_scores": ["high"]},
        {**ROW, "pos_scores": [float("nan")]},
        {**ROW, "pos": "a small insect"},
        {**ROW, "neg": ["", "b"]},
        {**ROW, "query": None},
        {**UNSCORED, "pos": [], "neg": []},
        UNSCORED,
        {**ROW, "neg_scores": None},
    ]
    expected = [
        "row 2, column 'neg_scores': got 1 scores for 2 texts",
        "row 3, column 'pos_scores': got 'high'",
        "row 4, column 'pos_scores': got nan",
        "row 5, column 'pos': got 'a small insect'",
        "row 6, column 'neg': got an empty text",
        "row 7, column 'query': got null",
        "row 8, column 'pos': got no document",
        "row 9, column 'pos_scores': got nothing",
        "row 9, column 'neg_scores': got nothing",
        "row 10, column 'neg_scores': got null",
    ]
    assert faults(write(tmp_path, *rows), "prob") == expected
    with pytest.raises(InvalidFileError):
        next(FlagEmbeddingFile(write(tmp_path, *rows), "prob").rows())


def test_labels_are_grades_only_where_binary_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path, UNSCORED)
    assert faults(path, "prob") == [
        "row 1, column 'pos_scores': got nothing",
        "row 1, column 'neg_scores': got nothing",
    ]
    with pytest.raises(InputError, match="no scores in the file: labels alone"):
        FlagEmbeddingFile(path)
    found = list(FlagEmbeddingFile(path, "binary").rows())
    assert [row.relevance for row in found] == [1.0, 0.0, 0.0]
    assert {(row.judge, row.task) for row in found} == {("binary labels", "msmarco")}
    assert "score" not in found[0].extra


def test_scores_that_binary_leaves_aside_are_counted(tmp_path: Path) -> None:
    source = FlagEmbeddingFile(write(tmp_path, ROW, UNSCORED), "binary")
    assert [row.relevance for row in source.rows()] == [1.0, 0.0, 0.0] * 2
    assert source.warnings() == ["msmarco.jsonl: 1 rows have scores, which the map 'binary' leaves aside"]


def test_degenerate_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"4 that are all 1"):
        list(FlagEmbeddingFile(write(tmp_path, scored([1], [1]), scored([1], [1])), "prob").rows())
    with pytest.raises(InputError, match="of 0 or 1 for all 2 under the map prob"):
        list(FlagEmbeddingFile(write(tmp_path, scored([1], [0])), "prob").rows())


def test_crossed_rows_and_misfitting_maps_are_warnings(tmp_path: Path) -> None:
    crossed = [scored([0.6], [0.1, 0.9]), scored([0.9, 0.2], [0.3]), scored([0.9], [0.8]), scored([0.7], [])]
    source = FlagEmbeddingFile(write(tmp_path, *crossed), "prob")
    assert source.warnings() == []
    assert len(list(source.rows())) == 9
    assert source.warnings() == ["msmarco.jsonl: 2 rows score a negative above a positive"]
    source = FlagEmbeddingFile(write(tmp_path, scored([0.9], [0.1])), "logit")
    list(source.rows())
    assert "the map is logit, but the scores look like prob" in source.warnings()[0]


def test_a_row_may_lack_negatives(tmp_path: Path) -> None:
    row = {"query": "q", "pos": ["a", "b"], "pos_scores": [0.9, 0.4]}
    assert [found.relevance for found in FlagEmbeddingFile(write(tmp_path, row), "prob").rows()] == [0.9, 0.4]


def test_the_map_is_part_of_what_decides_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path, ROW)
    first, second = (FlagEmbeddingFile(path, score_map).settings for score_map in ("prob", "platt:2,-1"))
    assert first == {"format": "flagembedding", "scale": [0, 1], "map": "prob"}
    assert second["map"] == "platt:2.0,-1.0"
