"""Questions with an answer planted for the stand-in chat server."""

import numpy as np

from bixse.judging.judge import Question
from bixse.judging.rubrics import load_rubric
from helpers.chat_server import planted

RUBRIC = load_rubric("trec-dl-0-3")
SHARES = [0.1, 0.2, 0.3, 0.3]
GRADE = float(np.average([0, 1, 2, 3], weights=SHARES))


def question(document, identifier="q", rubric=RUBRIC, repeat=0):
    messages = rubric.variants[0].messages("a query", document)
    return Question(identifier, "d", "a query", document, messages=messages, repeat=repeat)


def planted_question(identifier, errors=None, end="", shares=SHARES):
    return question(planted(identifier, shares, errors, end), identifier)


def ask_all(judge, questions):
    """Query id -> answer, of questions that are each answered once."""
    answers = [(asked.query_id, answer) for asked, answer in judge.answers(questions)]
    assert sorted(identifier for identifier, _ in answers) == sorted(asked.query_id for asked in questions)
    return dict(answers)


def ask_one(judge, shares=SHARES, errors=None, end="", **given):
    [(_, answer)] = judge.answers([question(planted("a", shares, errors, end), **given)])
    return answer
