import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bixse.judging.judge import Usage
from bixse.judging.judges.dialects import Choice, RequestForm, parse_reply, read_choices, read_position, request_body
from bixse.judging.judges.reading import expected_grade, spellings
from bixse.judging.rubrics import load_rubric

RUBRIC = load_rubric("trec-dl-0-3")
LABELS = RUBRIC.labels
VALUES = (0.0, 1.0, 2.0, 3.0)
TOKENS = [spelling for label in LABELS for spelling in spellings(label)]
OTHERS = ["The", "I", "13", "3.", "**", "\n"]
TOP = RequestForm("m", "top-logprobs", LABELS)
FORCED = RequestForm("m", "constrained", LABELS, constraint="grammar")
Entries = list[tuple[str, Any]]


def position(written, own, listed):
    top = [{"token": token, "logprob": value} for token, value in listed]
    logprobs = {"content": [{"token": written, "logprob": own, "top_logprobs": top}]}
    reply = parse_reply({"choices": [{"message": {"content": written}, "finish_reason": "stop", "logprobs": logprobs}]})
    return reply.choices[0].positions[0]


def grades(found, form=TOP):
    """Return the grade with its bounds, or None without probabilities."""
    options = read_position(found, form, LABELS)
    return None if options is None else expected_grade(VALUES, options)


def extremes(seen, most, unseen):
    """Return the lowest and highest expected grade over all probabilities of hidden spellings, by linear programs.

    Charnes and Cooper make the ratio of linear functions linear: y = x / sum, t = 1 / sum.
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
    """Draw a distribution and the part of it that a server returns."""
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
    truth = np.average([VALUES[LABELS.index(t.strip())] for t in TOKENS], weights=[full[t] for t in TOKENS])
    assert low - 1e-9 <= truth <= high + 1e-9
    # a missing token is at most the least probable returned one; a constraint writes the most probable option
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
    """Return True if the values of both spellings of a label could be those of one token."""
    both = [seen[spelling] for spelling in spellings(label) if spelling in seen]
    return len(both) == 2 and min(both) > 0.9 * max(both)


UNUSABLE = [None, math.nan, -9999.0, -math.inf, math.inf, 0.5, 1000.0, "-0.1", -3.4e38]


@pytest.mark.parametrize("value", UNUSABLE)
def test_an_unusable_value_of_the_written_token_is_a_status(value):
    others = [("0", -2.0), ("1", -1.5), ("2", -1.8)]
    assert grades(position("3", -0.9, [("3", -0.9), *others])) is not None
    assert grades(position("3", value, [("3", value), *others])) is None
    assert grades(position("3", value, others)) is None
    assert grades(position("3", -0.9, [("3", -0.9), ("3", value), *others])) is None


def test_an_unusable_value_beside_the_written_token_widens_the_bounds():
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


def test_one_text_with_two_values_is_one_token_and_the_bounds_allow_two():
    listed = [("3", math.log(0.4)), ("3", math.log(0.2)), ("0", math.log(0.3))]
    grade, low, high = grades(position("3", math.log(0.4), listed))
    assert grade == pytest.approx(3 * 0.4 / 0.7)
    assert low <= grade
    assert high >= 3 * 0.6 / 0.9


MESSAGES = [{"role": "system", "content": "judge"}, {"role": "user", "content": "q and d"}]


def chat(logprobs, text="2", **more):
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": logprobs} | more
    return {"choices": [choice], "model": "m"}


def listed(values):
    return [{"token": token, "logprob": value, "bytes": None} for token, value in values.items()]


@pytest.mark.parametrize(
    "content",
    [None, [], "text", 3, {}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{}]},
     {"choices": [{"message": None}]}, {"choices": [{"message": {"content": ""}, "error": {"code": 502}}]}],
)  # fmt: skip
def test_an_incomplete_reply_is_refused(content):
    with pytest.raises(ValueError):
        parse_reply(content)


@pytest.mark.parametrize(
    "logprobs",
    [
        *(None, {}, {"content": None}, {"content": []}, {"tokens": None}, {"content": [None]}),
        *({"content": [{"token": "2", **rest}]} for rest in ({}, {"logprob": None, "top_logprobs": None})),
        {"content": [{"token": "2", "logprob": "x", "top_logprobs": [{"token": "3", "logprob": "y"}]}]},
        {"content": [{"token": "2", "logprob": 0.0, "top_logprobs": listed(dict.fromkeys("2310", 0.0))}]},
        {"content": [{"token": "2", "logprob": -0.1, "top_logprobs": listed({"2": 1.2, "3": -3.0})}]},
        {"content": [{"token": "2.", "logprob": -0.1, "top_logprobs": listed({"2.": -0.1, "3": -3.0})}]},
    ],
)
def test_a_reply_without_probabilities_has_a_status(logprobs):
    answer = read_choices(parse_reply(chat(logprobs)).choices, TOP, RUBRIC)
    assert (answer.status, answer.grade) == ("no-probabilities", None)


def test_texts_of_every_shape():
    parts = chat(None, text=[{"type": "text", "text": "2"}, {"type": "text", "text": "!"}])
    assert parse_reply(parts).choices[0].text == "2!"
    assert parse_reply(chat(None, text=None)).choices[0].text == ""
    refused = {"choices": [{"message": {"content": None, "refusal": "no"}, "finish_reason": "stop"}]}
    assert parse_reply(refused).choices[0].refusal == "no"
    reasoned = {"choices": [{"message": {"content": "2", "reasoning_content": "3?"}, "finish_reason": None}]}
    assert parse_reply(reasoned).choices[0] == Choice("2", "stop")


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8},
          "completion_tokens_details": {"reasoning_tokens": 6}}, Usage(9, 8, 7, 6)),
        ({"prompt_cache_hit_tokens": 4, "prompt_tokens_details": None}, Usage(9, 4)),
        (None, Usage()),
        *(({"prompt_tokens": count, "prompt_tokens_details": {"cached_tokens": 8}}, Usage())
          for count in (math.inf, math.nan, -1, 12.5, 10**8, 10**400, True, "12", None, [12])),
    ],
)  # fmt: skip
def test_usage_is_what_is_possible_of_the_reported(reported, usage):
    assert parse_reply(chat(None) | {"usage": reported and {"prompt_tokens": 9, **reported}}).usage == usage


def test_a_body_holds_what_the_form_says():
    body = request_body(TOP, MESSAGES)
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"], body["temperature"]) == (True, 20, 16, 0.0)
    assert body["messages"] == MESSAGES
    assert "seed" not in request_body(TOP, MESSAGES, seed=3)
    merged = request_body(replace(TOP, system_role=False, top_logprobs=0), MESSAGES)
    assert merged["messages"] == [{"role": "user", "content": "judge\n\nq and d"}]
    assert MESSAGES[1]["content"] == "q and d"
    assert "logprobs" not in merged
    sample = RequestForm("m", "sample", samples=5, seeded=True, top_logprobs=0, temperature=1.0)
    assert {"n": 5, "seed": 3, "temperature": 1.0}.items() <= request_body(sample, MESSAGES, seed=3).items()


@pytest.mark.parametrize(("mode", "asks"), [("verbal", 1), ("sample", 1), ("top-logprobs", 0), ("constrained", 0)])
def test_a_written_grade_is_asked_for_alone_on_the_last_line_and_no_other(mode, asks):
    form = RequestForm("m", mode, LABELS)
    system, user = request_body(form, MESSAGES)["messages"]
    assert system == MESSAGES[0], "the rubric's own words stay"
    asked, *lines = user["content"].split("\n\n")
    assert (asked, len(lines)) == (MESSAGES[1]["content"], asks)
    assert all("last line" in line and "0, 1, 2, 3" in line for line in lines)
    names = ["temperature", "top_logprobs", "max_tokens", "samples", "constraint", "system_role", "thinking_off"]
    assert list(form.parameters) == [*names, *["answer_line"] * asks], "what decides the answer is in the ledger's key"
    assert [form.parameters.get("answer_line")] == (lines or [None])


@pytest.mark.parametrize(
    ("constraint", "value"),
    [("structured_outputs", {"choice": ["0", '"1"']}), ("grammar", 'root ::= "0" | "\\"1\\""'), ("regex", '(0|"1")')],
)
def test_constraints_of_every_server(constraint, value):
    form = RequestForm("m", "constrained", ("0", '"1"'), constraint=constraint)
    assert request_body(form, MESSAGES)[constraint] == value
