"""Where the answer stands: real shapes of judges' texts, and the published parsers' mistakes."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.errors import InputError
from bixse.judging.judges.reading import answer_token, expected_grade, find_answer, option_probabilities

DIGITS = ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("so it could be a 3</think>1", "1"),
        ("<think>it is a 3", ""),
        ("[THINK]3[/THINK]2", "2"),
        ("<|channel|>analysis<|message|>3?<|end|><|start|>assistant<|channel|>final<|message|>2", "2"),
        ("<|channel|>analysis<|message|>it is 3", ""),
        ("\u25c1think\u25b73?\u25c1/think\u25b72", "2"),
        ("\u25c1think\u25b7\n3\n", ""),
        ("<|begin_of_thought|>\n3\n<|end_of_thought|>\n\n2", "2"),
        ("<|START_THINKING|>\n3\n", ""),
        ("<scratchpad>\nScore: 3\n</scratchpad>\nScore: 2", "2"),
        ("2<think>or 3", ""),
    ],
)
def test_reasoning_is_no_answer(text, label):
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("graded" if label else "truncated", label)


@pytest.mark.parametrize(
    ("text", "finish", "refusal", "status"),
    [
        ("2", "length", "", "truncated"),
        ("3", "content_filter", "", "filtered"),
        ("", "stop", "I will not judge this.", "refused"),
        ("I'm sorry, I can't help with that.", "stop", "", "refused"),
        ("I\u2019m unable to judge this.", "stop", "", "refused"),
        ("As an AI, I have no opinion.", "stop", "", "refused"),
        ("I can't tell from this passage.", "stop", "", "no-option"),
    ],
)
def test_what_ends_without_an_option_has_a_status(text, finish, refusal, status):
    assert find_answer(text, DIGITS, finish, refusal).status == status


ANSWERED = [
    ("2", 2), ("\n\n2\n", 2), ("2!", 2), ("**2.**", 2), ("`2`", 2), ("\u201c1\u201d", 1), ("[[2]]", 2), ("# 2", 2),
    ("<|im_start|>assistant\n3<|im_end|>", 3), ("<think>not a 3, at most a 2</think>1", 1), ("score = 2", 2),
    ("**Score:** 2", 2), ("**Score: 2**", 2), ("Final answer: 2", 2), ("##final score: 2", 2),
    ('{"relevance": "2"}', 2), ('{"reason": "It does not name Paris.", "score": 2}', 2),
    ('```json\n{"score": 2}\n```', 2), ('{\n  "reason": "no",\n  "score": 2\n}', 2), ('{"final_score": 2}', 2),
    ("It has 2 parts and 3 more.\nFinal answer: 1", 1), ("1. It names the city.\n2. It names no date.\n\n1", 1),
    ("0: nothing\n1: on the topic\n2: some answer\n3: the answer\n\nScore: 2", 2),
]  # fmt: skip
"""Answers in the form that is asked for."""
OTHER_FORMS = [
    "- 2", "\\boxed{2}", "The answer is **2**.", "<answer>2</answer>", "<score>\n2\n</score>", "2,", "2 out of 3",
    "3\nThe passage names 2 cities and 1 river.", "2 (highly relevant)", "1 - Only tangentially relevant",
    "The passage does not name Paris. Score: 1", "Reasoning: it is not related.\nRelevance: 0 (not relevant)",
]  # fmt: skip
"""Ratings in prose or with more text after them. A parser that reads these misreads others."""
NOT_RATED = [
    # negations
    "I would not give it a 3.", "Score: not 3", "not 2", "I cannot rate it 3.",
    # comparisons
    "at most 2", ">= 2", "~2", "Score: < 2", "Score: 2+", "2 or higher", "2, at most", "2-3", "2/3 or 3/3",
    # numbers of lists
    "2. The passage is about another city.", "1) The passage names Paris.", "**2.** The passage is about another city.",
    # several
    "2, 3", "2. 3", "2\n3", "3 2", "2, 7", "2\nActually, it should be a 3.", "Score: 3\nAdjusted score: 1",
    "<score>1</score>\n<score>2</score>", '{"score": 3, "adjusted_score": 1}', '{"score": 3}\n{"score": 1}',
    "Relevance: 3\nTrust: 1\nScore: 2", "I would give it a score of 3.\n\n1", "**3**\n\n**1**",
    "Final grade (of 3): 1\n\n2", "Score: 2.5\n\n2", "It is a 1. No, it is a 2.",
    # with a reservation
    "3\n\nToo high.", "2, and a half", "2-ish", "2 minus",
    # the scale once more
    "On a scale of 0 to 3, I would rate this passage a 1.", "3\n2\n1\n0",
    "3: perfectly relevant\n2: highly relevant\n1: related\n0: irrelevant",
    "irrelevant: 0\nrelated: 1\nhighly relevant: 2\nperfectly relevant: 3",
    # outside the rubric
    "7", " 10", "3.5", "3,5", "-1", "\u22121", "10/10", "**5**",
    # conditions, questions, other numbers
    "I would rate it a 3 if it named the capital.", "2?", "", "   \n", "GPT-4 wrote it", "3% of it", "x3", "the 3rd",
]  # fmt: skip
"""Texts without a rating, or with an uncertain rating."""


@pytest.mark.parametrize(("text", "grade"), ANSWERED)
def test_the_option_alone_on_the_last_line_is_read(text, grade):
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("graded", str(grade))
    assert text[answer.start] == str(grade)


@pytest.mark.parametrize("text", NOT_RATED + OTHER_FORMS)
def test_every_other_text_is_a_status(text):
    answer = find_answer(text, DIGITS)
    assert answer.status == ("refused" if text == "I cannot rate it 3." else "no-option")
    assert answer.label == ""
    assert answer.detail


@pytest.mark.parametrize("text", [text for text, _ in ANSWERED] + NOT_RATED)
def test_a_text_that_is_cut_off_has_no_grade(text):
    for end in range(len(text) + 1):
        assert find_answer(text[:end], DIGITS, "length").status == "truncated"


TEXTS = st.text(st.sampled_from('0123 .:\n<>/{}"score*,-ansx'), max_size=60) | st.text(max_size=60)
STANDING = st.sampled_from(
    ["\n{}\n", "\n**{}**\n", "\n- {}.\n", "<score>{}</score>", "<x>\n{}</x>", "<x>about {}</x>", "score {}",
     "Score: {}", "rating of {}", "\nThe grade would be {} here", "note: {}", '"key": {}', "adjusted_score: {}",
     "scored it {} and", ": **{}**"]
)  # fmt: skip
"""Places in which a number is a rating: a line, a tag, after a colon, after "score", "rating" or "grade" in a line."""


@settings(max_examples=500, deadline=None)
@given(TEXTS, STANDING, st.permutations(DIGITS), st.sampled_from(["{}", "Score: {}", '{{"score": {}}}']))
def test_another_rating_before_the_answer_takes_it_away(text, one, options, form):
    before = f"{text}\n{one.format(options[0])}\n"
    assert find_answer(before + form.format(options[1]), DIGITS).status != "graded"


@settings(max_examples=1000, deadline=None)
@given(TEXTS)
def test_a_grade_is_the_last_number_and_stands_on_the_last_lines(text):
    answer = find_answer(text, DIGITS)
    if answer.status == "graded":
        assert text[answer.start] == answer.label
        assert not re.search(r"\d", text[answer.start + 1 :])
        after = re.sub(r"</?\w+>|<\|[^|<>]*\|>|```\w*", "", text[answer.start + 1 :])
        assert not re.search(r"\w", after)


@pytest.mark.parametrize(
    "text",
    ["2. The passage is about another", "2. The passage is about another city.", "2 - the passage is", "Score: 2"],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_where_the_probabilities_are_the_grade_the_place_is_enough(text, finish):
    answer = find_answer(text, DIGITS, finish, position_only=True)
    assert (answer.status, answer.label) == ("graded", "2")


@pytest.mark.parametrize(
    "text",
    ["On a scale of 0 to 3, I would rate this passage a 1.", "0, 1, 2 or 3", "2-3", "2/3", "2.5", "20", "2 %", "3rd",
     "> 2", "Score: 1\nScore: 2", "2\n3", "1. The passage names Paris.\n2. The query asks for it.", "", "<think>2"],
)  # fmt: skip
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_place_of_a_number_that_is_no_answer_is_none(text, finish):
    assert find_answer(text, DIGITS, finish, position_only=True).status != "graded"


@pytest.mark.parametrize(
    ("text", "labels", "label"),
    [
        ("It is about bread.\nNo.", ("No", "Yes"), "No"),
        ("10", ("1", "10"), "10"),
        ("10", ("1", "2"), ""),
        ("Score: 10\n1", ("1", "10"), ""),
        *((text, ("No", "Yes"), "") for text in ("No, it is about bread.", "Answer: No\nYes", "No-one knows", "yes")),
    ],
)
def test_words_and_numbers_of_two_digits_are_options_too(text, labels, label):
    answer = find_answer(text, labels)
    assert (answer.status, answer.label) == ("graded" if label else "no-option", label)


@pytest.mark.parametrize(
    ("tokens", "text", "index"),
    [
        (["3"], "3", 0),
        ([" 3", "<|im_end|>"], " 3", 0),
        ([" 3", "</s>"], "3", 0),  # the server strips its text
        (["\n", "\n", "2", "."], "\n\n2.", 2),
        (["Answer", ":", " ", "2", "."], "Answer: 2.", 3),
        (["<think>", "3", "?", "</think>", "\n\n", "2"], "<think>3?</think>\n\n2", 5),
        (["I", " see", " 3", " things", "2"], "2", 4),  # separate reasoning, its tokens included
        (["3", "\n", "It", " has", " 4"], "3\nIt has 4", 0),
        (['"3"'], '"3"', None),  # not a token of its own
        (["score", "=3"], "score=3", None),
        (["x"], "3", None),
        (["I", " see", " 3", " things"], "3", None),  # the answer's own tokens are missing
        ([], "3", None),
    ],
)
def test_the_token_of_the_answer(tokens, text, index):
    answer = find_answer(text, DIGITS, position_only=True)
    assert answer.label in ("2", "3")
    assert answer_token(tokens, text, answer) == index


def test_long_hostile_texts_take_no_time():
    started = time.perf_counter()
    for text in (" " * 20000 + "x", "- " * 10000, "rate the " * 5000, "1 " * 5000, "<think>" * 3000, "*" * 20000 + "3",
                 "relevance " + "of to " * 60 + "x 1", "I rate it " + "the " * 5000 + "3.", "1.\n" * 3000,
                 "so, " * 5000 + "I rate it 3.", "a 1, " * 3000,
                 "I would rate it a 1. " * 2000, '{"score": ' * 3000 + "1", "1" + " " * 20000 + "x", ":" * 20000,
                 '{"a", ' * 5000 + '"score": 1', "score is " * 5000, "```" * 9000, "<|a|>" * 5000, "1\n" * 9000 + "x",
                 ">" + "\n" * 20000, "1 " * 9000 + "<", "> " * 9000):  # fmt: skip
        find_answer(text, DIGITS)
        find_answer(text, DIGITS, position_only=True)
    assert time.perf_counter() - started < 5.0


def test_without_any_option_there_is_no_grade():
    options = option_probabilities(DIGITS, [("The", -0.1)])
    assert options.mass == 0
    with pytest.raises(InputError):
        expected_grade((0.0, 1.0, 2.0, 3.0), options)
