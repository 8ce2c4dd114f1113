from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace

import pyarrow.parquet
import pytest

from bixse.data.graded_pairs import Pair
from bixse.data.pairs_files import load_pairs
from bixse.errors import InputError, InvalidFileError
from bixse.preparing.mine.mined_pairs import FORMATS, MinedPair, load_mined_pairs, pairs_path, save_mined_pairs

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
