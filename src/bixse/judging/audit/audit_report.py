"""The report of an audit of judges: figures for JSON, the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.judging.audit.labels import impossible_lines
from bixse.report.table import format_interval, format_number, format_table
from bixse.results import FEW_QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.judging.audit.labels import ImpossibleLabel
    from bixse.results import CalibrationReport, IntervalEstimate

MEASURES = {
    "exact": "same grade",
    "one_off": "one level apart",
    "further_off": "further apart",
    "kappa": "Cohen's kappa",
    "linear_kappa": "kappa, linear weights",
    "quadratic_kappa": "kappa, quadratic weights",
    "binary_kappa": "kappa, relevant or not",
    "alpha": "Krippendorff's alpha, ordinal",
    "spearman": "Spearman's rho",
    "kendall": "Kendall's tau-b",
    "mean_difference": "judge's grade less the human's",
}


@dataclass(frozen=True)
class GradeShare:
    """The share of relevant pairs among the pairs with one grade of the judge; None without pairs."""

    grade: float
    pairs: int
    relevant: float | None = None
    low: float | None = None  # Wilson's 95 % interval, as if pairs were independent
    high: float | None = None


@dataclass(frozen=True)
class Disagreement:
    """The grades of one pair."""

    query_id: str
    document_id: str
    human: float
    judge: float


@dataclass(frozen=True)
class JudgeAudit:
    """The comparison of one judge with the human labels."""

    name: str
    path: str
    pairs: int  # with a usable grade on both sides; every measure is over these pairs
    queries: int
    without_grade: int  # human-labelled pairs without a usable grade of the judge
    human_only: int  # human-labelled pairs missing in the judge's file
    judge_only: int
    statuses: Mapping[str, int]
    impossible: tuple[ImpossibleLabel, ...]
    mapped: int  # pairs whose relevance does not follow from their grade
    measures: Mapping[str, IntervalEstimate]
    """`MEASURES` with intervals over queries; expected grades are rounded, except for rho and tau."""
    confusion: tuple[tuple[int, ...], ...]
    """Numbers of pairs by human grade (rows) and judge's grade (columns)."""
    by_grade: tuple[GradeShare, ...]
    calibration: CalibrationReport
    """The judge's relevance as a probability of human relevance."""
    against_constant: IntervalEstimate
    """Brier score minus that of a constant mean, paired by query; below 0 the grades are informative."""
    worst_pairs: tuple[Disagreement, ...]


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit."""

    scale: tuple[float, float]
    levels: tuple[float, ...]
    relevant_from: float
    human_path: str
    human_pairs: int
    human_queries: int
    human_impossible: tuple[ImpossibleLabel, ...]
    human_after_judge: int  # labels given or changed after the person saw the judge's grade; left out
    judges: tuple[JudgeAudit, ...]
    samples: int

    @property
    def impossible(self) -> tuple[ImpossibleLabel, ...]:
        return (*self.human_impossible, *(label for judge in self.judges for label in judge.impossible))

    def figures(self) -> dict[str, dict[str, float | int | None]]:
        return {
            judge.name: {
                "pairs": judge.pairs,
                **{measure: estimate.value for measure, estimate in judge.measures.items()},
                "brier": judge.calibration.brier,
                "brier_constant": judge.calibration.base_rate_brier,
                "ece": judge.calibration.ece,
                "impossible_labels": len(judge.impossible),
            }
            for judge in self.judges
        }

    def warnings(self) -> list[str]:
        found = []
        if self.impossible:
            found.append(
                f"impossible labels off the scale: {len(self.impossible)}; listed with file and row, left out of "
                "every measure, never clipped"
            )
        if self.human_after_judge:
            found.append(
                f"{self.human_after_judge} labels were given or changed after the judge's grade was shown: they are "
                "left out, and the label before each of them counts"
            )
        found += [
            f"{judge.name}: the relevance of {judge.mapped} pairs is not its grade's place on the judge's scale: a "
            "mapped file, or grades of another scale; kappa reads the grade, Brier the relevance"
            for judge in self.judges
            if judge.mapped
        ]
        fewest = min(judge.queries for judge in self.judges)
        if fewest < FEW_QUERIES:
            found.append(f"{fewest} queries only: the intervals are somewhat too narrow")
        return found

    def text(self) -> str:
        rows: list[list[str | int | float | None]] = []
        for judge in self.judges:
            names = ("exact", "kappa", "quadratic_kappa", "binary_kappa", "kendall")
            exact, value, *others = (format_number(judge.measures[name].value) for name in names)
            kappa, calibration = judge.measures["kappa"], judge.calibration
            brier = f"{format_number(calibration.brier)} ({format_number(calibration.base_rate_brier)})"
            top = format_number(judge.by_grade[-1].relevant, 2)
            interval = format_interval(kappa.low, kappa.high)
            rows.append([judge.name, judge.pairs, exact, f"{value} {interval}", *others, brier, calibration.ece, top])
        head = ["judge", "pairs", "same", "kappa", "quadratic", "binary", "tau-b", "Brier (constant)", "ECE",
                "relevant at top grade"]  # fmt: skip
        low, high = self.scale
        lines = [
            f"{self.human_pairs} human labels of {self.human_queries} queries on {low:g} to {high:g}, relevant from "
            f"{self.relevant_from:g}; intervals 95 % over queries",
            "",
            format_table(rows, head),
        ]
        return "\n".join([*lines, *impossible_lines(self.impossible)])
