"""The definition of a study: its arms, measure, claims and plot, as in one figure of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from bixse.errors import ConfigError, InputError, did_you_mean
from bixse.evaluation.statistics import ROUNDING, difference_of, scatter, worth_of
from bixse.lab.experiments import Arm, ArmLabels, Measure
from bixse.lab.lab_config import StudyConfig, merged
from bixse.lab.studies.measures import train_and_score

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.results import Difference


Choices: TypeAlias = Mapping[str, Any]
"""Key -> list of values, or one value, that a study goes through."""


Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
VALUES: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("noise", "cutoffs"), (Share, "numbers from 0 to 1")),
    **dict.fromkeys(("batch_sizes", "documents", "labels", "labels_per_query", "depth"), (Count, "integers above 0")),
    "hard_negatives": (Annotated[int, Field(ge=0, strict=True)], "integers from 0"),
    "multipliers": (Annotated[float, Field(gt=0, strict=True)], "numbers above 0"),
}
"""Key -> (type of its values, description of valid values). Other keys hold names."""


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper."""

    name: str
    title: str
    paper: str
    """The place in the paper, and the paper's claim there."""
    defaults: Choices
    arms: Callable[[StudyConfig, Choices, Pairs | None], list[Arm]]
    """The arms of a configuration. A plan passes None, because it does not read the training pairs."""
    contrasts: Callable[[Choices], list[Contrast]]
    measure: Measure = train_and_score
    axis: str | None = None
    """The label on the horizontal axis of the plot. None: one row per arm."""
    axis_scale: Literal["linear", "log"] = "linear"
    notes: Sequence[str] = ()


def chosen_values(study: Study, config: StudyConfig) -> dict[str, Any]:
    """Return the study's default values with the configuration's values on top. Raises ConfigError."""
    for key, value in config.values.items():
        if key not in study.defaults:
            known = ", ".join(study.defaults) or "none"
            raise ConfigError(
                f"values: got {key!r}; expected one of {known} for study {study.name!r}; "
                f"fix: {did_you_mean(key, study.defaults)}"
            )
        default = study.defaults[key]
        kind, expected = VALUES.get(key, (Annotated[str, Field(strict=True)], "names"))
        if isinstance(default, list):
            kind, expected = Annotated[list[kind], Field(min_length=1, strict=True)], f"a list of {expected}"  # type: ignore[valid-type]
        elif default is None:
            kind = kind | None
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            raise ConfigError(
                f"values: got {error.errors()[0]['input']!r} for {key!r}; expected {expected}; "
                f"fix: change it, or leave the key out for the default, {default!r}"
            ) from None
    return {**study.defaults, **config.values}


def of_loss(config: StudyConfig, loss: str) -> dict[str, Any]:
    """Return the training settings of an arm with a loss: its name, and the configuration's settings for it."""
    return {"loss": loss, **config.per_loss.get(loss, {})}


def arms_by(
    label: str,
    varied: Iterable[Any],
    config: StudyConfig,
    values: Choices,
    settings: Callable[[str, Any], tuple[dict[str, Any], dict[str, Any]]],
) -> list[Arm]:
    """Return one arm per loss and value of `label`. `settings` gives training settings and transforms of the pairs."""
    arms = []
    for loss in values["losses"]:
        for value in varied:
            train, pairs = settings(loss, value)
            arms.append(Arm({"loss": loss, label: value}, train=merged(of_loss(config, loss), train), pairs=pairs))
    return arms


PerSeed: TypeAlias = "Mapping[int, Mapping[str, float]]"
"""Seed -> `collection/query` -> value of the metric."""
LEVEL = 0.05
"""Chance of a false finding among all claims of a study."""
FEWEST_SEEDS = 3
"""Minimum number of seeds of trained arms for a finding. Intervals from two seeds cover too little."""
ClaimVerdict: TypeAlias = Literal["reproduced", "not shown", "cannot tell", "contradicted", "no figures"]


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of arms that a claim says is above 0."""

    claim: str
    terms: tuple[tuple[ArmLabels, float], ...]


@dataclass(frozen=True)
class ClaimResult:
    """A contrast with its figures."""

    claim: str
    difference: Difference | None
    """The weighted sum with its interval. None if an arm has no figures."""
    seeds: int
    """Number of training seeds that all trained arms of the contrast share. 0 if no arm is trained."""
    adjusted: float | None = None
    """Holm's p-value among all claims of a study. None: the difference's p-value counts."""

    @property
    def finding(self) -> ClaimVerdict:
        """The verdict at 5 % over all claims of the study together."""
        if self.difference is None:
            return "no figures"
        if self.difference.few:
            return "cannot tell"
        if 0 < self.seeds < FEWEST_SEEDS:  # too few to know the result of another training
            return "not shown"
        p_value = self.difference.p_value if self.adjusted is None else self.adjusted
        if p_value is None or p_value >= LEVEL:
            return "not shown"
        return "reproduced" if self.difference.mean > 0 else "contradicted"

    @property
    def explained(self) -> str:
        """The finding for readers: "not shown" and "cannot tell" with their reasons."""
        if self.difference is not None and self.finding == "cannot tell":
            return f"cannot tell: {self.difference.few}"
        if self.finding != "not shown":
            return self.finding
        too_few = f"{self.seeds} seed{'s' if self.seeds > 1 else ''} of at least {FEWEST_SEEDS}"
        return f"not shown: {too_few if 0 < self.seeds < FEWEST_SEEDS else f'p is not below {LEVEL}'}"


def above(claim: str, first: ArmLabels, second: ArmLabels) -> Contrast:
    """Return the claim that one arm is above another."""
    return Contrast(claim, ((first, 1.0), (second, -1.0)))


def bixse_above_others(losses: Sequence[str], label: str, values: Sequence[float], words: str) -> list[Contrast]:
    """Return the claims that BiXSE is above every other loss, per value of a label. `words` has {} for the value."""
    others = [loss for loss in losses if loss != "bixse"] if "bixse" in losses else []
    return [
        above(
            f"bixse above {other} {words.format(value)}", {"loss": "bixse", label: value}, {"loss": other, label: value}
        )
        for other in others
        for value in values
    ]


def key_of(labels: ArmLabels) -> tuple[tuple[str, str | float], ...]:
    """Return the labels as a hashable key that does not depend on their order."""
    return tuple(sorted(labels.items()))


def measure(contrast: Contrast, arms: Mapping[Any, PerSeed], seedless: Collection[Any] = ()) -> ClaimResult:
    """Return a contrast's mean and interval over queries and over the seeds that all its trained arms share."""
    terms = [(key_of(labels), weight) for labels, weight in contrast.terms]
    trained = [set(arms.get(key, ())) for key, _ in terms if key not in seedless]
    seeds = sorted(set.intersection(*trained)) if trained else [0]
    if not seeds or not all(arms.get(key) for key, _ in terms):
        return ClaimResult(contrast.claim, None, 0)
    queries = sorted(next(iter(arms[terms[0][0]].values())))
    total = np.zeros((len(seeds), len(queries)))
    for key, weight in terms:
        figures = arms[key]  # the one row of a seedless system counts for every seed
        rows = [next(iter(figures.values())) if key in seedless else figures[seed] for seed in seeds]
        for row in rows:
            if row.keys() != set(queries):
                raise InputError(
                    f"contrast {contrast.claim!r}: got arms measured on {len(queries)} and {len(row)} queries; "
                    "expected the same queries; fix: delete the study's folder and run it again"
                )
        total += weight * np.array([[row[query] for query in queries] for row in rows])
    difference = crossed_interval(total, _strata(queries))
    return ClaimResult(contrast.claim, difference, len(seeds) if trained else 0)


def interval_of(figures: PerSeed) -> Difference:
    """Return an arm's mean with its interval over seeds and queries."""
    queries = sorted(next(iter(figures.values())))
    values = np.array([[row[query] for query in queries] for row in figures.values()])
    return crossed_interval(values, _strata(queries))


def crossed_interval(
    values: NDArray[np.float64], strata: Sequence[int] | Sequence[str], confidence: float = 0.95
) -> Difference:
    """Return the mean of a seeds x queries table (S, Q) with an interval that covers the chance in both.

    Seeds and queries are crossed random effects. The variance of the mean is the variance of the seeds' means, plus
    that of the queries' means, minus the part that both count. Student's t has Satterthwaite's degrees of freedom
    (1946, doi:10.2307/3002019), so two or three seeds give a wide interval; `difference_of` widens it for skewed
    queries. `strata` holds the collection of each query, with at least 2 queries per collection. Collections count
    equally. One seed gives an interval over queries.

    Example:
        >>> found = crossed_interval(np.array([[0.5, 0.6, 0.7] * 20, [0.4, 0.6, 0.8] * 20]), [0] * 60)
        >>> round(found.mean, 3), found.low < 0.6 < found.high, found.queries
        (0.6, True, 60)
    """
    table = np.asarray(values, dtype=np.float64)
    _, member = np.unique(np.asarray(strata), return_inverse=True)
    sizes = np.bincount(member) if len(member) else np.zeros(1)
    if table.ndim != 2 or not table.shape[0] or sizes.min() < 2 or not np.isfinite(table).all():
        raise InputError(
            f"interval: got a table of shape {table.shape}; expected finite figures of at least 1 seed, and 2 "
            "queries per collection; fix: evaluate on more queries"
        )
    seeds = table.shape[0]
    weight = (1 / len(sizes) / sizes)[member]  # (Q,), sums to 1
    mean = float((table.mean(axis=0) * weight).sum())
    tables, shares = [table[:, member == number] for number in range(len(sizes))], [1 / len(sizes)] * len(sizes)
    of_queries, freedom, skewness = scatter([part.mean(axis=0) for part in tables], shares)
    by_query = variance = of_queries**2
    spread = by_query**2 / freedom
    if seeds > 1:
        by_seed = float(np.var(table @ weight, ddof=1)) / seeds
        both = [_shared(part) / len(sizes) ** 2 for part in tables]
        # the estimated difference can fall below its parts
        variance = max(by_seed + by_query - sum(both), by_seed, by_query)
        spread += (by_seed**2 + sum(part**2 / (size - 1) for part, size in zip(both, map(int, sizes), strict=True))) / (
            seeds - 1
        )
    error, rounding = math.sqrt(variance), ROUNDING * float(np.abs(table).max())
    if error <= rounding:  # rounding alone is no scatter
        return difference_of(mean if abs(mean) > rounding else 0.0, 0.0, 1.0, 0.0, table.shape[1], confidence)
    worth, skewness = worth_of(map(int, sizes), shares), skewness * (of_queries / error) ** 3
    return difference_of(mean, error, variance**2 / spread, skewness, table.shape[1], confidence, worth)


def _shared(table: NDArray[np.float64]) -> float:
    """Return the variance of the mean of an (S, Q) table that is of single seeds with single queries."""
    seeds, queries = table.shape
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((rest**2).sum() / ((seeds - 1) * (queries - 1) * seeds * queries))


def _strata(queries: Sequence[str]) -> list[str]:
    return [query.partition("/")[0] for query in queries]
