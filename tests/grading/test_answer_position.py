"""Where the answer stands: real shapes of judges' texts, and the published parsers' mistakes."""

from __future__ import annotations

import time

import pytest

from bixse.grading.answer_position import answer_token, find_answer

DIGITS = ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "text",
    [
        "On a scale of 0 to 3, I would rate this passage a 1.",  # a published parser reads 3
        "0-3",
        "0, 1, 2 or 3",
        "1, 2 or 3",
        "1-5",
        "0 - Irrelevant, 1 - Relevant topic, but does not contain the answer",
        "Score: 1\nScore: 2",
        "2\n3",
        "3 2",
        "It is a 1. No, it is a 2.",
        "between 1 and 2",
    ],
)
def test_several_options_are_ambiguous_and_never_a_guess(text: str) -> None:
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("ambiguous", "")


@pytest.mark.parametrize("text", ["7", " 10", "3.5", "3,5", "-1", "−1", "10/10", "2/5", "Rating: 7", "**5**", "100"])
def test_a_number_outside_the_rubric_is_off_scale(text: str) -> None:
    assert find_answer(text, DIGITS).status == "off-scale"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "The passage is about Paris.",
        "The passage gives 3 reasons.",
        "GPT-4 wrote it",
        "the 3rd of May",
        "3% of it",
        "3 because",
        "The answer is not in chapter 3.",
        "1. The passage names Paris.\n2. The query asks for it.",
        "v2",
        "x3",
    ],
)
def test_a_number_that_is_no_answer_is_none(text: str) -> None:
    answer = find_answer(text, DIGITS)
    assert answer.status in ("no-option", "ambiguous")
    assert answer.label == ""


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("3", "3"),
        ("  3", "3"),
        ("\n\n2\n", "2"),
        ('"2"', "2"),
        ("“1”", "1"),
        ("**3**", "3"),
        ("`0`", "0"),
        ("# 2", "2"),
        ("- 2", "2"),
        ("2.", "2"),
        ("2!", "2"),
        ("2,", "2"),
        ("2<|im_end|>", "2"),
        ("assistant\n3", "3"),
        ("<|im_start|>assistant\n3", "3"),
        ("3/3", "3"),
        ("2/3", "2"),
        ("1 out of 3", "1"),
        ("3\nThe passage names 2 cities and 1 river.", "3"),
        ("3. It has 2 parts.", "3"),
        ("3: perfectly relevant", "3"),
        ("3 - Perfectly relevant", "3"),
        ("2 (highly relevant)", "2"),
        ("Answer: 2", "2"),
        ("**Rating:** 1", "1"),
        ("##final score: 2", "2"),
        ('{"relevance": 3}', "3"),
        ("\\boxed{2}", "2"),
        ("The answer is 2.", "2"),
        ("I would rate this passage a 1.", "1"),
        ("It was written in 1998. I would give it a 3.", "3"),
        ("It has 2 parts and 3 more.\nFinal answer: 1", "1"),
        ("The scale goes from 0 to 3.\n\n2", "2"),
    ],
)
def test_one_answer_is_found(text: str, label: str) -> None:
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("graded", label)
    assert text[answer.start : answer.start + len(label)] == label


@pytest.mark.parametrize(
    ("text", "status", "label"),
    [
        ("<think>0 or 3?</think>\n\n2", "graded", "2"),
        ("so it could be a 3</think>1", "graded", "1"),
        ("<think>it is a 3", "truncated", ""),
        ("<think>a</think><think>3", "truncated", ""),
        ("[THINK]3[/THINK]2", "graded", "2"),
        ("<|channel|>analysis<|message|>3?<|end|><|start|>assistant<|channel|>final<|message|>2", "graded", "2"),
        ("<|channel|>analysis<|message|>it is 3", "truncated", ""),
    ],
)
def test_reasoning_is_no_answer(text: str, status: str, label: str) -> None:
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == (status, label)


@pytest.mark.parametrize(
    ("text", "finish", "refusal", "status"),
    [
        ("The passage is about", "length", "", "truncated"),
        ("", "length", "", "truncated"),
        ("On a scale of 0", "length", "", "truncated"),
        ("2", "length", "", "graded"),
        ("3", "content_filter", "", "filtered"),
        ("", "stop", "I will not judge this.", "refused"),
        ("I'm sorry, I can't help with that.", "stop", "", "refused"),
        ("I\u2019m unable to judge this.", "stop", "", "refused"),
    ],
)
def test_what_ends_without_an_option_has_a_status(text: str, finish: str, refusal: str, status: str) -> None:
    assert find_answer(text, DIGITS, finish, refusal).status == status


@pytest.mark.parametrize(
    ("text", "status", "label"),
    [
        ("Yes", "graded", "Yes"),
        ("No, it is about bread.", "graded", "No"),
        ("Answer: Yes", "graded", "Yes"),
        ("Yes or No", "ambiguous", ""),
        ("Yesterday", "no-option", ""),
        ("No-one knows", "no-option", ""),
        ("yes", "no-option", ""),
    ],
)
def test_words_are_options_too(text: str, status: str, label: str) -> None:
    answer = find_answer(text, ("No", "Yes"))
    assert (answer.status, answer.label) == (status, label)


def test_the_largest_option_decides_what_a_fraction_means() -> None:
    assert find_answer("4/5", ("1", "2", "3", "4", "5")).label == "4"
    assert find_answer("4/5", ("1", "2", "3", "4")).status == "off-scale"
    assert find_answer("10", ("1", "10")).label == "10"


@pytest.mark.parametrize(
    ("tokens", "text", "index"),
    [
        (["3"], "3", 0),
        ([" 3", "<|im_end|>"], " 3", 0),
        ([" 3", "</s>"], "3", 0),  # the server strips its text
        (["\n", "\n", "2", "."], "\n\n2.", 2),
        (["The", " answer", " is", " ", "2", "."], "The answer is 2.", 4),
        (["<think>", "3", "?", "</think>", "\n\n", "2"], "<think>3?</think>\n\n2", 5),
        (["I", " see", " 3", " things", "2"], "2", 4),  # separate reasoning, its tokens included
        (["3", "\n", "It", " has", " 3"], "3\nIt has 3", 0),
        (['"3"'], '"3"', None),  # not a token of its own
        (["3."], "3.", None),
        (["score", "=3"], "score=3", None),
        (["x"], "3", None),
        ([], "3", None),
    ],
)
def test_the_token_of_the_answer(tokens: list[str], text: str, index: int | None) -> None:
    answer = find_answer(text, DIGITS)
    assert answer.label in ("2", "3")
    assert answer_token(tokens, text, answer) == index


def test_long_hostile_texts_take_no_time() -> None:
    started = time.perf_counter()
    for text in (" " * 20000 + "x", "- " * 10000, "rate the " * 5000, "1 " * 5000, "<think>" * 3000, "*" * 20000 + "3"):
        find_answer(text, DIGITS)
    assert time.perf_counter() - started < 5.0
