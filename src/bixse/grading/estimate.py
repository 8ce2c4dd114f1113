"""What grading will take, before it is paid for: questions, tokens, dollars and time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.grading.asking import Budget
from bixse.grading.cost import Prices
from bixse.grading.grade import LEDGER_NAME, GradeSettings, grade
from bixse.grading.judge import Usage
from bixse.grading.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.grading.judge import Answer, Judge, Question

COUNTED = 1000
"""Questions whose tokens are counted; the rest follows by the number of characters."""
CHARACTERS_A_TOKEN = 4.0
"""Where neither a tokenizer nor an answer tells: a common ratio for English text."""


@dataclass(frozen=True)
class Estimate:
    """What a run of grading would take from here on."""

    pairs: int
    """Pairs to grade."""
    questions: int
    """Questions about them: one an order of the rubric, and those asked again."""
    answered: int
    """Of these, questions whose answer is in the ledger (this estimate's own pilot included)."""
    prompt_tokens: int
    """Tokens to be read for the rest."""
    completion_tokens: int
    """Tokens to be written for the rest."""
    counted_by: str
    """How tokens were counted: "tokenizer", "answers" (their usage) or "characters" (a guess)."""
    usd: float
    """Dollars for the rest; nothing is taken off for prompts that the server has in its cache."""
    seconds: float | None
    """Wall time for the rest at the pilot's rate, or None without a pilot."""
    pilot: int = 0
    """Questions asked for this estimate; their answers are kept."""
    pilot_usd: float = 0.0
    """Dollars they took."""


def estimate(
    pairs: Sequence[Pair],
    judge: Judge,
    out: str | Path,
    settings: GradeSettings | None = None,
    ledger: str | Path | None = None,
    prices: Prices | None = None,
    pilot: int = 16,
    max_usd: float | None = None,
    inputs: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Estimate:
    """Count what is left to ask, and ask a few questions to see tokens and time.

    The pilot is the beginning of the run itself: its answers are in `out` and are not asked again. With `pilot` 0
    nothing is asked and nothing written.

    Raises:
        InputError: as `grade`.
        StorageError: as `grade`.
    """
    settings, prices = settings or GradeSettings(), prices or Prices()
    seconds, asked, pilot_usd = None, 0, 0.0
    book = Path(ledger or Path(out) / LEDGER_NAME)
    if pilot > 0:
        started = time.perf_counter()
        begun = grade(pairs, judge, out, settings, ledger, prices, Budget(max_usd, pilot), inputs=inputs, strict=strict)
        asked, pilot_usd = begun.summary["asked"], begun.summary["usd_of_this_run"]
        seconds = (time.perf_counter() - started) / asked if asked else None
        book = Path(begun.artifacts["ledger"])
    questions = {
        question.key(judge.identity): question
        for pair, repeat in settings.askings(pairs)
        for question in settings.questions(pair, repeat)
    }
    answers = _known(book, list(questions))
    left = [question for key, question in questions.items() if key not in answers]
    prompt, counted_by = _prompt_tokens(left, questions, answers, judge)
    written = [answer.usage.completion for answer in answers.values() if answer.usage.prompt]
    completion = round(len(left) * (math.fsum(written) / len(written) if written else 1.0))
    return Estimate(
        pairs=len(pairs),
        questions=len(questions),
        answered=len(answers),
        prompt_tokens=prompt,
        completion_tokens=completion,
        counted_by=counted_by,
        usd=prices.usd(Usage(prompt=prompt, completion=completion)),
        seconds=None if seconds is None else seconds * len(left),
        pilot=asked,
        pilot_usd=pilot_usd,
    )


def _known(path: Path, keys: Sequence[str]) -> dict[str, Answer]:
    """Answers that are in the ledger; a ledger that is not there is not made."""
    if not path.is_file():
        return {}
    with Ledger(path) as ledger:
        return {key: answer for key in keys if (answer := ledger.find(key)) is not None and answer.status != "failed"}


def _prompt_tokens(
    left: Sequence[Question], questions: Mapping[str, Question], answers: Mapping[str, Answer], judge: Judge
) -> tuple[int, str]:
    """Prompt tokens of the questions that are left, and how they were counted."""
    length = sum(question.characters for question in left)
    sample = left[:: max(1, len(left) // COUNTED)][:COUNTED]
    counts = judge.count_tokens(sample) if sample else None
    if counts is not None:
        shown = sum(question.characters for question in sample)
        return round(sum(counts) * length / shown), "tokenizer"
    read = [(answer.usage.prompt, questions[key].characters) for key, answer in answers.items()]
    tokens, characters = sum(t for t, _ in read if t), sum(c for t, c in read if t)
    if tokens and characters:
        return round(length * tokens / characters), "answers"
    return round(length / CHARACTERS_A_TOKEN), "characters"
