"""Where the answer stands: real shapes of judges' texts, and the published parsers' mistakes."""

import time

import pytest

from bixse.grading.reading.answer_position import answer_token, find_answer

DIGITS = ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "text",
    ["On a scale of 0 to 3, I would rate this passage a 1.",  # a published parser reads 3
     "0-3", "0, 1, 2 or 3", "1, 2 or 3", "1-5", "Score: 1\nScore: 2", "2\n3", "3 2", "It is a 1. No, it is a 2.",
     "0 - Irrelevant, 1 - Relevant topic, but does not contain the answer", "between 1 and 2"],
)  # fmt: skip
def test_several_options_are_ambiguous_and_never_a_guess(text):
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("ambiguous", "")


@pytest.mark.parametrize("text", ["7", " 10", "3.5", "3,5", "-1", "−1", "10/10", "2/5", "Rating: 7", "**5**", "100"])
def test_a_number_outside_the_rubric_is_off_scale(text):
    assert find_answer(text, DIGITS).status == "off-scale"


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
        ("<Think>\n3\n</Think>\n2", "graded", "2"),
        ("<seed:think>3</seed:think>2", "graded", "2"),
        ("\u25c1think\u25b73?\u25c1/think\u25b72", "graded", "2"),
        ("\u25c1think\u25b7\n3\n", "truncated", ""),
        ("<|begin_of_thought|>\n3\n<|end_of_thought|>\n\n2", "graded", "2"),
        ("<|START_THINKING|>\n3\n", "truncated", ""),
        ("<reflection>\nScore: 3\n", "truncated", ""),
        ("<scratchpad>\nScore: 3\n</scratchpad>\nScore: 2", "graded", "2"),
        ("<thought>3</thought>\n<analysis>\n3\n", "truncated", ""),
        ("2<think>or 3", "truncated", ""),
    ],
)
def test_reasoning_is_no_answer(text, status, label):
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
def test_what_ends_without_an_option_has_a_status(text, finish, refusal, status):
    assert find_answer(text, DIGITS, finish, refusal).status == status


RATED = [
    ("\n\n2\n", 2), ("“1”", 1), ("# 2", 2), ("- 2", 2), ("2!", 2), ("2,", 2), ("2<|im_end|>", 2), ("assistant\n3", 3),
    ("<|im_start|>assistant\n3", 3), ("3/3", 3), ("3\nThe passage names 2 cities and 1 river.", 3),
    ("It has 2 parts and 3 more.\nFinal answer: 1", 1), ("The scale goes from 0 to 3.\n\n2", 2),
    ("2", 2), (" 2\n", 2), ("2.", 2), ("**2**", 2), ("**2.**", 2), ("`2`", 2), ('"2"', 2), ("(2)", 2), ("[[2]]", 2),
    ("Score: 2", 2), ("score = 2", 2), ("Score: 2.", 2), ("**Score:** 2", 2), ("**Score: 2**", 2), ("Rating - 2", 2),
    ("Final answer: 2", 2), ("##final score: 2", 2), ("Relevance score: 2/3", 2), ("2 out of 3", 2),
    ("The score is 2", 2),
    ("The answer is **2**.", 2), ("The relevance of this passage to the query is 2.", 2), ("My rating is 2.", 2),
    ("I would rate it a 2.", 2), ("I'd give this passage a score of 2.", 2), ("I\u2019d rate the passage as 2.", 2),
    ("I rate this passage a 2.", 2), ("I would assign a relevance score of 2.", 2), ("This passage deserves a 2.", 2),
    ("It's a 2.", 2), ("It gets a score of 2.", 2), ("The passage should be rated 2.", 2), ("I think it is a 2.", 2),
    ('{"score": 2}', 2), ('{"relevance": "2"}', 2), ('{"reason": "It does not name Paris.", "score": 2}', 2),
    ('```json\n{"score": 2}\n```', 2), ("\\boxed{2}", 2), ("<answer>2</answer>", 2), ("<score>\n2\n</score>", 2),
    ("2 (highly relevant)", 2), ("2 - Highly relevant", 2), ("1 - Only tangentially relevant", 1),
    ("2: highly relevant, but more than the answer is there", 2),
    ("0 - Not relevant", 0), ("0, because it is not about France.", 0),
    ("2\nIt names 3 cities and no less than 1 river.", 2),
    ("The passage does not name Paris. Score: 1", 1),
    ("The passage does not answer the query, so I would rate it a 0.", 0),
    ("It is not about the capital. Therefore, the score is 0.", 0),
    ("It has less than I hoped for.\n\n**Rating: 1**", 1),
    ("It was written in 1998. I would give it a 3.", 3), ("Based on the criteria, I would give this passage a 1.", 1),
    ("Reasoning: it is not related.\nRelevance: 0 (not relevant)", 0), ("Score: 2. The passage names 3 rivers.", 2),
    ("<think>not a 3, at most a 2</think>1", 1), ("I would rate it a 2, because it only names the city.", 2),
]  # fmt: skip
"""What a judge writes that is a rating."""
NOT_RATED = [
    # negations
    "I would not give it a 3.", "I wouldn't rate this passage a 3.", "I would never give it a 3.", "It is not a 2.",
    "It does not deserve a 3.", "I don't think it is a 2.", "I do not think the score is 2.", "The score is not 2.",
    "It isn't a 2.", "It's not a 3.",
    "This is not worth a 3.", "Score: not 3", "I can hardly give it a 3.", "Nobody would rate it a 3.", "not 2",
    "It is far from a 3.", "The passage fails to earn a 3.", "I cannot rate it 3.",
    # comparisons
    "It deserves less than a score of 2.", "less than 2", "Less than a 2.", "at most 2", "At least a 2.", "> 2", ">2",
    "< 2", ">= 2", "~2", "Score: < 2", "Score: > 2", "Score: at most 2", "Score: 2+", "2 or higher", "2, or higher",
    "2 or less", "2 (or lower)", "2, at most", "I would give it at most a 2.", "I would give it a 2, at best.",
    "I would rate it above 2.", "It scores below 2.", "It deserves more than a 1.", "It is almost a 3.", "Nearly a 2.",
    "between 2 and 3", "Between 2 and 3.", "2-3", "2 to 3", "2 or 3", "2/3 or 3/3", "somewhere around 2", "2 plus",
    # numbers of lists
    "2. The passage is about another city.", "1. The passage names Paris.", "1) The passage names Paris.",
    "1. The passage names Paris.\n2. The query asks for it.", "**2.** The passage is about another city.",
    # several
    "2, 3", "2; 3", "2. 3", "2\n3", "Score: 1\nScore: 2", "2, 7", "I would give it a 3. I would rate it a 7.",
    "2\nActually, it should be a 3.", "2\nWait, that is too high.", "Score: 2\nOn reflection it deserves a 1.",
    # conditions, questions, what the scale says
    "If it named the capital, I would rate it a 3.", "I would rate it a 3 if it named the capital.",
    "I would give it a 3, if it named the capital.", "Unless I am wrong, the score is 3.", "2?", "Is it a 2?",
    "To earn a score of 3, the passage must answer.", "A score of 3 means that it answers.", "The maximum score is 3.",
    "I would have given it a 3.", "I might give it a 2.", "Without the date my rating would be 3.",
    "I was tempted to give it a 3.",
    # other numbers
    "", "   \n", "The passage is about Paris.", "The passage gives 3 reasons.", "GPT-4 wrote it", "the 3rd of May",
    "3% of it", "3 because", "The answer is not in chapter 3.", "x3", "v2", "It has 3 parts.", "See chapter 2.",
    "It came in 2nd.", "two", "2 %", "2.5", "about 2 of them",
]  # fmt: skip
"""What a judge writes that is no rating, or none that can be known."""


@pytest.mark.parametrize(("text", "grade"), RATED)
def test_ratings_as_judges_write_them(text, grade):
    answer = find_answer(text, DIGITS)
    assert (answer.status, answer.label) == ("graded", str(grade))
    assert text[answer.start] == str(grade)


@pytest.mark.parametrize("text", NOT_RATED)
def test_a_number_that_is_no_rating_is_a_status(text):
    answer = find_answer(text, DIGITS)
    assert answer.status in ("no-option", "ambiguous", "off-scale", "refused")
    assert answer.label == ""
    assert answer.detail


@pytest.mark.parametrize("text", [text for text, _ in RATED] + NOT_RATED)
def test_a_text_that_is_cut_off_never_has_another_grade(text):
    """Cut at any place, it has the grade of the whole, or a status."""
    whole = find_answer(text, DIGITS).label
    for end in range(len(text)):
        cut = find_answer(text[:end], DIGITS, "length")
        alone = text[:end].strip() in DIGITS  # as much as a limit of one token lets through
        later = not whole and "\n" in text[:end]  # a line that gives another rating may come after the cut
        assert cut.status != "graded" or cut.label == whole or alone or later


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("2. The passage is about another", "truncated"),
        ("2 - the passage is about", "truncated"),
        ("Score: 2", "truncated"),
        ("Score: 2.", "truncated"),
        ("I would rate it a 2. But", "truncated"),
        ("Let me see.\nScore: 2\nBut the query asks", "truncated"),
        ("Okay, it may be\n2\nor", "truncated"),
        ("2", "graded"),
        ("2\nThe passage is about", "graded"),
        ("**2**", "graded"),
        ("Score: 2\n\nThe passage", "graded"),
        ('{"score": 2}', "graded"),
        ("It names Paris.\nScore: 2\n", "graded"),
        ("2\nActually, it should be a 3.\nSo", "ambiguous"),
    ],
)
def test_a_text_that_is_cut_off_has_a_grade_only_where_the_answer_is_whole(text, status):
    assert find_answer(text, DIGITS, "length").status == status


@pytest.mark.parametrize(
    "text",
    ["2. The passage is about another", "2. The passage is about another city.", "2 - the passage is", "Score: 2"],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_where_the_probabilities_are_the_grade_the_place_is_enough(text, finish):
    answer = find_answer(text, DIGITS, finish, place=True)
    assert (answer.status, answer.label) == ("graded", "2")


@pytest.mark.parametrize("text", [text for text in NOT_RATED if "passage is about" not in text and "names" not in text])
def test_the_place_of_a_number_that_is_no_rating_is_none(text):
    assert find_answer(text, DIGITS, place=True).status != "graded"


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
def test_words_are_options_too(text, status, label):
    answer = find_answer(text, ("No", "Yes"))
    assert (answer.status, answer.label) == (status, label)


def test_the_largest_option_decides_what_a_fraction_means():
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
        (["I", " see", " 3", " things"], "3", None),  # the answer's own tokens are missing
        (["it", "'s", " 2", "</think>", "3", "<|im_end|>", "\n"], "3", 4),
        ([], "3", None),
    ],
)
def test_the_token_of_the_answer(tokens, text, index):
    answer = find_answer(text, DIGITS)
    assert answer.label in ("2", "3")
    assert answer_token(tokens, text, answer) == index


def test_long_hostile_texts_take_no_time():
    started = time.perf_counter()
    for text in (" " * 20000 + "x", "- " * 10000, "rate the " * 5000, "1 " * 5000, "<think>" * 3000, "*" * 20000 + "3",
                 "relevance " + "of to " * 60 + "x 1", "I rate it " + "the " * 5000 + "3.", "1.\n" * 3000,
                 "so, " * 5000 + "I rate it 3.", "a 1, " * 3000,
                 "I would rate it a 1. " * 2000, '{"score": ' * 3000 + "1"):  # fmt: skip
        find_answer(text, DIGITS)
    assert time.perf_counter() - started < 5.0
