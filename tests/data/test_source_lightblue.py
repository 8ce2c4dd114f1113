from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.data.graded_pairs import text_id
from bixse.data.sources import LightBlueFiles
from bixse.data.sources.lightblue import expected, mean_probabilities
from bixse.errors import InputError, InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

PROBABILITIES = np.random.default_rng(0).dirichlet(np.ones(5), size=(12, 2))


def stated(probabilities: Any) -> float:
    """The data set's own formula (data_prep of lb-reranker), with numpy."""
    return float(np.average(np.arange(1, 6), weights=probabilities))


def fixture_rows() -> list[dict[str, Any]]:
    """12 rows in the data set's columns: 4 row_ids of 2 rows and 4 of one, 2 languages, a sum below 1, no doc_id."""
    rows = []
    for index in range(12):
        row_id = 100 + (index // 2 if index < 8 else index - 4)
        forward, backward = PROBABILITIES[index]
        if index == 3:
            forward = np.array([0.0, 0.0, 0.1, 0.5, 0.3])  # 1 and 2 were not among the ten most probable tokens
        rows.append(
            {
                "question": f"question {row_id}" if index % 4 < 2 else f"質問 {row_id}",
                "answer": "an answer",
                "dataset_name": "pubmedqa" if index % 2 else "lsat",
                "language": "en" if index % 4 < 2 else "ja",
                "added_neg": False,
                "doc_id": None if index == 5 else [f"source {row_id}"],
                "added_doc_id": False,
                "row_id": row_id,
                "context": f"context {index}",
                "label": index % 2 == 0,
                "32B_score_probs": forward.tolist(),
                "32B_score_probs_rev": backward.tolist(),
                "prob_exp_val": stated(forward),
                "rev_prob_exp_val": stated(backward),
                "mean_exp_val": (stated(forward) + stated(backward)) / 2,
                "conversations": [{"from": "system", "value": "..."}],
            }
        )
    return rows


def save(folder: Path, rows: list[dict[str, Any]], name: str = "train-00000-of-00001.parquet") -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["train-00000-of-00001.parquet", "train.jsonl"])
def test_the_grade_is_the_mean_of_both_orders(tmp_path: Path, name: str) -> None:
    rows = fixture_rows()
    source = LightBlueFiles(save(tmp_path, rows, name))
    found = list(source.rows())
    assert source.warnings() == []
    assert [row.grade for row in found] == pytest.approx([row["mean_exp_val"] for row in rows], abs=1e-12)
    assert [row.relevance for row in found] == pytest.approx([(row["mean_exp_val"] - 1) / 4 for row in rows])
    assert found[0].extra == {"language": "en", "label": True, "added_neg": False, "doc_id": ["source 100"]}
    assert (found[1].task, found[1].row_group, found[2].extra["language"]) == ("pubmedqa", "100", "ja")


def test_siblings_share_the_query_and_never_the_document(tmp_path: Path) -> None:
    found = list(LightBlueFiles(save(tmp_path, fixture_rows())).rows())
    groups: dict[str | None, list[str]] = {}
    for row in found:
        groups.setdefault(row.row_group, []).append(row.document_id)
        assert row.query_id == row.row_group
        assert row.document_id == text_id(row.document or "")  # also where doc_id, which both siblings share, is there
    assert sorted(map(len, groups.values())) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert len({document_id for ids in groups.values() for document_id in ids}) == 12
    assert "doc_id" not in found[5].extra


def test_raw_probabilities_are_kept_where_they_fall_short_of_1(tmp_path: Path) -> None:
    row = list(LightBlueFiles(save(tmp_path, fixture_rows())).rows())[3]
    assert dict(row.orders)["document-query"] == (0.0, 0.0, 0.1, 0.5, 0.3)
    assert sum(row.probabilities) == pytest.approx(0.9)
    assert stated(row.probabilities) == pytest.approx(row.grade)


def test_a_row_without_probability_in_one_order_has_no_grade(tmp_path: Path) -> None:
    rows = fixture_rows()
    rows[0]["32B_score_probs_rev"] = [0.0] * 5
    rows[1]["32B_score_probs"] = [0.5, 0.5, 0.5, 0.5, 0.5]
    rows[2]["32B_score_probs"] = [-0.5, 0.5, 0.5, 0.5, 0.0]
    rows[3]["32B_score_probs"] = [float("nan"), 0.5, 0.5, 0.0, 0.0]
    source = LightBlueFiles(save(tmp_path, rows))
    found = list(source.rows())
    assert [row.status for row in found[:4]] == ["no-probabilities"] * 4
    assert {row.grade for row in found[:4]} == {None}
    assert "32B_score_probs_rev: the judge gave none" in found[0].detail
    assert "4 of 12 judgements carry no grade (4 no-probabilities)" in source.warnings()[0]


def test_stated_grades_that_the_probabilities_do_not_give_are_counted(tmp_path: Path) -> None:
    rows = fixture_rows()
    rows[0]["prob_exp_val"] += 2e-3
    rows[1]["rev_prob_exp_val"] = 6 - rows[1]["rev_prob_exp_val"]  # read as a reversed scale
    rows[2]["prob_exp_val"] += 5e-4
    rows[3]["prob_exp_val"] = None
    source = LightBlueFiles(save(tmp_path, rows))
    assert len(list(source.rows())) == 12
    assert "2 rows state an expected grade that is off by more than 0.001" in source.warnings()[0]


def test_shards_of_a_folder_are_read_in_order(tmp_path: Path) -> None:
    rows = fixture_rows()
    (tmp_path / "data").mkdir()
    save(tmp_path / "data", rows[5:], "train-00001-of-00002.parquet")
    save(tmp_path / "data", rows[:5], "train-00000-of-00002.parquet")
    (tmp_path / "README.md").write_text("a card")
    source = LightBlueFiles(tmp_path)
    assert [row.document for row in source.rows()] == [row["context"] for row in rows]
    before = source.content_hash()
    save(tmp_path / "data", rows[:4], "train-00000-of-00002.parquet")
    assert LightBlueFiles(tmp_path).content_hash() != before


def test_a_folder_without_shards_and_a_file_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got a folder without \.parquet or \.jsonl files"):
        LightBlueFiles(tmp_path)
    pq.write_table(pa.Table.from_pylist([{"query": "a", "context": "b"}]), tmp_path / "other.parquet")
    with pytest.raises(InvalidFileError, match=r"column 'question'.*\n.*'32B_score_probs'.*\n.*'32B_score_probs_rev'"):
        list(LightBlueFiles(tmp_path / "other.parquet").rows())
    (tmp_path / "other.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match="got unreadable Parquet"):
        list(LightBlueFiles(tmp_path / "other.parquet").rows())
    pq.write_table(pa.Table.from_pylist(fixture_rows()).slice(0, 0), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="got no rows"):
        list(LightBlueFiles(tmp_path / "other.parquet").rows())


def test_faulty_rows_are_told_together_in_the_name_of_their_shard(tmp_path: Path) -> None:
    rows = fixture_rows()
    save(tmp_path, rows, "a.jsonl")
    rows[0]["question"] = ""
    rows[4]["32B_score_probs"] = [0.5, 0.5]
    rows[6]["32B_score_probs_rev"] = None
    rows[7]["context"] = 7
    shard = save(tmp_path, rows, "b.jsonl")
    with pytest.raises(InvalidFileError) as caught:
        list(LightBlueFiles(tmp_path).rows())
    assert caught.value.path == shard
    assert [str(fault).partition(";")[0] for fault in caught.value.errors] == [
        "row 1, column 'question': got an empty text",
        "row 5, column '32B_score_probs': got 2 values",
        "row 7, column '32B_score_probs_rev': got null",
        "row 8, column 'context': got 7",
    ]


def test_rounding_never_leaves_the_scale() -> None:
    draws = np.random.default_rng(1).uniform(1e-320, 1.0, size=5000)
    for share in [*draws, 5e-324, 1e-310, 1 / 3]:
        assert 1.0 <= expected([share, 0, 0, 0, 0]) <= expected([0, 0, 0, 0, share]) <= 5.0


def test_mean_probabilities_have_the_mean_grade() -> None:
    for forward, backward in PROBABILITIES * np.array([[[0.9], [0.4]]]):
        mixed = mean_probabilities([tuple(forward), tuple(backward)])
        assert sum(mixed) == pytest.approx(min(forward.sum(), backward.sum()))
        assert stated(mixed) == pytest.approx((stated(forward) + stated(backward)) / 2)


GROWTH = """
import sys, psutil
import pyarrow.parquet
from bixse.data.sources import LightBlueFiles
process = psutil.Process()
source = LightBlueFiles(sys.argv[1])
before = most = process.memory_info().rss
rows = 0
for rows, row in enumerate(source.rows(), start=1):
    if rows % 500 == 0:
        most = max(most, process.memory_info().rss)
print(rows, (most - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    generator = np.random.default_rng(0)
    schema = pa.Table.from_pylist(fixture_rows()).schema
    path, rows, wanted = tmp_path / f"large{suffix}", 0, 200 << 20
    parquet = pq.ParquetWriter(path, schema) if suffix == ".parquet" else None
    with path.open("ab") as text:
        while path.stat().st_size < wanted:
            batch = [
                {**row, "row_id": rows + i, "context": generator.bytes(6000).hex()}
                for i, row in enumerate(fixture_rows() * 200)
            ]
            rows += len(batch)
            if parquet is not None:
                parquet.write_table(pa.Table.from_pylist(batch, schema=schema), row_group_size=len(batch))
            else:
                text.write("".join(json.dumps(row) + "\n" for row in batch).encode())
    if parquet is not None:
        parquet.close()
    command = [sys.executable, "-c", GROWTH, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    found, growth = map(int, done.stdout.split())
    assert found == rows
    assert growth < 150, f"{growth} MiB more for a file of 200"
