"""From a server's reply to an answer with a grade or a status."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bixse.grading.judge import TEXT_WIDTH, Answer
from bixse.grading.reading.answer_position import answer_token, find_answer
from bixse.grading.reading.expected_grade import (
    NOT_AVAILABLE,
    OptionProbabilities,
    distinct_tokens,
    expected_grade,
    option_probabilities,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.grading.reading.answer_position import TextAnswer
    from bixse.grading.rubrics import Rubric
    from bixse.grading.server.reply import Choice, Position
    from bixse.grading.server.request import RequestForm


def read_choices(choices: Sequence[Choice], form: RequestForm, rubric: Rubric) -> Answer:
    """Read the answer of a reply in the mode it was asked in; tokens, time and model are left to the caller.

    Args:
        choices: all answers of one question: one, or the samples.
        form: how it was asked.
        rubric: options and their grades.

    Example:
        >>> from bixse.grading.rubrics import load_rubric
        >>> from bixse.grading.server.reply import Choice
        >>> from bixse.grading.server.request import RequestForm
        >>> samples = [Choice("3"), Choice("2"), Choice("3"), Choice("I see")]
        >>> read_choices(samples, RequestForm("qwen", "sample", samples=4), load_rubric("trec-dl-0-3")).probabilities
        (0.0, 0.0, 0.25, 0.5)
    """
    labels = rubric.labels
    text = " | ".join(choice.text for choice in choices)[:TEXT_WIDTH]
    by_place = form.mode not in ("sample", "verbal")
    found = [find_answer(choice.text, labels, choice.finish_reason, choice.refusal, by_place) for choice in choices]
    counts = Counter(answer.label for answer in found if answer.status == "graded")
    if not counts:
        status, _ = Counter(answer.status for answer in found).most_common(1)[0]
        several = f"none of {len(found)} samples gives an option"
        detail = several if form.mode == "sample" else found[0].detail
        return Answer(status, form.mode, text=text, detail=detail[:TEXT_WIDTH])
    if by_place:
        place = _token_of(found[0], choices[0])
        if place is None:
            why = "no token is the answer alone" if choices[0].positions else "no tokens came with the answer"
            return Answer("no-probabilities", form.mode, text=text, detail=why)
        options = read_position(choices[0].positions[place], form, labels)
        if options is None:
            return Answer("no-probabilities", form.mode, text=text, detail="these are no probabilities")
    else:
        options = OptionProbabilities(tuple(counts[label] / len(found) for label in labels))
    expected = expected_grade(rubric.values, options)
    return Answer("graded", form.mode, options.probabilities, expected.grade, expected.low, expected.high, text)


def answer_place(choice: Choice, labels: Sequence[str]) -> int | None:
    """Which token of a choice is its answer, or None where none is."""
    found = find_answer(choice.text, labels, choice.finish_reason, choice.refusal, place=True)
    return _token_of(found, choice) if found.status == "graded" else None


def _token_of(found: TextAnswer, choice: Choice) -> int | None:
    return answer_token([position.token for position in choice.positions], choice.text, found)


def read_position(position: Position, form: RequestForm, labels: Sequence[str]) -> OptionProbabilities | None:
    """The options' probabilities at one position, or None where they are none.

    A server that gives one number for the token it wrote and nothing usable for any other (0 and -9999) gives no
    probabilities, and neither does one that leaves out tokens asked for by id.
    """
    usable = [(token, value) for token, value in position.alternatives if value is not None and value > NOT_AVAILABLE]
    if len({token for token, _ in usable}) < 2:
        return None
    by_id = bool(form.token_ids)
    if by_id and sum(token.text.strip() in labels for token in distinct_tokens(usable, by_id)) < len(form.token_ids):
        return None
    forced = bool(form.constraint) and form.temperature == 0
    options = option_probabilities(labels, position.alternatives, by_id, position.token, forced)
    return options if options is not None and options.mass > 0 else None
