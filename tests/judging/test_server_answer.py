"""From replies to grades: bounds against a linear program, unusable values, tokens that are named twice."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bixse.judging.judges.dialects import RequestForm, answer_place, parse_reply, read_choices, read_position
from bixse.judging.judges.reading import expected_grade, spellings
from bixse.judging.rubrics import load_rubric

RUBRIC = load_rubric("trec-dl-0-3")
LABELS = RUBRIC.labels
VALUES = (0.0, 1.0, 2.0, 3.0)
TOKENS = [spelling for label in LABELS for spelling in spellings(label)]
OTHERS = ["The", "I", "relevant", "Score", "**", "\n"]
TOP = RequestForm("m", "top-logprobs", LABELS)
FORCED = RequestForm("m", "constrained", LABELS, constraint="grammar")
Entries = list[tuple[str, Any]]


def position(written, own, listed):
    """The first position of a parsed reply."""
    top = [{"token": token, "logprob": value} for token, value in listed]
    logprobs = {"content": [{"token": written, "logprob": own, "top_logprobs": top}]}
    reply = parse_reply({"choices": [{"message": {"content": written}, "finish_reason": "stop", "logprobs": logprobs}]})
    return reply.choices[0].positions[0]


def grades(found, form=TOP):
    """Grade with its bounds; None where there are no probabilities."""
    options = read_position(found, form, LABELS)
    return None if options is None else expected_grade(VALUES, options)


def extremes(seen, most, unseen):
    """Lowest and highest expected grade over all probabilities of hidden spellings, by linear programs.

    A ratio of linear functions is made linear as Charnes and Cooper do: y = x / sum, t = 1 / sum.

    Args:
        seen: probability of each spelling that was returned.
        most: for each that was not, the most it can have.
        unseen: the most that all of them together can have.
    """
    value = lambda spelling: VALUES[LABELS.index(spelling.strip())]  # noqa: E731
    hidden = list(most)
    mass = sum(seen.values())
    objective = np.array([*map(value, hidden), sum(value(token) * share for token, share in seen.items())])
    above = [[*np.eye(len(hidden))[i], -most[spelling]] for i, spelling in enumerate(hidden)]
    above.append([*np.ones(len(hidden)), -unseen])
    found = [
        linprog(sign * objective, np.array(above), np.zeros(len(above)), [[*np.ones(len(hidden)), mass]], [1.0]).fun
        for sign in (1, -1)
    ]
    return found[0], -found[1]


@st.composite
def replies(draw):
    """A whole distribution, and what a server tells of it."""
    size = len(TOKENS) + len(OTHERS)
    logits = draw(st.lists(st.floats(-9.0, 0.0), min_size=size, max_size=size))
    shares = np.exp(np.array(logits) + np.arange(len(logits)) * 1e-4)
    full = dict(zip([*TOKENS, *OTHERS], map(float, shares / shares.sum()), strict=True))
    form = draw(st.sampled_from([TOP, FORCED]))
    written = max(LABELS if form is FORCED else full, key=full.__getitem__)
    ranked = sorted(full, key=lambda token: -full[token])
    placed = draw(st.sampled_from(["as it is", "left out", "added"]))
    kept = draw(st.integers(2, len(full) - 1))
    top = [token for token in ranked if placed != "left out" or token != written][:kept]
    if placed == "added" and written not in top:
        top = draw(st.permutations([written, *top]))
    return {"full": full, "form": form, "written": written, "top": top}


def told(reply):
    values = {token: math.log(share) for token, share in reply["full"].items()}
    return position(reply["written"], values[reply["written"]], [(token, values[token]) for token in reply["top"]])


def truth(full):
    return float(np.average([VALUES[LABELS.index(t.strip())] for t in TOKENS], weights=[full[t] for t in TOKENS]))


@settings(max_examples=400, deadline=None)
@given(replies())
def test_bounds_are_those_of_a_linear_program_and_hold_the_truth(reply):
    full, written = reply["full"], reply["written"]
    found = read_position(told(reply), reply["form"], LABELS)
    seen = {token: full[token] for token in {*reply["top"], written}}
    if found is None:
        assert not any(token.strip() in LABELS for token in seen)
        return
    assert all(share >= 0 for share in found.hidden)
    grade, low, high = grades(told(reply), reply["form"])
    assert low - 1e-9 <= truth(full) <= high + 1e-9
    # a token that was not returned is no more probable than those that were beside the written one; under a constraint
    # an option that could have been written instead is no more probable than the written one
    least = min(full[token] for token in seen if token != written)
    most = {
        token: min(least, full[written]) if reply["form"] is FORCED and token in LABELS else least
        for token in TOKENS
        if token not in seen
    }
    if not any(alike(seen, label) for label in LABELS):
        expected = extremes({t: share for t, share in seen.items() if t in TOKENS}, most, 1 - sum(seen.values()))
        assert (low, high) == pytest.approx(expected, abs=1e-7)
    assert low <= grade <= high


def alike(seen, label):
    """Whether both spellings of a label came, and their values could be one token's."""
    both = [seen[spelling] for spelling in spellings(label) if spelling in seen]
    return len(both) == 2 and min(both) > 0.9 * max(both)


@settings(max_examples=400, deadline=None)
@given(replies(), st.data())
def test_the_truth_lies_within_the_bounds_where_tokens_are_named_twice(reply, data):
    """Entries come again with slightly other values, or with a mark for the space; some values are missing."""
    found = told(reply)
    again = data.draw(st.lists(st.sampled_from(found.alternatives), max_size=6))
    noise = data.draw(st.lists(st.floats(-0.03, 0.03), min_size=len(again), max_size=len(again)))
    missing = data.draw(st.sets(st.sampled_from(reply["top"]), max_size=2)) - {reply["written"]}
    entries = [(token, None if token in missing else value) for token, value in found.alternatives]
    for (token, value), shift in zip(again, noise, strict=True):
        entries.append((token.replace(" ", "▁"), None if token in missing else value + shift))
    result = grades(position(reply["written"], dict(found.alternatives)[reply["written"]], entries), reply["form"])
    if result is not None:
        assert result[1] - 1e-9 <= truth(reply["full"]) <= result[2] + 1e-9


UNUSABLE = [None, math.nan, -9999.0, -math.inf, math.inf, 0.5, 1000.0, "-0.1", -3.4e38]


@pytest.mark.parametrize("value", UNUSABLE)
def test_an_unusable_value_of_the_written_token_is_a_status(value):
    others = [("0", -2.0), ("1", -1.5), ("2", -1.8)]
    assert grades(position("3", -0.9, [("3", -0.9), *others])) is not None
    assert grades(position("3", value, [("3", value), *others])) is None
    assert grades(position("3", value, others)) is None
    assert grades(position("3", -0.9, [("3", -0.9), ("3", value), *others])) is None
    entry = {"token": "3", "logprob": value, "top_logprobs": [{"token": t, "logprob": v} for t, v in others]}
    choice = {"message": {"content": "3"}, "finish_reason": "stop", "logprobs": {"content": [entry]}}
    answer = read_choices(parse_reply({"choices": [choice]}).choices, TOP, RUBRIC)
    assert (answer.status, answer.probabilities, answer.grade) == ("no-probabilities", (), None)


def test_an_unusable_value_beside_the_written_token_widens_the_bounds():
    """What is not known of a token may be all that is left, not only as much as the least probable one."""
    grade, low, high = grades(position("3", math.log(0.5), [("3", math.log(0.5)), ("0", -9999.0), ("x", -3.0)]))
    left = 0.5 - math.exp(-3.0)
    assert (grade, high) == (3.0, 3.0)
    assert low == pytest.approx(3 * 0.5 / (0.5 + left))


@pytest.mark.parametrize(
    "listed",
    [
        [("3", -1.2), ("3", -1.21), ("0", -1.3), ("1", -1.6)],
        [("3", -1.2), ("▁3", -1.21), ("0", -1.3), ("1", -1.6)],
        [("3", -1.2), (" 3", -1.19), ("0", -1.3), ("1", -1.6)],
        [("▁3", -1.2), ("0", -1.3), ("1", -1.6)],  # written as "3", listed with its mark
        [("Ġ3", -1.2), (" 3", -1.2), ("0", -1.3), ("1", -1.6)],
    ],
)
def test_a_token_that_is_named_twice_counts_once(listed):
    once = grades(position("3", -1.2, [("3", -1.2), ("0", -1.3), ("1", -1.6)]))
    found = grades(position("3", -1.2, listed))
    assert found[0] == pytest.approx(once[0], abs=0.02)
    assert found[1] <= once[0] <= found[2]


def test_two_spellings_with_values_of_their_own_are_two_tokens():
    found = read_position(position("3", -1.0, [("3", -1.0), ("▁3", -2.0), ("0", -1.5)]), TOP, LABELS)
    assert found.probabilities[3] == pytest.approx(math.exp(-1.0) + math.exp(-2.0))


def test_one_text_with_two_values_is_one_token_and_the_bounds_allow_two():
    listed = [("3", math.log(0.4)), ("3", math.log(0.2)), ("0", math.log(0.3))]
    grade, low, high = grades(position("3", math.log(0.4), listed))
    assert grade == pytest.approx(3 * 0.4 / 0.7)
    assert low <= grade
    assert high >= 3 * 0.6 / 0.9


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("I would not give it a 3.", "stop", "no-option"),
        ("It deserves less than a score of 2.", "stop", "no-option"),
        ("2. The passage is about another", "length", "truncated"),
        ("2. The passage is about another city.", "stop", "no-option"),
        ("between 2 and 3", "stop", "no-option"),
        ("Score: 2", "length", "truncated"),
        ("Score: 2", "stop", "graded"),
    ],
)
def test_prose_is_no_rating_where_the_text_is_the_grade(text, finish, status):
    choice = {"message": {"content": text}, "finish_reason": finish}
    verbal = RequestForm("m", "verbal", LABELS, top_logprobs=0)
    reading = read_choices(parse_reply({"choices": [choice]}).choices, verbal, RUBRIC)
    assert reading.status == status
    sample = RequestForm("m", "sample", LABELS, top_logprobs=0, samples=2)
    reading = read_choices(parse_reply({"choices": [choice, choice]}).choices, sample, RUBRIC)
    assert reading.status == status


def test_where_the_probabilities_are_the_grade_the_place_of_the_option_is_enough():
    """The first token of "2. The passage" has the probabilities of a rating, whatever comes after it."""
    top = [{"token": token, "logprob": -0.5 - place} for place, token in enumerate("231")]
    first = {"token": "2", "logprob": -0.5, "top_logprobs": top}
    rest = [{"token": token, "logprob": -0.1, "top_logprobs": []} for token in (".", " The", " passage")]
    choice = {
        "message": {"content": "2. The passage"},
        "finish_reason": "length",
        "logprobs": {"content": [first, *rest]},
    }
    choices = parse_reply({"choices": [choice]}).choices
    assert read_choices(choices, TOP, RUBRIC).status == "graded"
    assert answer_place(choices[0], LABELS) == 0
