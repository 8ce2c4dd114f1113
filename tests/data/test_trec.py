import math
import re
import time

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.data.trec import read_qrels, read_run, write_qrels, write_run
from bixse.errors import InputError
from bixse.relevance import ranked
from helpers.row_files import faults


def write(tmp_path, content, name="file.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BEIR_HEADER = "query-id\tcorpus-id\tscore"
INVALID_LINES = {
    "run": (
        read_run,
        ["q1 Q0 d1 1 2.5 tag", "q1 Q0 d2 2 high tag", "q1 Q0 d3 3", "", "q1 Q0 d1 4 1 tag", "q1 Q0 d5 5 nan tag"],
        {2: "score", 3: None, 5: "document id", 6: "score"},
    ),
    "TREC qrels": (
        read_qrels,
        ["q1 0 d1 3", "q1 0 d2 high", "q1 0 d3", "q1 0 d4 1 extra", "q1 0 d5 nan", "q1 0 d6 inf", "q1 0 d7 1_0"],
        {2: "score", 3: None, 4: None, 5: "score", 6: "score", 7: "score"},
    ),
    "BEIR qrels": (
        read_qrels,
        [BEIR_HEADER, "q1\td1\t1", "q1 d2 1", "q1\td3\t", "\td4\t1", "q1\td5\tyes", "q1\td1\t2"],
        {2: None, 3: "score", 4: "query-id", 5: "score", 6: "score"},
    ),
    "repeat with another grade": (read_qrels, ["q 0 d 1", "q 0 e 1", "q 0 d 2"], {3: "score"}),
    "ids": (read_qrels, [BEIR_HEADER, "a b\t#1\t1", "q\t#1 \u2028x\t1"], {1: "query-id", 2: "corpus-id"}),
    "two columns": (read_qrels, ["q1\td1\t1"], {1: None}),
    "CSV": (read_qrels, ["a,b,c,d"], {1: None}),
}


@pytest.mark.parametrize("kind", INVALID_LINES)
def test_all_invalid_lines_are_reported(tmp_path, kind):
    read, lines, expected = INVALID_LINES[kind]
    assert dict(faults(read, write(tmp_path, "\n".join(lines)))) == expected


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_run_with_any_separator_line_end_and_byte_order_mark(tmp_path, separator, end, start):
    text = start + end.join(separator.join(row.split()) for row in ("q1 Q0 d1 1 2.5 t", "q2 Q0 d1 1 -1e-3 t")) + end
    assert read_run(write(tmp_path, text)) == {"q1": {"d1": 2.5}, "q2": {"d1": -0.001}}


def test_written_run_is_ranked_as_trec_eval_ranks(tmp_path):
    path = tmp_path / "new" / "bm25.run"
    write_run(path, {"q": {"a": 1.0, "b": 2, "c": np.float32(1.0), "d": 1.0 + 1e-12}}, "bm25")
    ranks = ["b 1 2.0", "d 2 1.000000000001", "c 3 1.0", "a 4 1.0"]
    assert path.read_text().splitlines() == [f"q Q0 {rank} bm25" for rank in ranks]
    assert [file.name for file in path.parent.iterdir()] == ["bm25.run"]


word = st.text(st.characters(blacklist_categories=("Z", "C")), min_size=1, max_size=4)
run_of = st.dictionaries(word, st.dictionaries(word, st.floats(allow_nan=False), max_size=6), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(run_of.filter(lambda run: any(run.values())))
def test_run_read_again_is_the_same(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("runs") / "any.run"
    write_run(path, run, "tag")
    again = read_run(path)
    assert again == {query_id: scores for query_id, scores in run.items() if scores}
    assert all(list(scores) == ranked(run[query_id]) for query_id, scores in again.items())
    assert pytrec_eval.parse_run(path.read_text().splitlines()) == again


UNWRITABLE = [
    *((lambda path, run: write_run(path, run, "t"), run, message) for run, message in (
        ({"q 1": {"d": 1.0}}, "query id: got 'q 1'"),
        ({"q": {"d\u00a01": 1.0}}, "document id: got"),
        ({"q": {"d": math.nan}}, "score of document 'd'"),
        ({"q": {}}, "without documents"),
        ({}, "without documents"),
    )),
    (lambda path, run: write_run(path, run, ""), {"q": {"d": 1.0}}, "tag: got ''"),
    *((write_qrels, qrels, message) for qrels, message in (
        ({"q\t": {"d": 1}}, "query id: got"),
        ({"q": {"": 1}}, "document id: got ''"),
        ({"q": {"d": math.inf}}, "got grade inf"),
        ({"q": {}}, "got no judgements"),
        ({}, "got no judgements"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("save", "content", "message"), UNWRITABLE)
def test_what_cannot_be_written_is_refused_and_leaves_the_old_file(tmp_path, save, content, message):
    path = write(tmp_path, "old")
    with pytest.raises(InputError, match=re.escape(message)):
        save(path, content)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


JUDGED = {"q1": {"d1": 3.0, "d2": 0.0}, "q2": {"d1": -1.0, "d3": 0.25}}
TREC = ["q1 0 d1 3", "q1 0 d2 0", "q2 0 d1 -1", "q2 0 d3 0.25"]
BEIR = [BEIR_HEADER, "q1\td1\t3", "q1\td2\t0", "q2\td1\t-1", "q2\td3\t0.25"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n"])
@pytest.mark.parametrize(
    "lines", [TREC, [line.replace(" ", "\t") for line in TREC], BEIR, ["Query_ID\tCorpus_ID\tScore", *BEIR[1:]]]
)
def test_format_follows_from_the_first_line(tmp_path, lines, start, end):
    assert read_qrels(write(tmp_path, start + end.join(lines) + end)) == JUDGED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BEIR_HEADER + '\n"a\t#1\t1\n', {'"a': {"#1": 1.0}}),
        ("query-id 0 corpus-id 1\n", {"query-id": {"corpus-id": 1.0}}),
        ("q 0 d 1\nq 0 d 1\n", {"q": {"d": 1.0}}),
    ],
)
def test_odd_ids_and_equal_repeats_are_read(tmp_path, text, expected):
    assert read_qrels(write(tmp_path, text)) == expected


def test_written_qrels_are_beir_tsv_and_read_back(tmp_path):
    path = tmp_path / "qrels" / "test.tsv"
    write_qrels(path, JUDGED)
    assert path.read_text() == "\n".join(BEIR) + "\n"
    assert read_qrels(path) == JUDGED


def test_the_check_of_ranks_takes_less_time_than_the_reading_of_a_long_ranking(tmp_path):
    path = write(tmp_path, "".join(f"q Q0 d{rank} {rank} {1 / rank} tag\n" for rank in range(1, 40_001)))
    seconds = {}
    for contradicted in (None, []):
        started = time.process_time()
        read_run(path, contradicted)
        seconds[contradicted is None] = time.process_time() - started
    assert seconds[False] < 3 * seconds[True]
