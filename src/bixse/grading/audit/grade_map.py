"""A monotone map from a judge's relevance to the probability that people find the pair relevant."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bixse.errors import InputError
from bixse.evaluation.calibration.platt import fit_platt
from bixse.evaluation.calibration.reliability import brier, expected_calibration_error
from bixse.evaluation.statistics import mean_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats
    from bixse.results import IntervalEstimate

MapKind = Literal["isotonic", "platt"]
"""isotonic: steps and slopes that only rise (Zadrozny and Elkan 2002); platt: one logistic curve (Platt 1999)."""


class GradeMap(BaseModel):
    """A map that never falls and stays in [0, 1], with what it was fitted on and what it is worth.

    `GradeMap.model_validate_json(Path("map.json").read_text())` reads the one that `bixse grade calibrate` wrote.

    Example:
        >>> steps = GradeMap(kind="isotonic", knots=((0.0, 0.1), (1.0, 0.7)))
        >>> steps.apply([0.0, 0.5, 1.0]).tolist()
        [0.1, 0.4, 0.7]
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: MapKind
    knots: tuple[tuple[float, float], ...] = ()
    """isotonic: (relevance, probability), joined by straight lines and level beyond the ends."""
    slope: float = Field(default=0.0, ge=0.0)
    """platt: a of sigma(a z + c)."""
    intercept: float = 0.0
    """platt: c."""
    judge: str = ""
    """Whose grades it maps."""
    scale: tuple[float, float] | None = None
    """The judge's scale: the map reads (grade - lowest) / (highest - lowest)."""
    target: str = ""
    """What it predicts, in words."""
    labels: int = 0
    """Human labels it was fitted on."""
    queries: int = 0
    """Their queries."""
    held_out: dict[str, float | int | None] = Field(default_factory=dict)
    """Figures on held-out queries, see `HeldOutFigures`."""
    helps: bool | None = None
    """Whether it helped there; False in a map that was forced."""

    @model_validator(mode="after")
    def _monotone(self) -> GradeMap:
        inputs, outputs = zip(*self.knots, strict=True) if self.knots else ((), ())
        if self.kind == "isotonic" and not inputs:
            raise ValueError("knots: expected at least one")
        rises = all(a < b for a, b in pairwise(inputs))
        keeps = all(a <= b for a, b in pairwise(outputs))
        if not (rises and keeps and all(0 <= value <= 1 for value in (*inputs, *outputs))):
            raise ValueError("knots: expected pairs in [0, 1] whose first rises and whose second never falls")
        return self

    @property
    def is_constant(self) -> bool:
        """Whether every grade is mapped to one value, so that nothing of it is left."""
        return self.slope == 0 if self.kind == "platt" else self.knots[0][1] == self.knots[-1][1]

    def apply(self, relevance: npt.ArrayLike) -> Floats:
        """The probability of each relevance: never lower for a higher one, always in [0, 1].

        Args:
            relevance: the judge's, in [0, 1], any shape.

        Raises:
            InputError: a value outside [0, 1].
        """
        z = np.asarray(relevance, dtype=np.float64)
        if not ((z >= 0) & (z <= 1)).all():
            wrong = z[~((z >= 0) & (z <= 1))].flat[0]
            raise InputError(f"relevance: got {wrong}; expected 0 to 1; fix: map grades with GradeScale first")
        if self.kind == "platt":
            return np.asarray(0.5 * (1 + np.tanh(0.5 * (self.slope * z + self.intercept))))
        inputs, outputs = (np.array(column) for column in zip(*self.knots, strict=True))
        right = np.minimum(np.searchsorted(inputs, z, side="right"), len(inputs) - 1)
        mapped: Floats = np.minimum(np.interp(z, inputs, outputs), outputs[right])  # a line may round past its end
        return mapped


@dataclass(frozen=True)
class HeldOutFigures:
    """What a map is worth on queries it was not fitted on, each by the map of the other folds."""

    pairs: int
    queries: int
    brier_before: float
    """Of the judge's relevance as it is."""
    brier_after: float
    """Of the mapped relevance."""
    brier_constant: float
    """Of always answering the mean of the other folds."""
    change: IntervalEstimate
    """brier_after - brier_before with its interval over queries; below 0 the map helps."""
    ece_before: float
    ece_after: float

    @property
    def helps(self) -> bool:
        """Whether the map has a lower Brier score than the grades as they are and than a constant."""
        return self.brier_after < min(self.brier_before, self.brier_constant)

    def to_plain(self) -> dict[str, float | int | None]:
        """The figures as plain JSON values."""
        figures: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "change"}
        change = self.change
        return {**figures, "change": change.value, "change_low": change.low, "change_high": change.high}


def fit_grade_map(
    relevance: npt.ArrayLike,
    human: npt.ArrayLike,
    query_ids: Sequence[str],
    kind: MapKind = "platt",
    fit_on: npt.NDArray[np.bool_] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> tuple[GradeMap, HeldOutFigures]:
    """Fit a map and measure it by cross-fitting: every query is mapped by a fit to the queries of the other folds.

    Args:
        relevance: (N,) the judge's, in [0, 1].
        human: (N,) what people say, in [0, 1]: 0 or 1, or graded.
        query_ids: (N,) query of each pair.
        kind: of the map; the logistic curve needs fewer labels and keeps unequal grades unequal.
        fit_on: (N,) pairs to fit on; the others only measure. None: all.
        folds: parts the queries are split into; fewer where there are fewer queries.
        seed: of the split and the resampling.

    Returns:
        The map fitted on every pair of `fit_on`, and its held-out figures. Look at `helps` before using it.

    Raises:
        InputError: fewer than 4 queries to fit on, different lengths, or a value outside [0, 1].

    Example:
        >>> z, ids = [0.0, 1.0] * 20, [f"q{i // 4}" for i in range(40)]
        >>> fitted, held_out = fit_grade_map(z, [0.0, 1.0, 0.0, 0.0] * 10, ids, "isotonic")
        >>> fitted.apply([0.0, 1.0]).tolist(), held_out.helps
        ([0.0, 0.5], True)
    """
    z, observed = np.asarray(relevance, dtype=np.float64), np.asarray(human, dtype=np.float64)
    before = brier(z, observed)  # checks lengths and ranges
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    chosen = np.ones(len(z), dtype=bool) if fit_on is None else np.asarray(fit_on, dtype=bool)
    fitted_queries = np.unique(query[chosen])
    if len(fitted_queries) < 4 or len(query) != len(z):
        raise InputError(
            f"grade map: got {int(chosen.sum())} labels of {len(fitted_queries)} queries; expected at least 4 queries, "
            "so that some can be held out; fix: label documents of more queries"
        )
    fold_of = np.empty(len(names), dtype=np.int64)
    generator = np.random.default_rng(seed)
    shuffled = [*generator.permutation(fitted_queries), *np.setdiff1d(np.arange(len(names)), fitted_queries)]
    fold_of[shuffled] = np.arange(len(names)) % min(folds, len(fitted_queries))
    fold = fold_of[query]
    mapped, constant = np.empty_like(z), np.empty_like(z)
    for held in np.unique(fold):
        train, test = chosen & (fold != held), fold == held
        mapped[test] = _fit(z[train], observed[train], kind).apply(z[test])
        constant[test] = observed[train].mean()
    change = (mapped - observed) ** 2 - (z - observed) ** 2
    figures = HeldOutFigures(
        pairs=len(z),
        queries=len(names),
        brier_before=before,
        brier_after=brier(mapped, observed),
        brier_constant=brier(constant, observed),
        change=mean_estimate(change, list(query_ids), samples=1000, seed=seed),
        ece_before=expected_calibration_error(z, observed),
        ece_after=expected_calibration_error(mapped, observed),
    )
    whole = _fit(z[chosen], observed[chosen], kind)
    found = {"labels": int(chosen.sum()), "queries": len(fitted_queries)}
    helps = figures.helps and not whole.is_constant
    return whole.model_copy(update={**found, "held_out": figures.to_plain(), "helps": helps}), figures


def _fit(z: Floats, observed: Floats, kind: MapKind) -> GradeMap:
    if kind == "platt":
        slope, intercept = fit_platt(z, observed)
        return GradeMap(kind=kind, slope=slope, intercept=intercept)
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(z, observed)
    outputs = np.maximum.accumulate(np.clip(model.y_thresholds_, 0.0, 1.0))
    return GradeMap(kind=kind, knots=tuple(zip(model.X_thresholds_.tolist(), outputs.tolist(), strict=True)))
