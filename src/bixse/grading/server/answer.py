"""From a server's reply to an answer with a grade or a status."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.grading.reading.answer_position import TextAnswer, answer_token, find_answer
from bixse.grading.reading.expected_grade import (
    NOT_AVAILABLE,
    OptionProbabilities,
    distinct_tokens,
    expected_grade,
    option_probabilities,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.grading.judge import Status
    from bixse.grading.rubrics import Rubric
    from bixse.grading.server.reply import Choice, Failure, Position
    from bixse.grading.server.request import RequestForm

STATUS_OF_FAILURE: dict[Failure, Status] = {
    "too-long": "too-long",
    "filtered": "filtered",
    "no-logprobs": "no-probabilities",
}
"""Status of a request that has no reply; "failed" for all other failures."""


@dataclass(frozen=True)
class Reading:
    """What was read from one reply, or from several samples."""

    status: Status
    """"graded" or why there is no grade."""
    options: OptionProbabilities | None = None
    """Probabilities of the options; None without a grade."""
    position: int | None = None
    """Token that is the answer; None where it was not looked for or not found."""
    detail: str = ""
    """Why there is no grade."""

    def grade(self, rubric: Rubric) -> tuple[float | None, float | None, float | None]:
        """Expected grade with its lower and upper bound; None three times without a grade."""
        if self.options is None:
            return None, None, None
        expected = expected_grade(rubric.values, self.options)
        return expected.grade, expected.low, expected.high


def read_choices(choices: Sequence[Choice], form: RequestForm, labels: Sequence[str]) -> Reading:
    """Read the answer of a reply in the mode it was asked in.

    Args:
        choices: all answers of one question: one, or the samples.
        form: how it was asked.
        labels: the rubric's options, the highest last.

    Example:
        >>> from bixse.grading.server.reply import Choice
        >>> from bixse.grading.server.request import RequestForm
        >>> samples = [Choice("3"), Choice("2"), Choice("3"), Choice("I see")]
        >>> read_choices(samples, RequestForm("qwen", "sample", samples=4), ["0", "1", "2", "3"]).options.probabilities
        (0.0, 0.0, 0.25, 0.5)
    """
    place = form.mode not in ("sample", "verbal")
    found = [find_answer(choice.text, labels, choice.finish_reason, choice.refusal, place) for choice in choices]
    if form.mode == "sample":
        return _shares(found, labels)
    answer = found[0]
    if answer.status != "graded":
        return Reading(answer.status, detail=answer.detail)
    if form.mode == "verbal":
        return Reading("graded", OptionProbabilities(tuple(float(label == answer.label) for label in labels)))
    position = answer_token([position.token for position in choices[0].positions], choices[0].text, answer)
    if position is None:
        why = "no token is the answer alone" if choices[0].positions else "no tokens came with the answer"
        return Reading("no-probabilities", detail=why)
    options = read_position(choices[0].positions[position], form, labels)
    if options is None:
        return Reading("no-probabilities", position=position, detail="these are no probabilities")
    return Reading("graded", options, position)


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


def _shares(found: Sequence[TextAnswer], labels: Sequence[str]) -> Reading:
    """The share of each option in the samples; the most frequent status where no sample has one."""
    counts = Counter(answer.label for answer in found if answer.status == "graded")
    if not counts:
        status, _ = Counter(answer.status for answer in found).most_common(1)[0]
        return Reading(status, detail=f"none of {len(found)} samples gives an option")
    return Reading("graded", OptionProbabilities(tuple(counts[label] / len(found) for label in labels)))
