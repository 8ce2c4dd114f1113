"""Questions with an answer planted for the stand-in chat server; the search for a key in what a judge wrote."""

import base64
import html
import re
from urllib.parse import unquote

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


def ask_one(judge, document, rubric=RUBRIC, repeat=0):
    [(_, answer)] = judge.answers([question(document, rubric=rubric, repeat=repeat)])
    return answer


def holds_key(text, key):
    """Return True if a text holds a key, plain or in any encoding that can be undone."""
    wanted, seen, left = key.lower(), set(), [text]
    while left:
        part = left.pop()
        if part in seen or len(seen) > 1000:
            continue
        seen.add(part)
        if wanted in part.lower():
            return True
        left += [unquote(part), html.unescape(part)]
        left.append(re.sub(r"\\+(?:u00|x)([0-9a-fA-F]{2})", lambda hit: chr(int(hit[1], 16)), part))
        left += [bytes.fromhex(run).decode("latin-1") for run in re.findall(r"(?:[0-9a-fA-F]{2}){6,}", part)]
        for run in re.findall(r"[\w+/-]{8,}", re.sub(r"\s|\\+[rn]", "", part), re.ASCII):
            for start in range(4):
                letters = run[start : len(run) - ((len(run) - start) % 4 == 1)]
                padded = letters + "=" * (-len(letters) % 4)
                left.append(base64.b64decode(padded, altchars="-_").decode("latin-1"))
    return False
