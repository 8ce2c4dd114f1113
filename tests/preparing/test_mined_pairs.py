from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq

from bixse.data.graded_pairs import Pair
from bixse.data.pairs_files import load_pairs
from bixse.preparing.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs

COLUMNS = ["query_id", "query", "document_id", "document", "task", "source", "rank"]
AWKWARD = 'a "quoted", text\nof two lines\twith é, 漢 and , commas'
PAIRS = [
    MinedPair("007", "copy", "1e5", AWKWARD, None, "bm25:3,demo:17", 4),
    MinedPair("q2", "null", "NA", "NaN", "nli", "bm25:1", 1),
    MinedPair("q3", "x" * 3_000_000, "d", "a line longer than a reader's block", None, "run:1:2", 100),
]


def test_written_pairs_are_read_back_as_mined_and_as_pairs_to_grade(tmp_path):
    save_mined_pairs(PAIRS, tmp_path / MINED_FILE)
    table = pq.read_table(tmp_path / MINED_FILE)
    assert table.column_names == COLUMNS
    assert [MinedPair(**row) for row in table.to_pylist()] == PAIRS
    assert load_pairs(tmp_path / MINED_FILE) == [
        Pair(p.query_id, p.query, p.document_id, p.document, p.task) for p in PAIRS
    ]


def test_retrievers_of_a_pair():
    assert PAIRS[0].retrievers == ["bm25", "demo"]
    assert PAIRS[2].retrievers == ["run:1"]
    assert replace(PAIRS[0], source="generated").retrievers == ["generated"]
