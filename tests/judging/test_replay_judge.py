"""Existing judgements as a judge: what is refused first, then grades by ids."""

import json

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.judging.judge import Answer, Question
from bixse.judging.judges.replay_judge import open_replay
from bixse.relevance import GradeScale

SCALE = GradeScale(0, 3)


@pytest.fixture
def qrels(tmp_path):
    (path := tmp_path / "judge.txt").write_text("q1 0 d1 3\nq1 0 d2 10\nq2 0 d1 0\n")
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


def test_unusable_files_are_refused(qrels, tmp_path):
    with pytest.raises(InputError, match="got no scale"):
        open_replay(f"replay:qrels:{qrels}", None)
    with pytest.raises(InputError, match="no such file"):
        open_replay(f"replay:qrels:{tmp_path / 'gone.txt'}", SCALE)
    qrels.write_text("q1 0 d1 good\n")
    with pytest.raises(InvalidFileError, match="number"):
        open_replay(f"replay:qrels:{qrels}", SCALE)


def test_every_pair_has_its_grade_or_a_status(qrels):
    judge = open_replay(f"replay:qrels:{qrels}", SCALE)
    assert ask(judge, "q1", "d1") == Answer("graded", "replay", (), 3.0, 3.0, 3.0, "3", judge="judge")
    off = ask(judge, "q1", "d2")
    assert (off.status, off.grade, off.detail) == ("off-scale", None, "grade 10; the scale is 0 to 3")
    missing = ask(judge, "d1", "q1")
    assert (missing.status, missing.judge) == ("failed", "replay:qrels:judge.txt")
    assert ask(judge, "q1", "d1", repeat=1).status == "failed", "nobody can be asked a second time"


def test_identity_changes_with_content_and_scale_and_holds_no_path(qrels, tmp_path):
    first = open_replay(f"replay:qrels:{qrels}", SCALE).identity
    assert str(tmp_path) not in json.dumps(dict(first))
    assert open_replay(f"replay:qrels:{qrels}", GradeScale(0, 4)).identity != first
    qrels.write_text("q1 0 d1 2\n")
    assert open_replay(f"replay:qrels:{qrels}", SCALE).identity != first
