"""What an audit's figures mean for training, in plain sentences.

No sentence calls per judge good or bad by a limit of our own: it says what was measured, against what, and whether the
interval leaves the other possibility open. Names of bands are quoted as the conventions they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.grading.audit.audit_report import COMPARED

if TYPE_CHECKING:
    from bixse.grading.audit.agreement import Estimate
    from bixse.grading.audit.audit_report import AuditReport, JudgeAudit

FEW_QUERIES = 30
"""Below about this many queries intervals by resampling are somewhat too narrow."""
_LANDIS_KOCH = ((0.0, "poor"), (0.2, "slight"), (0.4, "fair"), (0.6, "moderate"), (0.8, "substantial"))


def landis_koch(kappa: float) -> str:
    """The name that Landis and Koch (1977, doi:10.2307/2529310) gave to a kappa; they called their limits arbitrary.

    Example:
        >>> landis_koch(0.29), landis_koch(-0.1), landis_koch(0.9)
        ('fair', 'poor', 'almost perfect')
    """
    if kappa < 0:
        return "poor"
    return next((name for limit, name in _LANDIS_KOCH[1:] if kappa <= limit), "almost perfect")


def describe(report: AuditReport) -> dict[str, Any]:
    """All sentences, as plain JSON values beside those of `AuditReport.to_plain`."""
    return {
        "findings": {judge.name: judge_findings(judge, report) for judge in report.judges},
        "comparison": comparison_findings(report),
        "warnings": warnings_of(report),
    }


def judge_findings(judge: JudgeAudit, report: AuditReport) -> list[str]:
    """What is to be known of one judge, the most telling first."""
    measures = judge.measures
    found = [_agreement(judge)]
    if measures["kappa"].value is not None:
        found.append(
            f"Cohen's kappa {_figures(measures['kappa'])}, called {landis_koch(measures['kappa'].value)!r} by the "
            "convention of Landis and Koch (1977): a name, not a test."
        )
    found += [_as_probability(judge), *_top_grade(judge)]
    tau = measures["kendall"]
    if tau.value is not None:
        found.append(
            f"Order: Kendall's tau-b {_figures(tau)}. Losses that compare documents (RankNet, LambdaLoss) read only "
            "this order; BiXSE also reads how high a relevance is."
        )
    if judge.self_agreement is not None:
        again = judge.self_agreement
        found.append(
            f"Asked twice ({again.pairs} pairs) it gives the same grade in {_percent(again.exact.value)} (kappa "
            f"{_figures(again.kappa)}); its relevances lie {again.relevance_apart:.3f} apart on average."
        )
    if judge.systems is not None:
        ranking = judge.systems
        found.append(
            f"Its labels order the {len(ranking.systems)} runs with Kendall's tau {_figures(ranking.tau)} to the order "
            f"under human labels ({ranking.queries} queries)."
        )
    if judge.pairs < report.human_pairs:
        found.append(
            f"Of {report.human_pairs} human-labelled pairs {judge.without_grade} have no usable grade and "
            f"{judge.human_only} are not in its file: the measures leave them out."
        )
    return found


def comparison_findings(report: AuditReport) -> list[str]:
    """Whether judges differ beyond their intervals: each difference of two judges, counts of more."""
    if len(report.judges) == 2:
        return [
            f"{COMPARED[row.measure]}, {row.first} less {row.second}: {_figures(row.difference)}, "
            f"{'the interval leaves out 0' if row.shown else 'the interval holds 0, no difference is shown'} "
            f"({row.pairs} pairs, paired by query)."
            for row in report.differences
        ]
    counts = []
    for measure, name in COMPARED.items():
        differences = [difference for difference in report.differences if difference.measure == measure]
        if differences:
            counts.append(f"{name} {sum(difference.shown for difference in differences)} of {len(differences)}")
    if not counts:
        return []
    return [
        f"Differences between judges beyond their 95 % intervals: {'; '.join(counts)} (paired by query; not corrected "
        "for the number of comparisons)."
    ]


def warnings_of(report: AuditReport) -> list[str]:
    """What a reader must mind."""
    found = []
    if report.impossible:
        found.append(
            f"{len(report.impossible)} impossible label{'s' if len(report.impossible) > 1 else ''} off the scale: "
            "listed with file and line, left out of every measure, never clipped"
        )
    for judge in report.judges:
        if judge.mapped:
            found.append(
                f"{judge.name}: the relevance of {judge.mapped} pairs is not its grade's place on the judge's scale: a "
                "mapped file, or another scale than stated (--judge-scale); kappa reads the grade, Brier the relevance"
            )
    fewest = min(judge.queries for judge in report.judges)
    if fewest < FEW_QUERIES:
        found.append(f"{fewest} queries only: the intervals are somewhat too narrow")
    return found


def _agreement(judge: JudgeAudit) -> str:
    exact, one, far = (judge.measures[name].value for name in ("exact", "one_off", "further_off"))
    difference = judge.measures["mean_difference"]
    habit = {
        "above": f"on average it grades {difference.value:.2f} higher than people",
        "below": f"on average it grades {-(difference.value or 0.0):.2f} lower than people",
        "across": "that it grades higher or lower than people on average is not shown",
    }[difference.side]
    return (
        f"It gives the human grade in {_percent(exact)} of {judge.pairs} pairs, one level off in {_percent(one)}, "
        f"further off in {_percent(far)}; {habit}."
    )


def _as_probability(judge: JudgeAudit) -> str:
    """What the Brier score says against the constant's."""
    calibration = judge.calibration
    verdict = {
        "below": "lower: the grade says something about how likely people are to find a pair relevant",
        "above": "higher: read as probabilities these grades mislead, although their order may help; fit a map with "
        "`bixse grade calibrate`",
        "across": "no difference shown: read as probabilities the grades may say no more than the mean; try `bixse "
        "grade calibrate`",
    }[judge.against_constant.side]
    low, high = calibration.brier_interval
    return (
        f"As a probability: Brier score {calibration.brier:.3f} [{low:.3f}, {high:.3f}] against "
        f"{calibration.base_rate_brier:.3f} of a constant, {verdict}. Mean gap (ECE) {calibration.ece:.3f}."
    )


def _top_grade(judge: JudgeAudit) -> list[str]:
    top = judge.by_grade[-1]
    if top.relevant is None or top.low is None or top.high is None:
        return [f"It never gives the highest grade {top.grade:g}."]
    return [
        f"Of the {top.pairs} pairs it grades {top.grade:g} people find {_percent(top.relevant)} relevant "
        f"[{_percent(top.low)}, {_percent(top.high)}]; a relevance of 1 calls all of them relevant."
    ]


def _figures(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "not defined"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]".replace("-", "−")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
