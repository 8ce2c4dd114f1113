"""Estimate the questions, tokens, dollars and time of grading, and format its results."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.judging.ask import Asking, Budget, keyed, of_another_model
from bixse.judging.grade import open_grading
from bixse.judging.grade_settings import GradeSettings, Prices
from bixse.judging.judge import Answer, Judge, Question, Usage
from bixse.judging.ledger import Ledger
from bixse.progress import duration
from bixse.report.table import format_histogram, format_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.data.graded_pairs import Pair

COUNTED = 1000
"""Questions that are tokenized. The tokens of the rest follow from their characters."""
CHARACTERS_A_TOKEN = 4.0
"""A common ratio for English text, used if neither a tokenizer nor an answer gives tokens."""
LEAST_PILOT, MOST_PILOT = 16, 1000
"""Least and most questions of a pilot if no number is given."""
ROUNDS = 3
"""Rounds of a pilot, each of `at_once` questions. Only the last is timed: connections and pace need a warm-up."""


@dataclass(frozen=True)
class Estimate:
    """The cost of the rest of a run of grading; tokens, `usd` and `seconds` are of questions without an answer."""

    pairs: int
    questions: int
    """One question per pair and prompt variant of the rubric, and the questions that are asked twice."""
    answered: int
    """Questions with an answer in the ledger, this estimate's own pilot included."""
    prompt_tokens: int
    completion_tokens: int
    counted_by: str
    """Source of the tokens: "tokenizer", "answers" (their usage) or "characters" (a guess)."""
    usd: float
    """Price without a discount for prompts in the server's cache."""
    seconds: float | None
    """Wall time from the mean time of the pilot's answers after its warm-up, divided by `at_once`; None without a
    pilot."""
    at_once: int
    """Concurrent questions at the end of the pilot."""
    pilot: int
    """Questions asked for this estimate."""
    pilot_usd: float

    def text(self, name: str) -> str:
        """Format the estimate; `name` is the name of the judge."""
        counted = {
            "tokenizer": "counted by the judge's tokenizer",
            "answers": "from the usage of answers so far",
            "characters": "a guess at four characters per token",
        }[self.counted_by]
        left = self.questions - self.answered
        lines = [
            f"{self.pairs} pairs, {self.questions} questions to {name}: {self.answered} answered, {left} to ask",
            f"tokens to read     {self.prompt_tokens:,} ({counted})",
            f"tokens to write    {self.completion_tokens:,}",
            f"price              {self.usd:.4f} US dollars (nothing taken off for cached prompts)",
        ]
        if self.seconds is not None:
            lines.append(
                f"time               {duration(self.seconds)} at {self.at_once} at once, as timed in the pilot"
            )
        if self.pilot:
            lines.append(f"the pilot asked {self.pilot} questions for {self.pilot_usd:.4f} US dollars; they are kept")
        return "\n".join(lines)


def estimate(
    pairs: Sequence[Pair],
    judge: Judge,
    out: str | Path,
    settings: GradeSettings | None = None,
    ledger: str | Path | None = None,
    prices: Prices | None = None,
    pilot: int | None = None,
    max_usd: float | None = None,
    inputs: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Estimate:
    """Count the questions left, and ask a random pilot for tokens and time; arguments and errors are as in `grade`."""
    settings, prices = settings or GradeSettings(), prices or Prices()
    record, book = open_grading(pairs, judge, out, settings, ledger, inputs, strict)
    identity = dict(judge.identity)
    asked_about = (settings.questions(pair, repeat) for pair, repeat in settings.with_repeats(pairs))
    questions = dict(keyed((question for several in asked_about for question in several), identity))
    answers = _known(book, questions, identity, strict)
    left = {key: question for key, question in questions.items() if key not in answers}
    seconds, pilot_usd = [], 0.0
    if left and (pilot is None or pilot > 0):  # 0 asks and writes nothing
        record.save("running")
        try:
            with Ledger(book) as file:
                asking = Asking(judge.answers, identity, file, prices, Budget(max_usd), strict=strict)
                asking.load(left.items())
                seconds = [answer.seconds for answer in asking.each(_chosen(left, judge, pilot))]
        finally:
            record.save("interrupted")
        pilot_usd = asking.usd
        answers |= _known(book, asking.settled, identity, strict)
        left = {key: question for key, question in questions.items() if key not in answers}
    prompt, counted_by = _prompt_tokens(list(left.values()), questions, answers, judge)
    written = [answer.usage.completion for answer in answers.values() if answer.usage.prompt]
    completion = round(len(left) * (math.fsum(written) / len(written) if written else 1.0))
    timed = seconds[min((ROUNDS - 1) * judge.at_once, len(seconds) * (ROUNDS - 1) // ROUNDS) :]
    return Estimate(
        pairs=len(pairs),
        questions=len(questions),
        answered=len(answers),
        prompt_tokens=prompt,
        completion_tokens=completion,
        counted_by=counted_by,
        usd=prices.usd(Usage(prompt=prompt, completion=completion)),
        seconds=math.fsum(timed) / len(timed) / judge.at_once * len(left) if timed else None,
        at_once=judge.at_once,
        pilot=len(seconds),
        pilot_usd=pilot_usd,
    )


def _chosen(left: Mapping[str, Question], judge: Judge, pilot: int | None) -> Iterator[tuple[str, Question]]:
    """Yield `pilot` questions; None: a tenth of all left, at least 16, and at most three times `at_once`."""
    most = max(LEAST_PILOT, min(MOST_PILOT, len(left) // 10)) if pilot is None else pilot
    for number, question in enumerate(random.Random(0).sample(list(left.items()), min(most, len(left)))):
        if pilot is None and number >= max(LEAST_PILOT, ROUNDS * judge.at_once):  # `at_once` changes while it answers
            return
        yield question


def _known(path: Path, keys: Iterable[str], identity: Mapping[str, Any], strict: bool) -> dict[str, Answer]:
    """Return the answers that a run would reuse."""
    if not path.exists():  # opening would make a ledger
        return {}
    with Ledger(path) as ledger:
        keys = list(keys)
        ledger.load(keys)
        found = ((key, ledger.find(key)) for key in keys)
        return {
            key: answer
            for key, answer in found
            if answer is not None and answer.status != "failed" and not (strict and of_another_model(answer, identity))
        }


def _prompt_tokens(
    left: Sequence[Question], questions: Mapping[str, Question], answers: Mapping[str, Answer], judge: Judge
) -> tuple[int, str]:
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


def grade_lines(summary: Mapping[str, Any], name: str) -> list[str]:
    """Return lines with counts, spread and costs of a run of grading; `name` is the name of the judge."""
    graded = summary["statuses"].get("graded", 0)
    computed = f" in {summary['precision']}" if summary["precision"] else ""
    rows: list[list[str | float]] = [[status, str(count)] for status, count in summary["statuses"].items()]
    if summary["not_asked"]:
        rows.append(["not asked yet", str(summary["not_asked"])])
    lines = [f"{graded} of {summary['pairs'] + summary['not_asked']} pairs graded by {name}{computed}", ""]
    lines += [format_table(rows, ["status", "pairs"]), ""]
    if graded:
        lines += [*format_histogram(summary["relevance_tenths"]), ""]
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} answers from the ledger; "
        f"{summary['prompt_tokens']:,} tokens read ({summary['cached_tokens']:,} from the server's cache), "
        f"{summary['completion_tokens']:,} written, {summary['usd']:.4f} US dollars "
        f"({summary['usd_of_this_run']:.4f} in this run)"
    )
    if summary["repeats"]:
        lines.append(
            f"{summary['repeats']} pairs were asked twice: relevance changed by "
            f"{summary['mean_change_of_repeats']:.4f} on average"
        )
    return lines


def grade_warnings(summary: Mapping[str, Any], name: str, priced: bool) -> list[str]:
    """Return doubts about the grades: missing grades, little mass on the options, wide bounds, other models."""
    graded = summary["statuses"].get("graded", 0)
    warnings = []
    for dtype, count in summary["answered_in_other_precision"].items():
        warnings.append(
            f"{count} answers of this judge in {dtype} are in the ledger and were not reused: this run computes in "
            f"{summary['precision']}, which gives other probabilities; fix: --dtype {dtype} takes them"
        )
    if (unusable := summary["pairs"] - graded) > 0:
        warnings.append(
            f"{unusable} pairs have a status and no relevance: see judgements.parquet; --retry-failed asks them again"
        )
    if summary["low_mass"]:
        warnings.append(
            f"{summary['low_mass']} of {graded} graded pairs have less than half of the answer's probability on the "
            "options: the judge would rather say something else, and its grades mean less"
        )
    if summary["wide_bounds"]:
        warnings.append(
            f"{summary['wide_bounds']} of {graded} relevances may be off by more than 0.05, since the server did not "
            "return all options: relevance_low and relevance_high hold the bounds"
        )
    warnings += [
        f"{count} answers came from {other}, not from {name}: they are graded all the same, and the column judge names "
        "the model; --strict refuses them"
        for other, count in summary["other_models"].items()
    ]
    if summary["usage_unknown"] and priced:
        warnings.append(
            f"{summary['usage_unknown']} answers came without a usable number of tokens: the dollars lack their price "
            "(--max-usd counts a guess)"
        )
    if graded > 1 and max(summary["relevance_tenths"]) == graded:
        warnings.append("all relevances lie in one tenth of the scale: there is little to learn from them")
    return warnings
