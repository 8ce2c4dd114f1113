import json

import pyarrow.parquet as pq
import pytest

from bixse.data.collection import Collection, Document, save_collection
from bixse.errors import InputError, InvalidFileError
from bixse.judging.judge import Answer, Question
from bixse.judging.judges.replay_judge import ReplayJudge, answer_of, open_replay
from bixse.preparing.source import Judgement
from bixse.relevance import GradeScale
from helpers.scripted_judge import graded

SCALE = GradeScale(0, 3)
UMBRELA = {
    "model": "gpt-4o",
    "query": "how long does a flea live",
    "passage": "weeks to months",
    "prediction": "##final score: 3",
    "judgment": 3,
    "result_status": 1,
}
LIGHTBLUE = {
    "question": "how long does a flea live",
    "context": "weeks to months",
    "row_id": 7,
    "dataset_name": "pubmedqa",
    "32B_score_probs": [0.0, 0.0, 0.1, 0.5, 0.3],
    "32B_score_probs_rev": [0.0, 0.0, 0.0, 0.5, 0.5],
}


def write(folder, *rows, name="judged.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def judged(query, document, value=2.0, **rest):
    return Judgement(f"id of {query}", f"id of {document}", SCALE, query, document, value, **rest)


def ask(judge, query, document, ids=("1", "2"), **rest):
    question = Question(*ids, query, document, **rest)
    ((asked, answer),) = judge.answers([question])
    assert asked is question
    return answer


def test_what_names_no_judgements_or_takes_no_such_option_is_refused(tmp_path):
    umbrela = f"replay:umbrela:{write(tmp_path, UMBRELA)}"
    bge = f"replay:flagembedding:{write(tmp_path, {'query': 'q', 'pos': ['p']}, name='bge.jsonl')}"
    for spec, options, message in (
        ("replay:umbrella:judged.jsonl", {}, "did you mean 'umbrela'"),
        ("replay:judged.jsonl", {}, "name the format and the file, as in replay:umbrela:judged.jsonl"),
        ("replay:umbrela:", {}, "expected replay:FORMAT:PATH"),
        ("umbrela:judged.jsonl", {}, "expected replay:FORMAT:PATH"),
        ("replay:umbrela:gone.jsonl", {}, "got no such file"),
        ("replay:qrels:gone.txt", {}, "got no scale"),
        (umbrela, {"collection": tmp_path}, "got a collection; expected none.*it belongs to replay:qrels"),
        (umbrela, {"score_map": "prob"}, "got a score map; expected none.*it belongs to replay:flagembedding"),
        (umbrela, {"scale": GradeScale(1, 5)}, "got judgements on the scale 0 to 3; expected 1 to 5"),
        (bge, {}, "got no score map"),
    ):
        with pytest.raises(InputError, match=message):
            open_replay(spec, **options)


def test_errors_and_warnings_come_through(tmp_path):
    rows = [judged("a", "b", row=1), Judgement("id of a", "id of b", SCALE, "a", "other", 1.0, row=2)]
    with pytest.raises(InvalidFileError, match=r"row 2, column 'ids': got query 'id of a', .* other texts in row 1"):
        ReplayJudge(rows)
    with pytest.raises(InvalidFileError, match="row 2, column 'judgment'"):
        open_replay(f"replay:umbrela:{write(tmp_path, UMBRELA, {**UMBRELA, 'judgment': 'high'})}")
    judge = open_replay(f"replay:umbrela:{write(tmp_path, UMBRELA, {**UMBRELA, 'query': 'b', 'judgment': 7})}")
    assert any("1 of 2 judgements carry no grade (1 off-scale)" in warning for warning in judge.warnings)


def test_umbrela_is_replayed_with_its_pairs(tmp_path):
    failed = {**UMBRELA, "query": "b", "judgment": 0, "result_status": 0}
    judge = open_replay(f"replay:umbrela:{write(tmp_path, UMBRELA, failed)}")
    pairs = list(judge.pairs())
    questions = [Question(pair.query_id, pair.document_id, pair.query, pair.document) for pair in pairs]
    first, second = (answer for _, answer in judge.answers(iter(questions)))
    assert first == Answer("graded", "replay", (), 3.0, 3.0, 3.0, "##final score: 3", judge="gpt-4o")
    assert (second.status, second.grade, second.mode) == ("no-option", None, "replay")
    assert judge.scale == SCALE


def test_a_pair_that_is_not_there_fails_with_its_reason():
    judge = ReplayJudge([judged("a", "b"), Judgement("q", "d", SCALE, grade=1.0)])
    assert ask(judge, "a", "b").grade == 2.0
    for query, document in (("a", "c"), ("c", "b"), ("ab", ""), ("", "ab"), ("b", "a")):
        answer = ask(judge, query, document)
        assert (answer.status, answer.grade, answer.detail) == ("failed", None, "not among the judgements")
        assert answer.judge == "replay:rows:rows"
    assert ask(judge, "a", "b cut", ids=("id of a", "id of b")).detail.endswith("its ids are, with other texts")
    assert ask(judge, "a", "b", repeat=1).status == "failed", "nobody can be asked a second time"


def test_ids_find_only_judgements_without_texts():
    judge = ReplayJudge([Judgement("1", "2", SCALE, grade=1.0), judged("a", "b", 3.0)])
    assert ask(judge, "any", "texts", ids=("1", "2")).grade == 1.0
    assert ask(judge, "any", "texts", ids=("2", "1")).status == "failed"
    assert ask(judge, "any", "texts", ids=("id of a", "id of b")).status == "failed"
    assert ask(judge, "a", "b", ids=("1", "2")).grade == 3.0  # texts count more than ids
    with pytest.raises(InputError, match="got judgements without texts; expected pairs to grade"):
        list(judge.pairs())


def test_two_grades_of_the_same_texts_are_no_grade():
    rows = [
        judged("a", "b", 1.0, row=1),
        judged("a", "b", 2.0, row=2),
        judged("a", "b", 1.0, row=3),
        judged("a", "c", 1.0),
        Judgement("other", "ids", SCALE, "a", "c", 3.0),
    ]
    judge = ReplayJudge(rows)
    answer = ask(judge, "a", "b")
    assert (answer.status, answer.grade) == ("ambiguous", None)
    assert answer.detail == "graded 1 and 2 for the same texts (rows 1 and 2)"
    assert ask(judge, "a", "c").status == "ambiguous"
    assert judge.warnings == [
        "rows: 3 judgements of pairs that were judged before; 2 pairs have two different grades, and get none"
    ]
    assert [pair.document_id for pair in judge.pairs()] == ["id of b", "id of c", "ids"]


def test_a_grade_takes_the_place_of_a_failure_and_repeats_are_kept_once():
    failed = judged("a", "b", None, status="no-option", detail="nothing read")
    for rows in ([failed, judged("a", "b")], [judged("a", "b"), failed], [judged("a", "b"), judged("a", "b", 2.01)]):
        judge = ReplayJudge(rows)
        assert ask(judge, "a", "b").grade == 2.0
        assert len(list(judge.pairs())) == 1
        assert "1 judgements of pairs that were judged before; 0 pairs have two" in judge.warnings[-1]


def test_both_orders_of_lightblue_and_their_mean(tmp_path):
    judge = open_replay(f"replay:lightblue:{write(tmp_path, LIGHTBLUE)}")
    texts = LIGHTBLUE["question"], LIGHTBLUE["context"]
    first, second, both = (ask(judge, *texts, variant=order) for order in ("document-query", "query-document", ""))
    assert first.probabilities == (0.0, 0.0, 0.1, 0.5, 0.3)
    assert first.mass == pytest.approx(0.9)
    assert first.grade == pytest.approx((0.3 + 2.0 + 1.5) / 0.9)
    # the missing 0.1 may all be grade 1: at most 0.1 each, as probable as the least of the three listed
    assert first.low == pytest.approx(0.3 + 2.0 + 1.5 + 0.1)
    assert first.high == first.grade
    assert (second.grade, second.low, second.high) == (4.5, 4.5, 4.5)
    assert both.grade == pytest.approx((first.grade + 4.5) / 2)
    assert both.low == pytest.approx(((first.low or 0) + 4.5) / 2)


@pytest.mark.parametrize(
    ("probabilities", "low", "high"),
    [
        ((0.5, 0.5, 0.0, 0.0), 0.5, 0.5),
        ((0.0, 0.6, 0.0, 0.0), 0.6 * 1 + 0.0, (0.6 + 0.4 * 3) / 1.0),
        ((0.0, 0.6, 0.3, 0.0), 1.2 / 1.0, (1.2 + 0.1 * 3) / 1.0),
        ((0.0, 0.3, 0.05, 0.0), 0.4 / 0.4, (0.4 + 0.05 * 3) / 0.4),
        ((0.3, 0.3, 0.2, 0.1), 1.0 / 0.9, 1.0 / 0.9),
    ],
)
def test_bounds_of_what_was_not_returned(probabilities, low, high):
    """Against the extremes worked out by hand: hidden grades share 1 - sum, none above the least that was listed."""
    row = Judgement("q", "d", SCALE, grade=1.0, probabilities=probabilities)
    answer = answer_of(row)
    assert (answer.low, answer.high) == (pytest.approx(low), pytest.approx(high))
    stated = answer_of(judged("a", "b", 2.0, low=1.5, high=2.25))
    assert (stated.low, stated.grade, stated.high) == (1.5, 2.0, 2.25)


def test_identity_changes_with_content_and_map_and_holds_no_path(tmp_path):
    bge = {"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [0.75], "neg_scores": [0.25]}
    path = write(tmp_path, bge, name="bge.jsonl")
    first = open_replay(f"replay:flagembedding:{path}", score_map="prob").identity
    assert first["kind"] == "replay" and first["format"] == "flagembedding" and first["map"] == "prob"
    assert str(tmp_path) not in json.dumps(dict(first))
    assert open_replay(f"replay:flagembedding:{path}", score_map="logit").identity != first
    write(tmp_path, {**bge, "pos_scores": [0.8]}, name="bge.jsonl")
    assert open_replay(f"replay:flagembedding:{path}", score_map="prob").identity != first


def test_qrels_with_the_texts_of_a_collection(tmp_path):
    toy = Collection("toy", {"d1": Document("copy", "copies"), "d2": Document("", "walks")}, {"q1": "copy a file"})
    save_collection(toy, tmp_path / "toy")
    qrels = tmp_path / "judge.txt"
    qrels.write_text("q1 0 d1 3\nq1 0 d2 10\n")
    judge = open_replay(f"replay:qrels:{qrels}", collection=tmp_path / "toy", scale=SCALE)
    assert [(pair.query, pair.document) for pair in judge.pairs()] == [
        ("copy a file", "copy copies"),
        ("copy a file", "walks"),
    ]
    assert ask(judge, "copy a file", "copy copies").grade == 3.0
    assert ask(judge, "copy a file", "walks").status == "off-scale"
    by_ids = open_replay(f"replay:qrels:{qrels}", scale=SCALE)
    assert ask(by_ids, "any", "text", ids=("q1", "d1")).grade == 3.0


def test_grading_by_replay_end_to_end(tmp_path):
    rows = [LIGHTBLUE, {**LIGHTBLUE, "context": "a market", "32B_score_probs": [0.0] * 5}]
    judge = open_replay(f"replay:lightblue:{write(tmp_path, *rows)}")
    result = graded(list(judge.pairs()), judge, tmp_path / "out")
    assert result.summary.statuses == {"graded": 1, "no-probabilities": 1}
    assert result.summary.modes == {"replay": 1}
    (row,) = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert row["relevance"] == pytest.approx(((0.3 + 2.0 + 1.5) / 0.9 / 2 + 4.5 / 2 - 1) / 4)
    assert (row["query_id"], row["task"], row["judge"]) == ("7", "pubmedqa", "Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4")
    graded(list(judge.pairs()), judge, tmp_path / "orders", rubric="relatedness-1-5")
    asked = pq.read_table(tmp_path / "orders" / "judgements.parquet").to_pylist()
    (found,) = [row for row in asked if row["status"] == "graded"]
    assert found["order_grades"] == [pytest.approx(3.8 / 0.9), 4.5]
    assert found["relevance"] == pytest.approx(row["relevance"])
