"""Replies and requests of every dialect, without a network."""

import math
from dataclasses import replace

import pytest

from bixse.judging.judge import Usage
from bixse.judging.judges.dialects import (
    Choice,
    RequestForm,
    parse_reply,
    read_choices,
    read_position,
    request_body,
    simpler_form,
)
from bixse.judging.rubrics import load_rubric

RUBRIC = load_rubric("trec-dl-0-3")
LABELS = RUBRIC.labels
FORM = RequestForm("m", "top-logprobs", LABELS)
MESSAGES = [{"role": "system", "content": "judge"}, {"role": "user", "content": "q and d"}]
TOP = {"2": math.log(0.5), " 2": math.log(0.1), "3": math.log(0.2), "No": math.log(0.05)}


def chat(logprobs, text="2", **more):
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": logprobs} | more
    return {"choices": [choice], "model": "m"}


def listed(values):
    return [{"token": token, "logprob": value, "bytes": None} for token, value in values.items()]


def first_token(top):
    return chat({"content": [{"token": "2", "logprob": TOP["2"], "top_logprobs": top}]})


DIALECTS = {
    "openai": first_token(listed(TOP)),
    "marks for spaces": first_token(listed({token.replace(" ", "Ġ"): value for token, value in TOP.items()})),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_gives_the_same_probabilities(name):
    answer = read_choices(parse_reply(DIALECTS[name]).choices, FORM, RUBRIC)
    assert answer.status == "graded"
    assert answer.probabilities == pytest.approx((0.0, 0.0, 0.6, 0.2))


@pytest.mark.parametrize(
    "content",
    [None, [], "text", 3, {}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{}]},
     {"choices": [{"message": None}]}, {"choices": [{"message": {"content": ""}, "error": {"code": 502}}]}],
)  # fmt: skip
def test_what_is_no_reply_is_refused(content):
    with pytest.raises(ValueError):
        parse_reply(content)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"tokens": None},
        {"content": [None]},
        {"content": [{"token": "2"}]},
        {"content": [{"token": "2", "logprob": None, "top_logprobs": None}]},
        {"content": [{"token": "2", "logprob": "x", "top_logprobs": [{"token": "3", "logprob": "y"}]}]},
        {"content": [{"token": "2", "logprob": 0.0, "top_logprobs": [{"token": "3", "logprob": -9999.0}]}]},
        {"content": [{"token": "2", "logprob": 0.0, "top_logprobs": listed(dict.fromkeys("2310", 0.0))}]},
        {"content": [{"token": "2", "logprob": -9999.0, "top_logprobs": listed(dict.fromkeys("2310", -9999.0))}]},
        {"content": [{"token": "2", "logprob": 0.0, "top_logprobs": listed({"2": 0.0})}]},
        {"content": [{"token": "2", "logprob": -0.1, "top_logprobs": listed({"2": 1.2, "3": -3.0})}]},
        {"content": [{"token": "2", "logprob": math.nan, "top_logprobs": listed({"2": math.nan, "3": -3.0})}]},
        {"content": [{"token": "2.", "logprob": -0.1, "top_logprobs": listed({"2.": -0.1, "3": -3.0})}]},
    ],
)
def test_what_are_no_probabilities_are_none(logprobs):
    answer = read_choices(parse_reply(chat(logprobs)).choices, FORM, RUBRIC)
    assert (answer.status, answer.grade) == ("no-probabilities", None)


def test_a_constrained_token_below_the_listed_ones_bounds_only_what_could_be_written():
    form = RequestForm("m", "constrained", LABELS, constraint="grammar")
    entry = {"token": "1", "logprob": -8.0, "top_logprobs": listed({"The": -0.5, "A": -3.0})}
    position = parse_reply(chat({"content": [entry]}, text="1")).choices[0].positions[0]
    found = read_position(position, form, LABELS)
    assert found is not None
    assert found.probabilities == pytest.approx((0.0, math.exp(-8.0), 0.0, 0.0))
    assert found.hidden[0] == pytest.approx(math.exp(-8.0) + math.exp(-3.0))  # "0" and " 0"
    assert found.hidden[1] == pytest.approx(math.exp(-3.0))  # " 1"


def test_texts_of_every_shape():
    parts = chat(None, text=[{"type": "text", "text": "2"}, {"type": "text", "text": "!"}])
    assert parse_reply(parts).choices[0].text == "2!"
    assert parse_reply(chat(None, text=None)).choices[0].text == ""
    refused = {"choices": [{"message": {"content": None, "refusal": "no"}, "finish_reason": "stop"}]}
    assert parse_reply(refused).choices[0].refusal == "no"
    reasoned = {"choices": [{"message": {"content": "2", "reasoning_content": "3?"}, "finish_reason": None}]}
    assert parse_reply(reasoned).choices[0] == Choice("2", "stop")


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 0, 2, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8},
          "completion_tokens_details": {"reasoning_tokens": 6}}, Usage(9, 8, 7, 6)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_tokens_details": None}, Usage(9, 4)),
        (None, Usage()),
        ({"prompt_tokens": None}, Usage()),
    ],
)  # fmt: skip
def test_usage(told, usage):
    assert parse_reply(chat(None) | {"usage": told}).usage == usage


@pytest.mark.parametrize("count", [math.inf, math.nan, -1, 12.5, 10**8, 10**400, True, "12", None, [12]])
def test_what_is_no_number_of_tokens_is_unknown(count):
    usage = {"prompt_tokens": count, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    assert parse_reply(chat(None) | {"usage": usage}).usage == Usage(0, 0, 2, 0)


def test_a_body_holds_what_the_form_says():
    body = request_body(FORM, MESSAGES)
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"], body["temperature"]) == (True, 20, 16, 0.0)
    assert body["messages"] == MESSAGES
    assert "seed" not in request_body(FORM, MESSAGES, seed=3)
    merged = request_body(replace(FORM, system_role=False, top_logprobs=0), MESSAGES)
    assert merged["messages"] == [{"role": "user", "content": "judge\n\nq and d"}]
    assert MESSAGES[1]["content"] == "q and d"
    assert "logprobs" not in merged
    sample = RequestForm("m", "sample", samples=5, seeded=True, top_logprobs=0, temperature=1.0)
    assert {"n": 5, "seed": 3, "temperature": 1.0}.items() <= request_body(sample, MESSAGES, seed=3).items()


@pytest.mark.parametrize("mode", ["verbal", "sample"])
def test_a_written_grade_is_asked_for_alone_on_the_last_line(mode):
    form = RequestForm("m", mode, LABELS, top_logprobs=0)
    system, user = request_body(form, MESSAGES)["messages"]
    assert system == MESSAGES[0], "the rubric's own words stay"
    asked, _, line = user["content"].rpartition("\n\n")
    assert asked == MESSAGES[1]["content"]
    assert "last line" in line and "0, 1, 2, 3" in line
    assert form.parameters["answer_line"] == line, "it decides the answer, so the ledger's key holds it"


@pytest.mark.parametrize("mode", ["top-logprobs", "constrained"])
def test_requests_and_keys_of_other_modes_are_what_they_were(mode):
    form = RequestForm("m", mode, LABELS)
    assert request_body(form, MESSAGES)["messages"] == MESSAGES
    assert set(form.parameters) == {
        "temperature", "top_logprobs", "max_tokens", "samples", "constraint", "system_role", "thinking_off",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("constraint", "value"),
    [
        ("structured_outputs", {"choice": ["0", '"1"']}),
        ("grammar", 'root ::= "0" | "\\"1\\""'),
        ("regex", '(0|"1")'),
    ],
)
def test_constraints_of_every_server(constraint, value):
    form = RequestForm("m", "constrained", ("0", '"1"'), constraint=constraint)
    assert request_body(form, MESSAGES)[constraint] == value


def test_refused_probabilities_are_asked_for_in_smaller_number():
    form, asked = FORM, []
    while form.top_logprobs:
        asked.append(form.top_logprobs)
        form = simpler_form(form, "no")
    assert asked == [20, 10, 5]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        ("Unsupported: 'max_tokens'. Use 'max_completion_tokens'.", "limit_name", "max_completion_tokens"),
        ("'temperature' does not support 0", "temperature", None),
        ("System role not supported", "system_role", False),
        ("Conversation roles must alternate user/assistant", "system_role", False),
        ("top_logprobs must be at most 10", "top_logprobs", 10),
        ("what?", "top_logprobs", 10),
    ],
)
def test_what_is_refused_is_left_out(message, field, value):
    simpler = simpler_form(FORM, message)
    assert simpler is not None
    assert getattr(simpler, field) == value


def test_leaving_out_comes_to_an_end():
    form = FORM
    steps = 0
    while form is not None:
        form, steps = simpler_form(form, "no"), steps + 1
        assert steps < 30
