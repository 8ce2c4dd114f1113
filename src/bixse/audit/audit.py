"""The audit of judges: join their labels with human ones, measure their agreement, write audit.json and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bixse.audit import agreement
from bixse.audit.agreement import agreement_in_words, counts_by_query, nearest_level
from bixse.audit.labels import ImpossibleLabel, Labels, impossible_lines, labels_of, unjoined_labels
from bixse.calibration.reliability import calibration_report
from bixse.data.joined import Unjoined, check_joined, warn_of
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.errors import InputError
from bixse.evaluation.intervals import Floats, few_of_classes, mean_estimate, wilson_interval
from bixse.files.files import hash_files, write_atomically
from bixse.rendering.page import render_page
from bixse.rendering.plots import reliability_diagram
from bixse.rendering.table import format_number, format_table
from bixse.rendering.wording import format_interval
from bixse.results import UNITS_FROM, CalibrationReport, IntervalEstimate

if TYPE_CHECKING:
    from bixse.audit.audit_settings import AuditSettings


MOST_LEVELS = 21
"""Maximum number of distinct grades of an ordinal scale."""
WORST_PAIRS, WORST_OF_A_QUERY = 20, 2
"""Maximum number of disagreements in a report, in total and per query."""
TITLE = "Audit of judges"
LABELS_SHOWN = 50
"""Maximum number of impossible labels on the page; audit.json holds all."""


def audit(judges: Sequence[Labels], human: Labels, min_relevant_grade: float | None = None) -> AuditReport:
    """Measure the agreement of judges with people, with intervals over queries.

    Grades on another scale are mapped to that of the `human` labels. Raise InputError for no judge, two judges of one
    name, a judge without a pair of the human labels, or fewer than 2 common queries.
    """
    names = [judge.name for judge in judges]
    if not names or len(set(names)) < len(names):
        raise InputError(f"audit: got the judges {names}; expected different names; fix: give each file once")
    levels = grade_levels(human)
    min_relevant_grade = first_relevant(levels, min_relevant_grade)
    common = {judge.name: common_pairs(judge, human, min_relevant_grade) for judge in judges}
    return AuditReport(
        scale=(human.scale.minimum, human.scale.maximum),
        levels=tuple(levels.tolist()),
        min_relevant_grade=min_relevant_grade,
        human_path=human.path,
        human_pairs=len(human.grades),
        human_queries=len({query for query, _ in human.grades}),
        human_impossible=human.impossible,
        human_after_judge=human.after_judge,
        judges=tuple(_audit_one(judge, *common[judge.name], human, levels, min_relevant_grade) for judge in judges),
    )


def grade_levels(human: Labels) -> Floats:
    """Return the integers of the human scale, or its labels if not all are integers; InputError for more than 21."""
    grades = {human.scale.minimum, human.scale.maximum, *human.grades.values()}
    integers = all(float(grade).is_integer() for grade in grades)
    levels = np.arange(human.scale.minimum, human.scale.maximum + 1) if integers else np.array(sorted(grades))
    if len(levels) > MOST_LEVELS:
        raise InputError(
            f"{human.path}: got {len(levels)} distinct grades; expected an ordinal scale of at most {MOST_LEVELS}; "
            "fix: map the labels to a few grades"
        )
    return levels.astype(np.float64)


def first_relevant(levels: Floats, min_relevant_grade: float | None) -> float:
    """Return the lowest relevant grade; by default the lowest in the upper half of the scale (TREC DL: 2 on 0 to 3)."""
    if min_relevant_grade is None:
        return float(levels[levels >= (levels[0] + levels[-1]) / 2][0])
    if not levels[0] < min_relevant_grade <= levels[-1]:
        raise InputError(
            f"min-relevant-grade: got {min_relevant_grade:g}; expected above {levels[0]:g} and up to {levels[-1]:g}, "
            "the scale of the human labels; fix: name the lowest grade that counts as relevant"
        )
    return min_relevant_grade


def common_pairs(judge: Labels, human: Labels, min_relevant_grade: float) -> tuple[Any, list[str]]:
    """Return a frame of the pairs that both sides graded, and warnings of the others; raise InputError for none or few.

    Columns: grades `human` and `judge` on the human scale, the judge's `relevance`, and human `relevant` (0 or 1).
    """
    pairs = sorted(human.grades.keys() & judge.grades.keys())
    if not pairs:
        ids = [next(iter(side.grades)) for side in (judge, human)]
        raise InputError(
            f"{judge.path}: got no pair of the human labels (pairs such as {ids[0]}; human labels such as {ids[1]}); "
            "expected labels of the same queries and documents; fix: use the ids of the human labels"
        )
    sides = (dict.fromkeys(sorted({**side.grades, **side.missing})) for side in (judge, human))
    fix = "use the ids of the human labels, and labels of the same pairs"
    warnings = check_joined(judge.path, [unjoined_labels(judge.name, *sides)], fix)
    grades = np.array([human.grades[pair] for pair in pairs], dtype=np.float64)
    judged = [judge.grades[pair] for pair in pairs]
    if judge.scale != human.scale:
        judged = [human.scale.to_grade(judge.scale.to_relevance(grade)) for grade in judged]
    columns = {
        "human": grades,
        "judge": np.array(judged, dtype=np.float64),
        "relevance": np.array([judge.relevance[pair] for pair in pairs], dtype=np.float64),
        "relevant": (grades >= min_relevant_grade).astype(np.float64),
    }
    return pd.DataFrame(columns, pd.MultiIndex.from_tuples(pairs, names=["query_id", "document_id"])), warnings


def query_ids_of(frame: Any) -> list[str]:
    """Return the query id of each row of `common_pairs`."""
    return list(frame.index.get_level_values("query_id"))


def _audit_one(
    judge: Labels, common: Any, joined: Sequence[str], human: Labels, levels: Floats, min_relevant_grade: float
) -> JudgeAudit:
    query_ids, relevance, relevant = query_ids_of(common), common.relevance.to_numpy(), common.relevant.to_numpy()
    square = counts_by_query(common.human.to_numpy(), common.judge.to_numpy(), query_ids, levels)
    every = counts_by_query(common.human.to_numpy(), common.judge.to_numpy(), query_ids, None)
    difference = (common.judge - common.human).to_numpy()
    errors = (relevance - relevant) ** 2 - (relevant.mean() - relevant) ** 2
    few = few_of_classes(relevant, query_ids)
    by_level = common.relevant.groupby(nearest_level(common.judge.to_numpy(), levels)).agg(["size", "mean", "sum"])
    by_level = by_level.reindex(range(len(levels)), fill_value=0)
    return JudgeAudit(
        name=judge.name,
        path=judge.path,
        pairs=len(common),
        queries=len(set(query_ids)),
        without_grade=len(human.grades.keys() & judge.missing.keys()),
        human_only=len(human.grades.keys() - judge.grades.keys() - judge.missing.keys()),
        judge_only=len(judge.grades.keys() - human.grades.keys()),
        statuses=judge.statuses,
        impossible=judge.impossible,
        mapped=judge.mapped,
        measures={
            "mean_difference": mean_estimate(difference, query_ids),
            **square.estimates(agreement.of_levels(int(np.searchsorted(levels, min_relevant_grade))), few),
            **every.estimates(agreement.OF_RANKS, few),
        },
        confusion=tuple(map(tuple, square.total.astype(int).tolist())),
        by_grade=tuple(
            GradeShare(grade, size, mean, *wilson_interval(total, size))
            if size >= UNITS_FROM
            else GradeShare(grade, size, mean if size else None)
            for grade, (size, mean, total) in zip(levels.tolist(), by_level.itertuples(index=False), strict=True)
        ),
        calibration=calibration_report(relevance, relevant, query_ids),
        against_constant=mean_estimate(errors, query_ids),
        worst_pairs=_worst_pairs(common),
        joined=tuple(joined),
    )


def _worst_pairs(common: Any) -> tuple[Disagreement, ...]:
    disagreements = common.assign(apart=(common.judge - common.human).abs())
    disagreements = disagreements[disagreements.apart > 0]
    # a stable sort leaves ties in the order of their ids
    disagreements = disagreements.sort_values("apart", ascending=False, kind="stable")
    worst = disagreements.groupby(level="query_id").head(WORST_OF_A_QUERY).head(WORST_PAIRS)
    return tuple(Disagreement(*row) for row in worst[["human", "judge"]].reset_index().itertuples(index=False))


@dataclass(frozen=True)
class AuditResult:
    """The report of an audit, its files (name -> path) and its warnings."""

    report: AuditReport
    artifacts: dict[str, str]
    warnings: list[str]


def audit_judges(settings: AuditSettings, out: str | Path) -> AuditResult:
    """Measure judges against human labels and write audit.json, audit.html and run.json.

    Raises:
        InputError: a file or a set of labels is unusable (see `audit`).
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, graded = labels_of(settings, settings.judge)
    report = audit(graded, people, settings.min_relevant_grade)
    texts = None if settings.pairs is None else load_graded_pairs(settings.pairs)
    files = {"human": settings.human} | ({} if settings.pairs is None else {"pairs": settings.pairs})
    files |= {f"judge {number}": path for number, path in enumerate(settings.judge, start=1)}
    record = open_run(out, "grade audit", settings.model_dump(), hash_files(files), paths=settings.path_settings())
    record.save("running")
    warnings = report.warnings()
    if texts is not None:
        known = set(zip(texts.query_ids, texts.document_ids, strict=True))
        lost = Unjoined.of("human labels of pairs without a text", people.grades, known)
        warnings += warn_of(settings.pairs or "", lost)
    if settings.scale is None:
        low, high = report.scale
        warnings.append(
            f"the scale {low:g} to {high:g} is that of the human labels found; state --scale if the real scale is wider"
        )
    queries = dict(zip(texts.query_ids, texts.queries, strict=True)) if texts is not None else {}
    documents = dict(zip(texts.document_ids, texts.documents, strict=True)) if texts is not None else {}
    content = {
        "title": TITLE,
        "created": record.started,
        **asdict(report),
        "measure_names": MEASURES,
        "warnings": warnings,
    }
    artifacts = {"audit": out / "audit.json", "page": out / "audit.html"}
    write_atomically(artifacts["audit"], json.dumps(content, indent=2, allow_nan=False) + "\n")  # a bare NaN is no JSON
    write_atomically(artifacts["page"], render_audit(report, record.started, warnings, queries, documents))
    record.results = {"figures": report.figures(), "impossible_labels": len(report.impossible)}
    record.save("finished")
    return AuditResult(report, {name: str(path) for name, path in artifacts.items()}, warnings)


def render_audit(
    report: AuditReport,
    created: str,
    warnings: Sequence[str],
    queries: Mapping[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
) -> str:
    """Return the HTML page; `created` is ISO 8601, `queries` and `documents` are known texts by id."""
    return render_page(
        "audit.html.j2",
        title=TITLE,
        audit=report,
        created=created,
        warnings=warnings,
        measures=MEASURES,
        diagrams={judge.name: reliability_diagram(judge.calibration, judge.name) for judge in report.judges},
        queries=queries or {},
        documents=documents or {},
        labels_shown=LABELS_SHOWN,
    )


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
    low: float | None = None  # Wilson's 95 % interval, as if pairs were independent; from 20 pairs on
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
    joined: tuple[str, ...] = ()
    """Warnings of pairs that only one side has."""

    @property
    def verdict(self) -> str:
        """Return what kappa says, as the end of a sentence about the judge."""
        return agreement_in_words(self.measures["kappa"])


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit."""

    scale: tuple[float, float]
    levels: tuple[float, ...]
    min_relevant_grade: float
    human_path: str
    human_pairs: int
    human_queries: int
    human_impossible: tuple[ImpossibleLabel, ...]
    human_after_judge: int  # labels given or changed after the person saw the judge's grade; left out
    judges: tuple[JudgeAudit, ...]

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
        warnings = [line for judge in self.judges for line in judge.joined]
        if self.impossible:
            warnings.append(
                f"impossible labels off the scale: {len(self.impossible)}; listed with file and row, left out of "
                "every measure, never clipped"
            )
        if self.human_after_judge:
            warnings.append(
                f"{self.human_after_judge} labels were given or changed after the judge's grade was shown: they are "
                "left out, and the label before each of them counts"
            )
        warnings += [
            f"{judge.name}: the relevance of {judge.mapped} pairs is not their grade's position on the judge's scale "
            "(a mapped file, or grades of another scale); kappa reads the grade, Brier the relevance"
            for judge in self.judges
            if judge.mapped
        ]
        return warnings

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
            f"{self.min_relevant_grade:g}; intervals 95 % over queries",
            "",
            format_table(rows, head),
        ]
        verdicts = ["", *(f"{judge.name} {judge.verdict}" for judge in self.judges)]
        return "\n".join([*lines, *verdicts, *impossible_lines(self.impossible)])
