"""Grade pairs with a judge: ask questions through the ledger, write one row per pair, and record the costs."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import GradedPairs, Pair
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.run import Run, open_run
from bixse.errors import BixseError, InputError, InterruptedRunError
from bixse.files.parquet import save_table
from bixse.judging.ask import Asking, Budget, keyed, of_another_model
from bixse.judging.grade_settings import GradeSettings, Prices
from bixse.judging.judge import STATUSES, Answer, Judge, Usage, stored_identity
from bixse.judging.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

    from bixse.progress import Step
    from bixse.relevance import GradeScale

log = logging.getLogger(__name__)

PAIRS_NAME = "pairs.parquet"
"""The graded pairs, ready for `bixse train`."""
JUDGEMENTS_NAME = "judgements.parquet"
"""All pairs that were asked, with status, bounds, probabilities and price."""
LEDGER_NAME = "ledger"
"""The ledger, unless another one is named."""
WIDE = 0.05
"""Distance of the bounds of a relevance, beyond which the summary counts them as wide."""


@dataclass(frozen=True)
class JudgedPair:
    """The judgement of one pair over all prompt variants of the rubric; its values are None without a grade."""

    pair: Pair
    answers: Sequence[Answer]
    """One answer per prompt variant of the rubric."""
    scale: GradeScale
    repeat: int = 0

    @property
    def status(self) -> str:
        """Status of the first variant without a grade, or "graded"."""
        return next((answer.status for answer in self.answers if not answer.usable), "graded")

    @property
    def grade(self) -> float | None:
        """Mean grade over the variants."""
        return self._mean("grade")

    @property
    def relevance(self) -> float | None:
        """Relevance in [0, 1]."""
        return self._relevance("grade")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The lowest and highest possible relevance, in [0, 1]."""
        return self._relevance("low"), self._relevance("high")

    @property
    def probabilities(self) -> list[float] | None:
        """Probabilities of the options, divided by their sum: the mean over the variants."""
        if self.status != "graded" or not all(answer.probabilities for answer in self.answers):
            return None
        shares = [[value / sum(answer.probabilities) for value in answer.probabilities] for answer in self.answers]
        return [math.fsum(column) / len(shares) for column in zip(*shares, strict=True)]

    @property
    def mass(self) -> float | None:
        """The lowest sum, over the answers, of the probabilities of the options."""
        return min((answer.mass for answer in self.answers if answer.probabilities), default=None)

    @property
    def usage(self) -> Usage:
        return sum((answer.usage for answer in self.answers), Usage())

    def _mean(self, name: str) -> float | None:
        values = [getattr(answer, name) for answer in self.answers]
        if self.status != "graded" or any(value is None for value in values):
            return None
        return math.fsum(values) / len(values)

    def _relevance(self, name: str) -> float | None:
        grade = self._mean(name)
        if grade is None:
            return None
        rounded = min(max(grade, self.scale.minimum), self.scale.maximum)  # a mean may round past the end of the scale
        return self.scale.to_relevance(rounded)

    def row(self, prices: Prices) -> dict[str, Any]:
        (low, high), usage, last = self.bounds, self.usage, self.answers[-1]
        told = next((answer for answer in self.answers if not answer.usable), last)
        return {
            "query_id": self.pair.query_id,
            "document_id": self.pair.document_id,
            "repeat": self.repeat,
            "status": self.status,
            "relevance": self.relevance,
            "relevance_low": low,
            "relevance_high": high,
            "grade": self.grade,
            "grade_probs": self.probabilities,
            "mass": self.mass,
            "order_grades": [answer.grade for answer in self.answers],
            "mode": last.mode,
            "judge": last.judge,
            "text": told.text,
            "detail": told.detail,
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "reasoning_tokens": usage.reasoning,
            "usd": prices.usd(usage),
            "seconds": math.fsum(answer.seconds for answer in self.answers),
            "tries": sum(answer.tries for answer in self.answers),
        }


@dataclass(frozen=True)
class GradeSummary:
    """Counts, tokens, dollars and doubts of a run, as plain data; `+` joins the summaries of shards."""

    pairs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    mean_relevance: float | None = None
    relevance_tenths: list[int] = field(default_factory=lambda: [0] * 10)
    """Graded pairs per tenth of [0, 1]."""
    low_mass: int = 0
    wide_bounds: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    usd: float = 0.0
    usage_unknown: int = 0
    repeats: int = 0
    mean_change_of_repeats: float | None = None
    not_asked: int = 0
    repeats_not_asked: int = 0
    asked: int = 0
    """Questions answered in this run; `reused` and `usd_of_this_run` are of this run too."""
    reused: int = 0
    precision: str | None = None
    answered_in_other_precision: dict[str, int] = field(default_factory=dict)
    usd_of_this_run: float = 0.0
    other_models: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None

    def __add__(self, other: GradeSummary) -> GradeSummary:
        mean = _mean_of_both(self.mean_relevance, self.graded, other.mean_relevance, other.graded)
        change = _mean_of_both(self.mean_change_of_repeats, self.repeats, other.mean_change_of_repeats, other.repeats)
        whole: dict[str, Any] = {
            "mean_relevance": mean,
            "mean_change_of_repeats": change,
            "precision": self.precision or other.precision,
            "stopped": self.stopped or other.stopped,
        }
        names = [one.name for one in fields(self) if one.name not in whole]
        return GradeSummary(**whole, **{name: _sum(getattr(self, name), getattr(other, name)) for name in names})

    @property
    def graded(self) -> int:
        return self.statuses.get("graded", 0)

    @property
    def before_this_run(self) -> GradeSummary:
        """The same summary for pairs that this run did not ask about."""
        return replace(self, asked=0, reused=0, usd_of_this_run=0.0, stopped=None)


def _mean_of_both(one: float | None, weight: int, two: float | None, other: int) -> float | None:
    if one is None or two is None:
        return two if one is None else one
    return (one * weight + two * other) / (weight + other)


def _sum(one: Any, two: Any) -> Any:
    if isinstance(one, dict):
        return dict(Counter(one) + Counter(two))
    return [a + b for a, b in zip(one, two, strict=True)] if isinstance(one, list) else one + two


@dataclass(frozen=True)
class GradeResult:
    """The result of a run of grading."""

    judgements: Sequence[JudgedPair]
    """One row per pair and repeat, in the order of the pairs, repeats last; a run in shards has its rows in files."""
    summary: Mapping[str, Any]
    """A `GradeSummary` as a dictionary."""
    artifacts: Mapping[str, str]
    """Name -> path of the files: judgements, ledger, record, and pairs if any pair has a grade."""
    stopped: str | None
    """The limit that ended the run early, or None."""
    waiting: int = 0
    """Pending shards of other ranks."""

    @property
    def complete(self) -> bool:
        """Return True if every pair has relevance, and every repeat was asked."""
        left = self.summary["not_asked"] + self.summary["repeats_not_asked"] + self.waiting
        return not left and self.summary["statuses"].get("graded", 0) == self.summary["pairs"]


def grade(
    pairs: Sequence[Pair],
    judge: Judge,
    out: str | Path,
    settings: GradeSettings | None = None,
    ledger: str | Path | None = None,
    prices: Prices | None = None,
    budget: Budget | None = None,
    retry_failed: bool = False,
    inputs: Mapping[str, str] | None = None,
    progress: Callable[[str, int], Step] | None = None,
    strict: bool = False,
) -> GradeResult:
    """Grade pairs; the expected grade of each pair becomes its relevance in [0, 1] (BiXSE paper, section 3).

    Write `pairs.parquet` (graded pairs only), `judgements.parquet` (every pair asked), `ledger` and `run.json`
    into `out`. The same call again continues where the run stopped, and asks no answered question.

    Args:
        pairs: pairs to grade.
        judge: see `bixse.judging.judge`; it stays open.
        out: output folder.
        settings: rubric, and other settings that decide the rows.
        ledger: folder of answers shared with other runs (see `bixse.judging.ledger`). None uses
            the ledger of an earlier run in this folder, or `out/ledger`.
        prices: None for 0.
        budget: None for no limit.
        retry_failed: ask only pairs whose answer has no grade.
        inputs: input name -> hash, for run.json.
        progress: makes a progress callback (see `bixse.progress.Step`) from a title and a total.
        strict: refuse a judge with doubts, and answers of another model. Without it, doubts are logged as warnings,
            and answers of another model are counted.

    Raises:
        InputError: no pairs, a folder with another run, or with `strict` a judge with doubts.
        StorageError: the folder or the ledger cannot be written.
        InterruptedRunError: stopped by Ctrl-C or SIGTERM. The answers so far are kept, and the tables are written.
    """
    settings, prices, budget = settings or GradeSettings(), prices or Prices(), budget or Budget()
    record, answers = open_grading(pairs, judge, out, settings, ledger, inputs, strict)
    record.save("running")
    started = time.perf_counter()
    failure: KeyboardInterrupt | BixseError | None = None
    with Ledger(answers) as book:
        asking = Asking(judge.answers, dict(judge.identity), book, prices, budget, retry_failed, strict)
        grading = Grading(pairs, judge, settings, asking)
        try:
            grading.ask(None if progress is None else progress("grade", len(grading.questions)))
        except (KeyboardInterrupt, BixseError) as error:
            failure = error
        judgements, summary = grading.write(record.folder / JUDGEMENTS_NAME, record.folder / PAIRS_NAME)
    result = result_of(record, judge, summary, answers, judgements)
    record.timings["grade"] = record.timings.get("grade", 0.0) + time.perf_counter() - started
    if isinstance(failure, BixseError):
        record.save("failed")
        raise failure
    record.save("finished" if result.complete else "interrupted")
    if failure is not None:
        raise InterruptedRunError(
            f"stopped by Ctrl-C or SIGTERM: {summary.pairs} of {len(pairs)} pairs are answered and kept in "
            f"{out}; the same command goes on from there"
        )
    return result


def open_grading(
    pairs: Sized,
    judge: Judge,
    out: str | Path,
    settings: GradeSettings,
    ledger: str | Path | None,
    inputs: Mapping[str, str] | None,
    strict: bool,
    shards: int | str | None = None,
) -> tuple[Run, Path]:
    """Return the record of a run of grading, new or resumed, and the path of its ledger; write nothing."""
    if not pairs:
        raise InputError("pairs: got none; expected at least one; fix: check what was selected")
    doubts: Sequence[str] = getattr(judge, "doubts", ())
    for doubt in doubts:
        log.warning("%s", doubt)
    if strict and doubts:
        raise InputError(
            f"--strict: got a judge that does not look trustworthy ({'; '.join(doubts)}); expected the "
            "model that was named, and known questions answered as they should be; fix: choose another model, server, "
            "rubric or --mode, or leave --strict out"
        )
    folder = Path(out)
    config = {"judge": stored_identity(judge.identity), **settings.config(), **({"shards": shards} if shards else {})}
    # `ask_twice` and `seed` may change in a later call: they decide the repeats alone
    record = open_run(folder, "grade", config, dict(inputs or {}), paths=("ask_twice", "seed"))
    answers = Path(ledger or record.results.get("ledger") or folder / LEDGER_NAME)
    record.results["ledger"] = str(answers.resolve())
    return record, answers


def result_of(
    record: Run,
    judge: Judge,
    summary: GradeSummary,
    ledger: Path,
    judgements: Sequence[JudgedPair] = (),
    waiting: int = 0,
) -> GradeResult:
    """Return the result of a run, and put it into the record."""
    artifacts = {"judgements": str(record.folder / JUDGEMENTS_NAME), "ledger": str(ledger)}
    if summary.graded:
        artifacts["pairs"] = str(record.folder / PAIRS_NAME)
    plain = asdict(summary)
    record.results |= {"summary": plain, "judge": judge.name, "artifacts": sorted(artifacts)}
    artifacts["record"] = str(record.folder / "run.json")
    return GradeResult(judgements, plain, artifacts, summary.stopped, waiting)


class Grading:
    """The pairs of a run or of one shard, and the questions about them, repeats last."""

    def __init__(self, pairs: Sequence[Pair], judge: Judge, settings: GradeSettings, asking: Asking[Answer]) -> None:
        self._judge, self._asking = judge, asking
        self._asked = [
            (pair, repeat, keyed(settings.questions(pair, repeat), asking.identity))
            for pair, repeat in settings.with_repeats(pairs)
        ]
        self.questions = [question for *_, questions in self._asked for question in questions]

    def ask(self, step: Step | None) -> None:
        self._asking.load(self.questions)
        self._asking.run(self.questions, step)

    def write(self, rows: Path, graded: Path) -> tuple[list[JudgedPair], GradeSummary]:
        """Write all judgements to `rows`, and graded pairs to `graded`; delete `graded` if there are none."""
        asking, judgements, others = self._asking, list[JudgedPair](), Counter[str]()
        for pair, repeat, questions in self._asked:
            answers = [answer for key, _ in questions if (answer := asking.ledger.find(key)) is not None]
            strangers = [answer.judge for answer in answers if of_another_model(answer, asking.identity)]
            if len(answers) == len(questions) and not (asking.strict and strangers):
                others.update(strangers)
                judgements.append(JudgedPair(pair, answers, self._judge.scale, repeat))
        save_judgements(judgements, asking.prices, rows)
        if len(table := graded_pairs(judgements)):
            save_graded_pairs(table, graded)
        else:
            graded.unlink(missing_ok=True)
        repeats = sum(repeat for _, repeat, _ in self._asked)
        repeated = sum(judgement.repeat for judgement in judgements)
        return judgements, GradeSummary(
            **_figures(judgements, asking.prices),
            not_asked=len(self._asked) - repeats - (len(judgements) - repeated),
            repeats_not_asked=repeats - repeated,
            asked=asking.asked,
            reused=asking.reused,
            precision=asking.identity.get("dtype"),
            answered_in_other_precision=dict(asking.other_precision),
            usd_of_this_run=asking.usd,
            other_models=dict(others),
            stopped=asking.stopped,
        )


def graded_pairs(judgements: Iterable[JudgedPair]) -> GradedPairs:
    """Return the training table: graded pairs without repeats, with expected grade, probabilities and judge."""
    return GradedPairs.from_rows(
        {
            "query_id": judgement.pair.query_id,
            "query": judgement.pair.query,
            "document_id": judgement.pair.document_id,
            "document": judgement.pair.document,
            "task": judgement.pair.task,
            "relevance": judgement.relevance,
            "grade": judgement.grade,
            "grade_probs": judgement.probabilities,
            "judge": judgement.answers[-1].judge or None,
        }
        for judgement in judgements
        if judgement.status == "graded" and not judgement.repeat
    )


def save_judgements(judgements: Sequence[JudgedPair], prices: Prices, path: Path) -> None:
    """Write every judgement, graded or not, as Parquet; the file appears complete or not at all."""
    import pyarrow as pa

    text, number, whole = pa.string(), pa.float64(), pa.int64()
    kinds = {
        "query_id": text, "document_id": text, "repeat": whole, "status": text, "relevance": number,
        "relevance_low": number, "relevance_high": number, "grade": number, "grade_probs": pa.list_(number),
        "mass": number, "order_grades": pa.list_(number), "mode": text, "judge": text, "text": text, "detail": text,
        "prompt_tokens": whole, "cached_tokens": whole, "completion_tokens": whole, "reasoning_tokens": whole,
        "usd": number, "seconds": number, "tries": whole,
    }  # fmt: skip
    table = pa.Table.from_pylist([judgement.row(prices) for judgement in judgements], schema=pa.schema(kinds))
    save_table(table, path)


def _figures(judgements: Sequence[JudgedPair], prices: Prices) -> dict[str, Any]:
    """Return the fields of `GradeSummary` that follow from the judgements."""
    first = [judgement for judgement in judgements if not judgement.repeat]
    graded = [judgement for judgement in first if judgement.status == "graded"]
    relevance = {judgement.pair: judgement.relevance for judgement in graded}
    values = [judgement.relevance or 0.0 for judgement in graded]
    statuses = Counter(judgement.status for judgement in first)
    tenths = Counter(min(9, int(value * 10)) for value in values)
    usage = sum((judgement.usage for judgement in judgements), Usage())
    changes = [
        abs(judgement.relevance - before)
        for judgement in judgements
        if judgement.repeat
        and judgement.relevance is not None
        and (before := relevance.get(judgement.pair)) is not None
    ]
    bounds = (judgement.bounds for judgement in graded)
    return {
        "pairs": len(first),
        "statuses": {status: statuses[status] for status in STATUSES if statuses[status]},
        "modes": dict(Counter(answer.mode for judgement in graded for answer in judgement.answers)),
        "mean_relevance": fmean(values) if values else None,
        "relevance_tenths": [tenths[tenth] for tenth in range(10)],
        "low_mass": sum(judgement.mass is not None and judgement.mass < 0.5 for judgement in graded),
        "wide_bounds": sum(high - low > WIDE for low, high in bounds if low is not None and high is not None),
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "reasoning_tokens": usage.reasoning,
        "usd": prices.usd(usage),
        "usage_unknown": sum(answer.usage_unknown for judgement in judgements for answer in judgement.answers),
        "repeats": len(changes),
        "mean_change_of_repeats": fmean(changes) if changes else None,
    }
