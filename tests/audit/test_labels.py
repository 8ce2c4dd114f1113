import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.audit.labels import read_labels
from bixse.data.columns import text_id
from bixse.errors import InputError, InvalidFileError
from bixse.judging.judge import Answer, Question
from bixse.judging.judges.replay_judge import open_replay
from bixse.relevance import GradeScale
from helpers.row_files import faults, jsonl

SCALE = GradeScale(0, 3)


def row(query, document, **more):
    return {"query_id": query, "document_id": document, **more}


def test_impossible_labels_are_listed_and_never_grades(tmp_path):
    (path := tmp_path / "judge.txt").write_text("q1 0 d1 3\n\nq1 0 d2 10\nq2 0 d4 -1\nq2 0 d5 0\n")
    labels = read_labels(path, otherwise=SCALE)
    assert labels.grades == {("q1", "d1"): 3.0, ("q2", "d5"): 0.0}
    impossible = [(bad.row, bad.query_id, bad.document_id, bad.value) for bad in labels.impossible]
    assert impossible == [(3, "q1", "d2", 10.0), (4, "q2", "d4", -1.0)]
    assert labels.statuses == {"graded": 2, "off-scale": 2}
    rows = [row("q", "a", grade=2.0), row("q", "b", grade=10.0), row("q", "c", relevance=1.5), row("q", "d", grade=0.0)]
    rows.append(row("q", "e", grade=3.0000000000000004))  # a mean that passes the end by rounding is on the scale
    labels = read_labels(jsonl(tmp_path / "t.jsonl", *rows), otherwise=SCALE)
    assert [(bad.row, bad.value) for bad in labels.impossible] == [(2, 10.0), (3, 1.5)]
    assert labels.grades == {("q", "a"): 2.0, ("q", "d"): 0.0, ("q", "e"): 3.0}


def test_a_pair_given_twice_counts_once_and_with_two_grades_is_an_error(tmp_path):
    (path := tmp_path / "twice.txt").write_text("q 0 d 3\nq 0 d 2\n")
    pq.write_table(pa.Table.from_pylist([row("q", "d", grade=3), row("q", "d", grade=2)]), tmp_path / "twice.parquet")
    for twice in (path, tmp_path / "twice.parquet"):
        with pytest.raises(InvalidFileError, match="one grade per pair"):
            read_labels(twice, SCALE)
    rows = [
        *(row("q", "d", grade=3, judge="m"), row("q", "d", grade=3), row("q", "d", grade=1, repeat=1)),
        *(
            row("q", "e", status="failed"),
            row("q", "e", grade=1, repeat="0.0"),
            row("q", "f", status="refused", grade=3),
        ),
    ]
    labels = read_labels(jsonl(tmp_path / "t.jsonl", *rows), SCALE)
    assert labels.grades == {("q", "d"): 3.0, ("q", "e"): 1.0}
    assert (labels.name, labels.missing) == ("m", {("q", "f"): "refused"})
    assert labels.statuses == {"graded": 2, "refused": 1}


def test_invalid_rows_are_reported_together(tmp_path):
    rows = [
        row("q", "a", grade="three"),
        row("q", "", grade=1),
        row("q", "c", status="graded", grade=None),
        row("q", "d", grade=1, repeat="x"),
        row("q", "e", grade=True),
    ]
    columns = ["grade", "document_id", "grade", "repeat", "grade"]
    assert faults(read_labels, jsonl(tmp_path / "t.jsonl", *rows), SCALE) == list(enumerate(columns, start=1))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.txt", None, "no such file"),
        ("empty.txt", "", "no judgement"),
        ("text.txt", "q 0 d good\n", "number"),
        ("columns.jsonl", '{"query_id": "q", "document_id": "d", "label": 1}\n', "'grade' or 'relevance'"),
        ("off.txt", "q 0 d -7\n", "no usable grade"),
    ],
)
def test_unusable_files_are_refused(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=says):
        read_labels(tmp_path / name, SCALE)


def test_beir_qrels_and_csv_tables(tmp_path):
    (beir := tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t2\nq\te\t-9\n")
    labels = read_labels(beir, SCALE)
    assert labels.grades == {("q", "d"): 2.0} and labels.impossible[0].row == 2
    (table := tmp_path / "pairs.csv").write_text("query,document,relevance\ncopy,cp,1.0\ncopy,mv,0\n")
    grades = {(text_id("copy"), text_id(document)): grade for document, grade in (("cp", 3.0), ("mv", 0.0))}
    assert read_labels(table, SCALE).grades == grades
    (table := tmp_path / "pairs.tsv").write_text("query_id\tdocument_id\tgrade\nq\td\t1.5\nq\te\t\n")
    labels = read_labels(table, SCALE)
    assert labels.grades == {("q", "d"): 1.5} and labels.missing == {("q", "e"): "no grade"}


def test_the_scale_is_found_in_the_file(tmp_path):
    rows = [row("q", str(g), grade=g, relevance=(g - 1) / 4) for g in (1.25, 2.0, 4.5)]
    assert read_labels(jsonl(tmp_path / "five.jsonl", *rows)).scale == GradeScale(1, 5)
    (plain := tmp_path / "plain.txt").write_text("q 0 a 0\nq 0 b 2\n")
    assert read_labels(plain).scale == GradeScale(0, 2)
    assert read_labels(plain, otherwise=SCALE).scale == SCALE
    assert read_labels(jsonl(tmp_path / "z.jsonl", row("q", "a", relevance=0.4))).scale == GradeScale(0, 1)
    (one := tmp_path / "one.txt").write_text("q 0 a 1\n")
    with pytest.raises(InputError, match="state the scale"):
        read_labels(one)


def test_a_mapped_relevance_is_noticed_and_kept(tmp_path):
    rows = [row("q", str(g), grade=g, relevance=p) for g, p in ((0, 0.1), (1, 0.15), (3, 0.7))]
    labels = read_labels(jsonl(tmp_path / "mapped.jsonl", *rows), otherwise=SCALE)
    assert labels.scale == SCALE and labels.mapped == 3
    assert labels.relevance["q", "3"] == 0.7 and labels.grades["q", "3"] == 3


@pytest.mark.parametrize("wrong", [0, -0.5, 1.01])
def test_probabilities_of_a_sample(tmp_path, wrong):
    rows = [row("q", "a", grade=0, probability=0.25), row("q", "b", grade=3, probability=1)]
    labels = read_labels(jsonl(tmp_path / "t.jsonl", *rows), SCALE)
    assert labels.probability == {("q", "a"): 0.25, ("q", "b"): 1.0}
    for bad in (row("q", "c", grade=1, probability=wrong), row("q", "a", grade=0, probability=0.5)):
        with pytest.raises(InvalidFileError, match="probability"):
            read_labels(jsonl(tmp_path / "t.jsonl", *rows, bad), SCALE)


@pytest.fixture
def qrels(tmp_path):
    (path := tmp_path / "judge.txt").write_text("q1 0 d1 3\nq1 0 d2 -1\nq2 0 d1 0\n")
    return path


def ask(judge, query_id, document_id, **rest):
    question = Question(query_id, document_id, "any", "text", **rest)
    ((asked, answer),) = judge.answers([question])
    assert asked is question
    return answer


@pytest.mark.parametrize("spec", ["replay:umbrela:judged.jsonl", "replay:qrels:", "replay:x.txt", "qrels:x.txt"])
def test_another_format_is_refused(spec):
    with pytest.raises(InputError, match=r"expected replay:qrels:PATH.*bixse convert"):
        open_replay(spec, SCALE)


def test_every_pair_has_its_grade_or_a_status(qrels):
    judge = open_replay(f"replay:qrels:{qrels}", SCALE)
    assert ask(judge, "q1", "d1") == Answer("graded", "replay", (), 3.0, 3.0, 3.0, "3", judge="judge")
    off = ask(judge, "q1", "d2")
    assert (off.status, off.grade, off.detail) == ("off-scale", None, "grade -1; the scale is 0 to 3")
    missing = ask(judge, "d1", "q1")
    assert (missing.status, missing.judge) == ("failed", "replay:qrels:judge.txt")
    assert ask(judge, "q1", "d1", repeat=1).status == "failed", "nobody can be asked a second time"


def test_identity_changes_with_content_and_scale_and_holds_no_path(qrels, tmp_path):
    first = open_replay(f"replay:qrels:{qrels}", SCALE).identity
    assert str(tmp_path) not in json.dumps(dict(first))
    assert open_replay(f"replay:qrels:{qrels}", GradeScale(0, 4)).identity != first
    qrels.write_text("q1 0 d1 2\n")
    assert open_replay(f"replay:qrels:{qrels}", SCALE).identity != first


def test_a_grade_off_the_stated_scale_is_named_with_its_row(tmp_path):
    rows = [row("q", f"d{number}", grade=number % 4) for number in range(20)]
    rows[11]["grade"], rows[15]["grade"] = 5, 33
    with pytest.raises(InputError) as raised:
        read_labels(jsonl(tmp_path / "t.jsonl", *rows), SCALE)
    assert "grade 33" in raised.value.got and "2 off" in raised.value.got and "row 12" in raised.value.got
    (path := tmp_path / "judge.txt").write_text("q1 0 d1 3\nq1 0 d2 10\n")
    with pytest.raises(InputError) as raised:
        open_replay(f"replay:qrels:{path}", SCALE)
    assert "1 off" in raised.value.got and "('q1', 'd2')" in raised.value.got
