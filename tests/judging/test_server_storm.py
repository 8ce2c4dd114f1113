"""Thousands of questions through a storm: each ends once, with the grade that was planted or with its status."""

import random
from collections import Counter

import numpy as np
import pytest

from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Usage, same_model
from bixse.judging.judges.server_judge import ServerJudge
from helpers.chat_server import chat_server
from helpers.server_questions import RUBRIC, ask_all, holds_key, planted_question

QUESTIONS = 3_000
ENDS = {  # what is planted -> the status it ends with
    **dict.fromkeys(["", "think", "left-out", "left-out-of-few", "twice", "other-model", "usage 1e999", "usage -3000",
                     "usage NaN", "usage 12.5", "usage 1e15"], "graded"),
    **dict.fromkeys(["9999", "null", "no-logprobs", "written-nan", "written-null", "written-9999"], "no-probabilities"),
    **dict.fromkeys(["none", "negated", "compared", "ambiguous", "off"], "no-option"),
    **dict.fromkeys(["refuse", "message-refusal", "echo-text"], "refused"),
    **dict.fromkeys(["403", "django", "no-such", "402", "echo-error"], "failed"),
    "filter": "filtered", "too-long": "too-long",
}  # fmt: skip
BOUNDED = ("left-out-of-few", "twice")
"""Ends whose grade is not that of all that is known, but has it within its bounds."""
WRITTEN = ["", "think", "none", "refuse", "ambiguous", "off", "filter", "negated", "compared"]
WRITTEN_ENDS = {**{end: ENDS[end] for end in WRITTEN}, "counted": "no-option", "cut": "truncated"}
"""The same where the grade is the text itself."""
NO_BODY = {"no-logprobs", "too-long", "403", "django", "no-such", "402", "echo-error"}
KEY = "sk-storm/very+secret=0123"
ERRORS = ["500", "half", "garbage", "reset", "empty", "null-choices", "429-quota"]


def storm(dice, count=QUESTIONS, ends=tuple(ENDS)):
    """Shares, errors and end of every question."""
    plans = []
    for number in range(count):
        weights = [dice.uniform(0.05, 1.0) for _ in range(4)]
        mass = dice.uniform(0.6, 0.97)
        shares = [mass * weight / sum(weights) for weight in weights]
        errors = [dice.choice(ERRORS) for _ in range(dice.choice([0] * 27 + [1, 1, 2]))]
        if number % 1000 in range(40):  # bursts of refusals, each of which asks to wait
            errors = [dice.choice(["429", "429-date"]), *errors]
        if number % 1000 == 500:
            errors = ["stall"]
        end = dice.choice(ends) if dice.random() < 0.1 else ""
        if end in NO_BODY:  # refused before there is a body to cut in half
            errors = [error for error in errors if error != "half"]
        plans.append((shares, errors, end))
    return plans


def questions(plans):
    return [planted_question(str(number), errors, end, shares) for number, (shares, errors, end) in enumerate(plans)]


@pytest.mark.slow
def test_thousands_of_questions_in_a_storm(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plans = storm(random.Random(7))
    with chat_server() as server:
        address = server.scenario()
        with ServerJudge([address], RUBRIC, JudgeOptions(max_tokens=32, timeout=3.0, concurrency=32)) as judge:
            answers = {int(identifier): answer for identifier, answer in ask_all(judge, questions(plans)).items()}
        stats = server.stats(address)
    wrong = []
    for number, answer in answers.items():
        shares, errors, end = plans[number]
        grade = np.average([0, 1, 2, 3], weights=shares) if ENDS[end] == "graded" else None
        expected = answer.grade if end in BOUNDED else grade
        if answer.status != ENDS[end] or answer.grade != (
            pytest.approx(expected, abs=1e-6) if grade is not None else None
        ):
            wrong.append((number, end, errors, answer.status, answer.grade, grade, answer.detail))
        if answer.grade is not None and not answer.low - 1e-6 <= grade <= answer.high + 1e-6:
            wrong.append((number, end, errors, answer.low, answer.high, grade, "outside its bounds"))
    assert wrong == []
    for number, answer in answers.items():
        end = plans[number][2]
        assert not holds_key(answer.to_json(), KEY)
        assert (end == "other-model") == (not same_model("judge-model", answer.judge))
        if ENDS[end] == "graded":
            read = (0, 0) if end.startswith("usage") else (50, 40)
            assert answer.usage == Usage(*read, answer.usage.completion)
    assert {answer.mode for answer in answers.values()} == {"top-logprobs"}
    seen = stats["counts"]
    for error, times in Counter(error for _, errors, _ in plans for error in errors).items():
        assert times <= seen[error] <= times + 5, error  # each was met; a time-out of ours may meet one again
    assert stats["most_in_flight"] <= 32 + 2


def test_written_ratings_in_a_storm():
    """The grade is the one that was written; a number that is no rating never is one."""
    plans = storm(random.Random(8), 1000, tuple(WRITTEN_ENDS))
    options = JudgeOptions(mode="verbal", timeout=3.0, concurrency=32)
    with chat_server() as server, ServerJudge([server.scenario(no_logprobs=True)], RUBRIC, options) as judge:
        answers = ask_all(judge, questions(plans))
    found = {int(identifier): (answer.status, answer.grade) for identifier, answer in answers.items()}
    expected = {
        number: (WRITTEN_ENDS[end], float(np.argmax(shares)) if WRITTEN_ENDS[end] == "graded" else None)
        for number, (shares, _, end) in enumerate(plans)
    }
    assert found == expected
    assert {plan[2] for plan in plans} == set(WRITTEN_ENDS)
