"""The judge that vLLM runs, against the local judge: the same prompts, options and grades from two engines."""

import sys

import pytest

from bixse.errors import InputError, ModelError
from bixse.grading.grade_settings import JudgeOptions
from bixse.grading.local import vllm_judge
from bixse.grading.local.local_judge import LocalJudge
from bixse.grading.local.vllm_judge import VllmJudge
from bixse.grading.open_judge import open_judge
from helpers.tiny_judges import questions_of, save_judge, small_rubric, some_texts, tiny_tokenizer
from helpers.vllm_stand_in import install

RUBRIC = small_rubric()
QUESTIONS = questions_of(RUBRIC, some_texts())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judge"), tokenizer=tiny_tokenizer(spaced="12"))


def by_document(judge):
    return {question.document_id: answer for question, answer in judge.answers(QUESTIONS)}


def test_without_vllm_it_is_refused_with_the_first_question(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    judge = VllmJudge(folder, RUBRIC)
    assert judge.identity["kind"] == "vllm"
    with pytest.raises(InputError, match=r"no vLLM.*fix"):
        list(judge.answers(QUESTIONS[:1]))


def test_what_vllm_cannot_read(folder, monkeypatch, tmp_path):
    install(monkeypatch)
    with pytest.raises(InputError, match=r"GGUF.*fix"):
        VllmJudge("model.gguf", RUBRIC)
    with pytest.raises(ModelError, match="no such file or folder"):
        VllmJudge(tmp_path / "none", RUBRIC)

    def broken(*given, **named):
        raise RuntimeError("No available memory for the cache blocks")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", broken)
    with pytest.raises(ModelError, match=r"No available memory.*fix"):
        list(VllmJudge(folder, RUBRIC).answers(QUESTIONS[:1]))


def test_the_same_grades_as_the_local_judge(folder, monkeypatch):
    made = install(monkeypatch)
    monkeypatch.setattr(vllm_judge, "WINDOW", 5)
    judge = open_judge([f"vllm:{folder}"], RUBRIC, JudgeOptions(dtype="float32"))
    local = LocalJudge(folder, RUBRIC, "cpu", "float32")
    assert made == [], "nothing is loaded before the first question"
    expected, found = by_document(local), by_document(judge)
    assert len(found) == len(expected) == len(QUESTIONS)
    for question, answer in found.items():
        assert answer.status == expected[question].status
        assert answer.grade == pytest.approx(expected[question].grade, abs=1e-5)
        assert answer.probabilities == pytest.approx(expected[question].probabilities, abs=1e-6)
        assert (answer.usage, answer.text, answer.mode) == (
            expected[question].usage,
            expected[question].text,
            "token-ids",
        )
    assert (len(made), made[0]["dtype"], made[0]["max_logprobs"]) == (1, "float32", 20)
    assert judge.count_tokens(QUESTIONS) == local.count_tokens(QUESTIONS)
    assert {**judge.identity, "kind": "transformers"} == local.identity, "other answers in the ledger, else the same"


def test_prompts_that_do_not_fit_and_probabilities_that_are_not_there(folder, monkeypatch):
    judge = VllmJudge(folder, RUBRIC, "float32")
    lengths = judge.count_tokens(QUESTIONS)
    install(monkeypatch, context=sorted(lengths)[6])  # of which one is for the answer
    found = by_document(judge)
    assert [found[question.document_id].status == "too-long" for question in QUESTIONS] == [
        length >= sorted(lengths)[6] for length in lengths
    ]
    other = VllmJudge(folder, RUBRIC, "float32")
    install(monkeypatch, forgets=other._ids[:1])
    assert {answer.status for _, answer in other.answers(QUESTIONS[:3])} <= {"no-probabilities", "no-option"}
