"""The results of grading: a judge's answer per pair, the tables of all pairs, and the summary of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from bixse.data.graded_pairs import Pair, Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.files.parquet import save_table
from bixse.judging.ask import Asking, of_another_model
from bixse.judging.judge import STATUSES, Answer, Usage
from bixse.judging.spending import cost_text
from bixse.rendering.table import format_table
from bixse.rendering.wording import format_histogram

if TYPE_CHECKING:
    from bixse.judging.grade_settings import Prices
    from bixse.relevance import GradeScale

LITTLE = 0.5
"""Probability of all options together, below which the judge would rather have said something else."""
WIDE = 0.05
"""Distance of the bounds of a relevance, beyond which the summary counts them as wide."""


_TEXT, _NUMBER, _WHOLE = pa.string(), pa.float64(), pa.int64()
COLUMNS = pa.schema({
    "query_id": _TEXT, "document_id": _TEXT, "status": _TEXT, "relevance": _NUMBER, "relevance_low": _NUMBER,
    "relevance_high": _NUMBER, "grade": _NUMBER, "grade_probs": pa.list_(_NUMBER), "mass": _NUMBER,
    "order_grades": pa.list_(_NUMBER), "mode": _TEXT, "judge": _TEXT, "text": _TEXT, "detail": _TEXT,
    "prompt_tokens": _WHOLE, "cached_tokens": _WHOLE, "completion_tokens": _WHOLE, "reasoning_tokens": _WHOLE,
    "usd": _NUMBER, "seconds": _NUMBER, "tries": _WHOLE,
})  # fmt: skip
"""Columns of `judgements.parquet`."""


@dataclass(frozen=True)
class JudgedPair:
    """The judgement of one pair over all prompt variants of the rubric."""

    pair: Pair
    answers: Sequence[Answer]
    """One answer per prompt variant of the rubric."""
    row: Mapping[str, Any]
    """Values of `COLUMNS`; grade, relevance and probabilities are None unless every variant has a grade."""


def judged(pair: Pair, answers: Sequence[Answer], scale: GradeScale, prices: Prices) -> JudgedPair:
    """Return the judgement that follows from the answers: grades, probabilities and bounds are means over them."""
    unusable = next((answer for answer in answers if not answer.usable), None)
    usage, last = sum((answer.usage for answer in answers), Usage()), answers[-1]
    shown = unusable or last

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if unusable is None and len(known) == len(values) else None

    def relevance(grade: float | None) -> float | None:  # a mean may round past the end of the scale
        return None if grade is None else scale.to_relevance(min(max(grade, scale.minimum), scale.maximum))

    probabilities = None
    if unusable is None and all(answer.probabilities for answer in answers):
        shares = [[value / sum(answer.probabilities) for value in answer.probabilities] for answer in answers]
        probabilities = [math.fsum(column) / len(shares) for column in zip(*shares, strict=True)]
    grade = mean([answer.grade for answer in answers])
    row = {
        "query_id": pair.query_id,
        "document_id": pair.document_id,
        "status": shown.status,
        "relevance": relevance(grade),
        "relevance_low": relevance(mean([answer.low for answer in answers])),
        "relevance_high": relevance(mean([answer.high for answer in answers])),
        "grade": grade,
        "grade_probs": probabilities,
        "mass": min((answer.mass for answer in answers if answer.probabilities), default=None),
        "order_grades": [answer.grade for answer in answers],
        "mode": last.mode,
        "judge": last.judge,
        "text": shown.text,
        "detail": shown.detail,
        **{f"{kind}_tokens": count for kind, count in vars(usage).items()},
        "usd": prices.usd(usage),
        "seconds": math.fsum(answer.seconds for answer in answers),
        "tries": sum(answer.tries for answer in answers),
    }
    return JudgedPair(pair, answers, row)


def save_judgements(judgements: Sequence[JudgedPair], path: Path, graded: Path) -> None:
    """Write every judgement to `path`, and the training table of pairs with a grade, if there are any, to `graded`."""
    save_table(pa.Table.from_pylist([judgement.row for judgement in judgements], schema=COLUMNS), path)
    rows = [
        {
            **vars(judgement.pair),
            **{name: judgement.row[name] for name in ("relevance", "grade", "grade_probs")},
            "judge": judgement.row["judge"] or None,
        }
        for judgement in judgements
        if judgement.row["status"] == "graded"
    ]
    if rows:
        save_graded_pairs(Pairs.from_rows(rows), graded)
    else:
        graded.unlink(missing_ok=True)


@dataclass(frozen=True)
class GradeSummary:
    """Counts, tokens, dollars and doubts of a run, as plain data; `+` joins the summaries of shards."""

    pairs: int = 0
    """Pairs with an answer, with or without a grade."""
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
    usd: float | None = None
    """Price of these answers, whichever command asked them; None without prices."""
    usage_unknown: int = 0
    not_asked: int = 0
    asked: int = 0
    """Questions answered in this run; `reused` and `usd_of_this_run` are of this run too."""
    reused: int = 0
    precision: str | None = None
    usd_of_this_run: float | None = None
    """Price of all requests of this run, failed ones too; None if it is unknown. A shard alone does not know it."""
    usd_spent: float | None = None
    """Price of all requests of all commands, as `spent.jsonl` has them; None if it is unknown."""
    unpriced: int = 0
    """Number of requests with an unknown price, which `usd_spent` lacks."""
    other_models: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None
    """The limit that ended the run early, or None."""

    @classmethod
    def of(cls, judgements: Sequence[JudgedPair], pairs: int, asking: Asking[Answer]) -> Self:
        """Summarise the judgements of a number of pairs after their questions were asked."""
        graded = [judgement for judgement in judgements if judgement.row["status"] == "graded"]
        values = [judgement.row["relevance"] or 0.0 for judgement in graded]
        bounds = [(judgement.row["relevance_low"], judgement.row["relevance_high"]) for judgement in graded]
        answers = [answer for judgement in judgements for answer in judgement.answers]
        statuses = Counter(judgement.row["status"] for judgement in judgements)
        tenths = Counter(min(9, int(value * 10)) for value in values)
        usage = sum((answer.usage for answer in answers), Usage())
        return cls(
            pairs=len(judgements),
            statuses={status: statuses[status] for status in STATUSES if statuses[status]},
            modes=dict(Counter(answer.mode for judgement in graded for answer in judgement.answers)),
            mean_relevance=fmean(values) if values else None,
            relevance_tenths=[tenths[tenth] for tenth in range(10)],
            low_mass=sum(judgement.row["mass"] is not None and judgement.row["mass"] < LITTLE for judgement in graded),
            wide_bounds=sum(high - low > WIDE for low, high in bounds if low is not None and high is not None),
            usd=asking.spending.prices.usd(usage),
            usage_unknown=sum(answer.usage_unknown for answer in answers),
            not_asked=pairs - len(judgements),
            asked=asking.asked,
            reused=asking.reused,
            precision=asking.identity.get("dtype"),
            other_models=dict(Counter(a.judge for a in answers if of_another_model(a, asking.identity))),
            stopped=asking.stopped,
            **{f"{kind}_tokens": count for kind, count in vars(usage).items()},
        )

    def __add__(self, other: GradeSummary) -> GradeSummary:
        number = self.graded + other.graded
        total = (self.mean_relevance or 0.0) * self.graded + (other.mean_relevance or 0.0) * other.graded
        values = {name: _sum(value, getattr(other, name)) for name, value in vars(self).items()}
        return GradeSummary(**{**values, "mean_relevance": total / number if number else None})

    @property
    def cost(self) -> str:
        """The cost of all commands and of this one, after a comma; empty if no request was booked."""
        return cost_text(self.usd_spent, self.unpriced, self.usd_of_this_run)

    @property
    def graded(self) -> int:
        return self.statuses.get("graded", 0)

    def text(self, name: str) -> str:
        """Format counts, spread and costs; `name` is the name of the judge."""
        computed = f" in {self.precision}" if self.precision else ""
        rows: list[list[str | float]] = [[status, str(count)] for status, count in self.statuses.items()]
        if self.not_asked:
            rows.append(["not asked yet", str(self.not_asked)])
        lines = [f"{self.graded} of {self.pairs + self.not_asked} pairs graded by {name}{computed}", ""]
        lines += [format_table(rows, ["status", "pairs"]), ""]
        if self.graded:
            lines += [*format_histogram(self.relevance_tenths), ""]
        lines.append(
            f"{self.asked} questions asked, {self.reused} answers from the ledger; {self.prompt_tokens:,} tokens read "
            f"({self.cached_tokens:,} from the server's cache), {self.completion_tokens:,} written{self.cost}"
        )
        if self.stopped:
            lines.append(f"stopped: {self.stopped}; the same command with a higher limit continues")
        return "\n".join(lines)

    def warnings(self, name: str, prices: Prices) -> list[str]:
        """Return doubts about the grades: missing grades, little mass on the options, wide bounds, other models."""
        warnings = []
        if (unusable := self.pairs - self.graded) > 0:
            warnings.append(
                f"{unusable} pairs have a status and no relevance: see judgements.parquet; --retry-failed asks them "
                "again"
            )
        if self.low_mass:
            warnings.append(
                f"{self.low_mass} of {self.graded} graded pairs have less than half of the answer's probability on the "
                "options: the judge would rather say something else, and its grades mean less"
            )
        if self.wide_bounds:
            warnings.append(
                f"{self.wide_bounds} of {self.graded} relevances may be off by more than {WIDE}, since the server did "
                "not return all options: relevance_low and relevance_high hold the bounds"
            )
        warnings += [
            f"{count} answers came from {other}, not from {name}: they are graded anyway, and the column judge names "
            "the model"
            for other, count in self.other_models.items()
        ]
        if self.usage_unknown and prices.per_million is not None:
            warnings.append(
                f"{self.usage_unknown} answers came without a usable number of tokens: each counts as the mean of the "
                "others"
            )
        if self.graded > 1 and max(self.relevance_tenths) == self.graded:
            warnings.append("all relevances lie in one tenth of the scale: there is little to learn from them")
        return warnings


def _sum(left: Any, right: Any) -> Any:
    """Add counts; of texts, such as the precision, the first counts."""
    if isinstance(left, str):
        return left
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict):
        return dict(Counter(left) + Counter(right))
    return [a + b for a, b in zip(left, right, strict=True)] if isinstance(left, list) else left + right
