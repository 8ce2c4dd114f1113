from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace

import pyarrow.parquet
import pytest

from bixse.data.graded_pairs import GradedPairs, Pair
from bixse.data.pairs_files import load_pairs
from bixse.errors import InputError, InvalidFileError
from bixse.preparing.mined_pairs import (
    FORMATS,
    MinedPair,
    false_negatives,
    load_mined_pairs,
    pairs_path,
    save_mined_pairs,
)

COLUMNS = ["query_id", "query", "document_id", "document", "task", "source", "rank"]
AWKWARD = 'a "quoted", text\nof two lines\twith é, 漢 and , commas'
PAIRS = [
    MinedPair("007", "copy", "1e5", AWKWARD, None, "bm25:3,demo:17", 4),
    MinedPair("q2", "null", "NA", "NaN", "nli", "bm25:1", 1),
    MinedPair("q3", "x" * 3_000_000, "d", "a line longer than a reader's block", None, "run:1:2", 100),
]


@pytest.mark.parametrize("form", FORMATS)
def test_written_pairs_are_read_back_as_mined_and_as_pairs_to_grade(tmp_path, form):
    save_mined_pairs(PAIRS, pairs_path(tmp_path, form))
    assert load_mined_pairs(tmp_path) == PAIRS
    found = load_pairs(pairs_path(tmp_path, form))
    assert found == [Pair(p.query_id, p.query, p.document_id, p.document, p.task) for p in PAIRS]


def test_the_columns_are_plain(tmp_path):
    for form in FORMATS:
        save_mined_pairs(PAIRS[:2], pairs_path(tmp_path, form))
    assert pyarrow.parquet.read_schema(tmp_path / "pairs.parquet").names == COLUMNS
    assert list(json.loads((tmp_path / "pairs.jsonl").read_text().splitlines()[0])) == COLUMNS
    with (tmp_path / "pairs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert rows[0]["document"] == AWKWARD
    assert (rows[0]["query_id"], rows[0]["task"], rows[1]["document"]) == ("007", "", "NaN")


def test_retrievers_of_a_pair():
    assert PAIRS[0].retrievers == ["bm25", "demo"]
    assert PAIRS[2].retrievers == ["run:1"]
    assert replace(PAIRS[0], source="generated").retrievers == ["generated"]


def test_a_folder_without_pairs(tmp_path):
    with pytest.raises(InputError, match=r"got no pairs\.parquet"):
        load_mined_pairs(tmp_path)


@pytest.mark.parametrize("changed", [{"rank": 0}, {"source": ""}, {"query_id": "a b"}, {"document": None}])
def test_a_file_with_other_values(tmp_path, changed):
    pairs_path(tmp_path, "jsonl").write_text(json.dumps({**asdict(PAIRS[0]), **changed}) + "\n")
    with pytest.raises(InvalidFileError) as caught:
        load_mined_pairs(tmp_path)
    assert [error.column for error in caught.value.errors] == [*changed]


def graded(*rows):
    return GradedPairs.from_rows(
        {"query_id": q, "query": q, "document_id": d, "document": d, "relevance": z} for q, d, z in rows
    )


MINED = [
    MinedPair(query_id, "q", document_id, "d", None, source, rank)
    for query_id, document_id, source, rank in (
        ("q1", "a", "bm25:1,demo:2", 1),
        ("q1", "b", "demo:1", 2),
        ("q1", "c", "bm25:90", 50),
        ("q2", "a", "bm25:1", 1),
        ("q2", "never graded", "bm25:2", 2),
    )
]
GRADED = graded(("q1", "a", 0.5), ("q1", "b", 0.49), ("q1", "c", 1.0), ("q2", "a", 0.0), ("q2", "not mined", 1.0))


@pytest.mark.parametrize("threshold", [0.0, 1.01, float("nan")])
def test_a_threshold_that_is_no_relevance(threshold):
    with pytest.raises(InputError, match="--relevant-from"):
        false_negatives(GRADED, MINED, threshold)


@pytest.mark.parametrize("pairs", [graded(("q9", "a", 1.0)), graded()])
def test_grades_of_other_pairs_or_none_are_refused(pairs):
    with pytest.raises(InputError, match="of the 5 mined pairs"):
        false_negatives(pairs, MINED)


def test_shares_by_rank_and_by_retriever():
    found = false_negatives(GRADED, MINED, threshold=0.5)
    assert found.mined == 5
    assert [(name, share.relevant, share.graded) for name, share in found.groups.items()] == [
        ("all", 2, 4), ("rank 1", 1, 2), ("rank 2-3", 0, 1), ("rank 31-100", 1, 1),
        ("found by bm25", 2, 3), ("found by demo", 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("threshold", "relevant"), [(0.49, 3), (0.5, 2), (1.0, 1)])
def test_the_share_counts_from_the_threshold_on(threshold, relevant):
    assert false_negatives(GRADED, MINED, threshold).overall.relevant == relevant
