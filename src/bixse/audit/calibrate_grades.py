"""Calibrate a judge: fit a monotone map from its relevance to human labels, and keep it only if it helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from bixse.audit.audit import common_pairs, first_relevant, grade_levels, query_ids_of
from bixse.audit.labels import ImpossibleLabel, impossible_lines, labels_of
from bixse.calibration.reliability import brier, expected_calibration_error
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError
from bixse.evaluation.intervals import Floats, few_of_classes, mean_estimate
from bixse.files.files import hash_files, write_atomically
from bixse.rendering.table import format_table
from bixse.rendering.wording import format_difference, format_interval
from bixse.results import VERDICT_WORDS, IntervalEstimate, too_few

if TYPE_CHECKING:
    from bixse.audit.audit_settings import GradeMapSettings
    from bixse.data.graded_pairs import Pairs
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
    """A logistic curve sigma(slope z + intercept) that never falls (Platt 1999), with its labels and its figures.

    `GradeMap.model_validate_json(Path("map.json").read_text())` reads the file of `bixse grade calibrate`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)  # earlier versions wrote more fields

    kind: Literal["platt"] = "platt"
    slope: float = Field(ge=0.0)
    intercept: float
    judge: str = ""
    scale: tuple[float, float] | None = None
    """Scale of the judge: the map reads (grade - lowest) / (highest - lowest)."""
    target: str = ""  # the predicted quantity in words
    labels: int = 0
    queries: int = 0
    held_out: HeldOutFigures | None = None
    helps: bool | None = None
    """True if enough labels have a held-out Brier score below that of the unmapped grades and that of a constant."""
    few: str = ""
    """The reason why too few labels decide, for example "7 queries; at least 20"."""

    def apply(self, relevance: npt.ArrayLike) -> Floats:
        """Return the probability of each relevance in [0, 1], of any shape."""
        z = np.asarray(relevance, dtype=np.float64)
        if not ((z >= 0) & (z <= 1)).all():
            wrong = z[~((z >= 0) & (z <= 1))].flat[0]
            raise InputError(f"relevance: got {wrong}; expected 0 to 1; fix: map grades with GradeScale first")
        return np.asarray(0.5 * (1 + np.tanh(0.5 * (self.slope * z + self.intercept))))


@dataclass(frozen=True)
class GradeMapResult:
    """The map of a calibration and its files."""

    map: GradeMap
    impossible: tuple[ImpossibleLabel, ...]
    artifacts: dict[str, str]
    """Name -> path; empty for a map that does not help, which is not written."""
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        fitted, figures = self.map, self.map.held_out
        assert figures is not None, "fitted maps carry them"
        rows: list[list[str | float | None]] = [
            ["as graded", figures.brier_before, figures.ece_before],
            ["mapped", figures.brier_after, figures.ece_after],
            ["a constant", figures.brier_constant, None],
        ]
        change = IntervalEstimate(figures.change, figures.change_low, figures.change_high)
        verdict = VERDICT_WORDS[change.verdict(lower_is_better=True)]
        few = too_few(figures.queries)
        lines = [
            f"{fitted.judge}: map fitted on {fitted.labels} human labels of {fitted.queries} queries, "
            f"measured on {figures.pairs} pairs, each by the map of other queries",
            "",
            format_table(rows, ["held-out queries", "Brier", "ECE"]),
            "",
            f"change of the Brier score {format_difference(change.value or 0.0)} "
            f"{format_interval(change.low, change.high, signed=True)}: {verdict}{f' ({few})' if few else ''}",
        ]
        return "\n".join([*lines, *impossible_lines(self.impossible)])


def calibrate_grades(settings: GradeMapSettings, out: str | Path) -> GradeMapResult:
    """Fit a map, measure it on held-out queries, and write map.json and run.json if it helps there.

    Raises:
        InputError: a file is unusable, labels are too few, or pairs were mapped before.
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, (judge,) = labels_of(settings, [settings.judgements])
    if judge.mapped:
        raise InputError(
            f"{judge.path}: got {judge.mapped} pairs whose relevance does not follow from their grade on the scale "
            f"{judge.scale.minimum:g} to {judge.scale.maximum:g}; expected the judge's own grades; fix: give "
            "judgements that were not mapped before"
        )
    min_relevant_grade = first_relevant(grade_levels(people), settings.min_relevant_grade)
    common, warnings = common_pairs(judge, people, min_relevant_grade)
    fitted = fit_grade_map(common.relevance, common.relevant, query_ids_of(common))
    scale = (judge.scale.minimum, judge.scale.maximum)
    target = f"share of human grades from {min_relevant_grade:g} up"
    fitted = fitted.model_copy(update={"judge": judge.name, "scale": scale, "target": target})
    pairs = mapped_pairs(settings.apply, fitted, judge.scale) if settings.apply is not None else None
    impossible = (*people.impossible, *judge.impossible)
    if not fitted.helps:
        return GradeMapResult(fitted, impossible, {}, warnings)
    files = {name: path for name in settings.path_settings() if (path := getattr(settings, name)) is not None}
    record = open_run(out, "grade calibrate", settings.model_dump(), hash_files(files), settings.path_settings())
    record.save("running")
    write_atomically(out / MAP_FILE, fitted.model_dump_json(indent=2) + "\n")
    artifacts = {"map": str(out / MAP_FILE)}
    if pairs is not None:
        save_graded_pairs(pairs, out / PAIRS_FILE)
        artifacts["pairs"] = str(out / PAIRS_FILE)
    record.results = {"metrics": fitted.model_dump()["held_out"], "artifacts": artifacts}
    record.save("finished")
    return GradeMapResult(fitted, impossible, artifacts, warnings)


def mapped_pairs(path: Path, fitted: GradeMap, scale: GradeScale) -> Pairs:
    """Return pairs with mapped relevance, their own grade in `grade`; raise InputError for pairs mapped before."""
    pairs = load_graded_pairs(path)
    grades = pairs.extra.get("grade", [None] * len(pairs))
    unmapped = []
    for row, (grade, relevance) in enumerate(zip(grades, pairs.relevance.tolist(), strict=True), start=1):
        expected = scale.to_grade(relevance)
        if grade is not None and abs(grade - expected) > 1e-3 * (scale.maximum - scale.minimum):  # files round
            raise InputError(
                f"{path}: row {row}: got grade {grade:g} with relevance {relevance:g}; expected {expected:g} on "
                f"the judge's scale {scale.minimum:g} to {scale.maximum:g}; fix: give pairs that were not mapped before"
            )
        unmapped.append(expected if grade is None else grade)
    return pairs.with_columns(relevance=fitted.apply(pairs.relevance), grade=unmapped)


def fit_grade_map(
    relevance: npt.ArrayLike, human: npt.ArrayLike, query_ids: Sequence[str], folds: int = 5, seed: int = 0
) -> GradeMap:
    """Fit a map on all pairs and measure it by cross-fitting over queries; check `helps` before use.

    All arrays are (N,); `relevance` (the judge's) and `human` are in [0, 1]. Raise InputError for fewer than 4 queries.
    """
    z, observed = np.asarray(relevance, dtype=np.float64), np.asarray(human, dtype=np.float64)
    before = brier(z, observed)  # checks lengths and ranges
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    if len(names) < 4 or len(query) != len(z):
        raise InputError(
            f"grade map: got {len(z)} labels of {len(names)} queries; expected at least 4 queries, so that some can be "
            "held out; fix: label documents of more queries"
        )
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % min(folds, len(names))
    fold = fold_of[query]
    mapped, constant = np.empty_like(z), np.empty_like(z)
    for held in np.unique(fold):
        train, test = fold != held, fold == held
        mapped[test] = _fitted_map(z[train], observed[train]).apply(z[test])
        constant[test] = observed[train].mean()
    change = mean_estimate((mapped - observed) ** 2 - (z - observed) ** 2, list(query_ids))
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
    fit_of_all = _fitted_map(z, observed)
    few = few_of_classes(observed >= 0.5, query_ids)
    helps = not few and held_out.brier_after < min(before, held_out.brier_constant) and fit_of_all.slope > 0
    figures = {"labels": len(z), "queries": len(names), "held_out": held_out, "helps": helps, "few": few}
    return fit_of_all.model_copy(update=figures)


def _fitted_map(z: Floats, observed: Floats) -> GradeMap:
    slope, intercept = fit_platt(z, observed)
    return GradeMap(slope=slope, intercept=intercept)
