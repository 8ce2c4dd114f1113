"""Calibrate a judge: fit a monotone map from its relevance to human labels, and keep it only if it helps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bixse.calibration.reliability import brier, expected_calibration_error
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError
from bixse.evaluation.statistics import mean_estimate
from bixse.files.files import file_hash, write_atomically
from bixse.judging.audit.audit import first_relevant, grade_levels
from bixse.judging.audit.audit_settings import MapKind
from bixse.judging.audit.labels import impossible_lines, labels_of
from bixse.report.table import format_difference, format_interval, format_table
from bixse.results import IntervalEstimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.data.graded_pairs import GradedPairs
    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.audit_settings import GradeMapSettings
    from bixse.judging.audit.labels import ImpossibleLabel, Labels
    from bixse.relevance import GradeScale

MAP_FILE, PAIRS_FILE = "map.json", "pairs.parquet"


class HeldOutFigures(BaseModel):
    """The figures of a map on held-out queries, each mapped by a fit to the queries of the other folds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pairs: int
    queries: int
    brier_before: float
    brier_after: float
    brier_constant: float
    """The Brier score of the constant mean of the other folds."""
    ece_before: float
    ece_after: float
    change: float | None
    """brier_after - brier_before, with its 95 % interval over queries; below 0 the map helps."""
    change_low: float | None
    change_high: float | None


class GradeMap(BaseModel):
    """A map that never falls and stays in [0, 1], with its labels and its figures.

    `GradeMap.model_validate_json(Path("map.json").read_text())` reads the file of `bixse grade calibrate`.

    Example:
        >>> steps = GradeMap(kind="isotonic", knots=((0.0, 0.1), (1.0, 0.7)))
        >>> steps.apply([0.0, 0.5, 1.0]).tolist()
        [0.1, 0.4, 0.7]
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: MapKind
    knots: tuple[tuple[float, float], ...] = ()
    """isotonic: points (relevance, probability), joined by straight lines, constant beyond the ends."""
    slope: float = Field(default=0.0, ge=0.0)
    """platt: a and c of sigma(a z + c)."""
    intercept: float = 0.0
    judge: str = ""
    scale: tuple[float, float] | None = None
    """Scale of the judge: the map reads (grade - lowest) / (highest - lowest)."""
    target: str = ""
    """The predicted quantity in words."""
    labels: int = 0
    """Number of human labels of the fit."""
    queries: int = 0
    held_out: HeldOutFigures | None = None
    helps: bool | None = None
    """True if the held-out Brier score is below that of the unmapped grades and that of a constant."""

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
        return self.slope == 0 if self.kind == "platt" else self.knots[0][1] == self.knots[-1][1]

    def apply(self, relevance: npt.ArrayLike) -> Floats:
        """Return the probability of each relevance in [0, 1], of any shape."""
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
class GradeMapResult:
    """The map of a calibration and its files."""

    map: GradeMap
    kept: bool
    """True if the map was written, because it helps or was forced."""
    impossible: tuple[ImpossibleLabel, ...]
    """Labels off their scale; left out."""
    artifacts: dict[str, str]  # name -> path

    def text(self) -> str:
        fitted, figures = self.map, self.map.held_out
        assert figures is not None, "fitted maps carry them"
        rows: list[list[str | float | None]] = [
            ["as graded", figures.brier_before, figures.ece_before],
            ["mapped", figures.brier_after, figures.ece_after],
            ["a constant", figures.brier_constant, None],
        ]
        change = IntervalEstimate(figures.change, figures.change_low, figures.change_high)
        verdict = {
            "below": "lower beyond the interval",
            "across": "the interval holds 0: no difference is shown",
            "above": "higher beyond the interval",
        }[change.side]
        shown = [0.0, 1 / 3, 2 / 3, 1.0]
        points = zip(shown, fitted.apply(shown).tolist(), strict=True)
        lines = [
            f"{fitted.judge}: {fitted.kind} map fitted on {fitted.labels} human labels of {fitted.queries} queries, "
            f"measured on {figures.pairs} pairs, each by the map of other queries",
            "",
            format_table(rows, ["held-out queries", "Brier", "ECE"]),
            "",
            f"change of the Brier score {format_difference(change.value or 0.0)} "
            f"{format_interval(change.low, change.high, signed=True)}: {verdict}",
            "mapped: " + ", ".join(f"{z:.2f} to {p:.2f}" for z, p in points),
        ]
        return "\n".join([*lines, *impossible_lines(self.impossible)])


def calibrate_grades(settings: GradeMapSettings, out: str | Path) -> GradeMapResult:
    """Fit a map, measure it on held-out queries, and write map.json and run.json if it helps there or is forced.

    Raises:
        InputError: a file is unusable, labels are too few, or pairs were mapped before.
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, (judge,) = labels_of(settings, [settings.judgements])
    fitted = _fit(people, judge, settings)
    pairs = mapped_pairs(settings.apply, fitted, judge.scale) if settings.apply is not None else None
    kept = bool(fitted.helps or settings.force)
    impossible = (*people.impossible, *judge.impossible)
    if not kept:
        return GradeMapResult(fitted, kept, impossible, {})
    paths = {name: getattr(settings, name) for name in settings.path_settings()}
    hashes = {name: file_hash(path) for name, path in paths.items() if path is not None}
    record = open_run(out, "grade calibrate", settings.model_dump(), hashes, paths=tuple(paths))
    record.save("running")
    write_atomically(out / MAP_FILE, fitted.model_dump_json(indent=2) + "\n")
    artifacts = {"map": str(out / MAP_FILE)}
    if pairs is not None:
        save_graded_pairs(pairs, out / PAIRS_FILE)
        artifacts["pairs"] = str(out / PAIRS_FILE)
    record.results = {"metrics": fitted.model_dump()["held_out"], "artifacts": artifacts}
    record.save("finished")
    return GradeMapResult(fitted, kept, impossible, artifacts)


def mapped_pairs(path: Path, fitted: GradeMap, scale: GradeScale) -> GradedPairs:
    """Return pairs with mapped relevance, their own grade in `grade`; raise InputError for pairs mapped before."""
    pairs = load_graded_pairs(path)
    grades = pairs.extra.get("grade", [None] * len(pairs))
    kept = []
    for row, (grade, relevance) in enumerate(zip(grades, pairs.relevance.tolist(), strict=True), start=1):
        place = scale.to_grade(relevance)
        if grade is not None and abs(grade - place) > 1e-3 * (scale.maximum - scale.minimum):  # files round
            raise InputError(
                f"{path}: row {row}: got grade {grade:g} with relevance {relevance:g}; expected {place:g}, its place "
                f"on the judge's scale {scale.minimum:g} to {scale.maximum:g}; fix: give pairs that were not "
                "mapped before, or state the judge's scale"
            )
        kept.append(place if grade is None else grade)
    return pairs.with_columns(relevance=fitted.apply(pairs.relevance), grade=kept)


def _fit(human: Labels, judge: Labels, settings: GradeMapSettings) -> GradeMap:
    if judge.mapped:
        raise InputError(
            f"{judge.path}: got {judge.mapped} pairs whose relevance is not their grade's place on "
            f"{judge.scale.minimum:g} to {judge.scale.maximum:g}; expected the judge's own grades; fix: state "
            "--judge-scale, or give judgements that were not mapped before"
        )
    pairs = sorted(human.grades.keys() & judge.grades.keys())
    if not pairs:
        raise InputError(
            f"{judge.path}: got no pair of {human.path}; expected labels of the same queries and documents; "
            "fix: use the ids of the human labels"
        )
    if settings.sample is not None and settings.sample > len(pairs):
        raise InputError(
            f"--sample: got {settings.sample}; expected 1 to {len(pairs)}, the pairs that both sides labelled; fix: "
            "leave it out to fit on all"
        )
    chosen = np.random.default_rng(settings.seed).permutation(len(pairs))[: settings.sample]
    relevant_from = first_relevant(grade_levels(human), settings.relevant_from)
    grades = [human.grades[pair] for pair in pairs]
    if settings.target == "graded":
        targets = [human.scale.to_relevance(grade) for grade in grades]
        target = "mean human grade on [0, 1]"
    else:
        targets = [float(grade >= relevant_from) for grade in grades]
        target = f"share of human grades from {relevant_from:g} up"
    fitted = fit_grade_map(
        [judge.relevance[pair] for pair in pairs],
        targets,
        [query for query, _ in pairs],
        settings.kind,
        np.isin(np.arange(len(pairs)), chosen),
        seed=settings.seed,
    )
    scale = (judge.scale.minimum, judge.scale.maximum)
    return fitted.model_copy(update={"judge": judge.name, "scale": scale, "target": target})


def fit_grade_map(
    relevance: npt.ArrayLike,
    human: npt.ArrayLike,
    query_ids: Sequence[str],
    kind: MapKind = "platt",
    fit_on: npt.NDArray[np.bool_] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> GradeMap:
    """Fit a map on the pairs of `fit_on` and measure it on all pairs by cross-fitting; check `helps` before use.

    All arrays are (N,); `relevance` (the judge's) and `human` are in [0, 1]. The logistic curve needs fewer labels than
    isotonic regression and keeps unequal grades unequal. Raise InputError for fewer than 4 queries to fit on.
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
    # queries to fit on come first, so that every fold holds some
    shuffled = [*generator.permutation(fitted_queries), *np.setdiff1d(np.arange(len(names)), fitted_queries)]
    fold_of[shuffled] = np.arange(len(names)) % min(folds, len(fitted_queries))
    fold = fold_of[query]
    mapped, constant = np.empty_like(z), np.empty_like(z)
    for held in np.unique(fold):
        train, test = chosen & (fold != held), fold == held
        mapped[test] = _fitted_map(z[train], observed[train], kind).apply(z[test])
        constant[test] = observed[train].mean()
    change = mean_estimate((mapped - observed) ** 2 - (z - observed) ** 2, list(query_ids), samples=1000, seed=seed)
    held_out = HeldOutFigures(
        pairs=len(z),
        queries=len(names),
        brier_before=before,
        brier_after=brier(mapped, observed),
        brier_constant=brier(constant, observed),
        ece_before=expected_calibration_error(z, observed),
        ece_after=expected_calibration_error(mapped, observed),
        change=change.value,
        change_low=change.low,
        change_high=change.high,
    )
    whole = _fitted_map(z[chosen], observed[chosen], kind)
    helps = held_out.brier_after < min(before, held_out.brier_constant) and not whole.is_constant
    found = {"labels": int(chosen.sum()), "queries": len(fitted_queries), "held_out": held_out, "helps": helps}
    return whole.model_copy(update=found)


def _fitted_map(z: Floats, observed: Floats, kind: MapKind) -> GradeMap:
    if kind == "platt":
        slope, intercept = fit_platt(z, observed)
        return GradeMap(kind=kind, slope=slope, intercept=intercept)
    from sklearn.isotonic import IsotonicRegression  # slow to import

    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(z, observed)
    outputs = np.maximum.accumulate(np.clip(model.y_thresholds_, 0.0, 1.0))
    return GradeMap(kind=kind, knots=tuple(zip(model.X_thresholds_.tolist(), outputs.tolist(), strict=True)))
