"""`bixse grade audit`: measure judges against human labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult
from bixse.cli.verb import Folder, Options, Verb
from bixse.grading.audit.audit_judges import AuditSettings

if TYPE_CHECKING:
    from bixse.grading.audit.audit_report import AuditReport


class AuditOptions(Options):
    """Where the files go."""

    out: Folder = Path("runs/audit")
    """Write audit.json, audit.html and run.json here."""


def run(settings: AuditSettings, options: AuditOptions) -> CommandResult:
    """Read, join, measure, write the page."""
    from bixse.grading.audit.audit_judges import audit_judges

    result = audit_judges(settings, options.out)
    text = f"{_text(result.report)}\n\npage: {result.artifacts['page']}"
    code = 3 if result.report.impossible else 0
    return CommandResult(text, result.report.figures(), result.artifacts, result.warnings, exit_code=code)


def _text(report: AuditReport) -> str:
    """The table of judges, how many differ, and what is impossible."""
    from bixse.grading.audit.labels import impossible_lines
    from bixse.report.table import format_interval, format_number, format_table

    rows: list[list[str | int | float | None]] = []
    for judge in report.judges:
        values = {name: format_number(estimate.value) for name, estimate in judge.measures.items()}
        kappa, calibration = judge.measures["kappa"], judge.calibration
        top = judge.by_grade[-1]
        rows.append(
            [
                judge.name,
                judge.pairs,
                values["exact"],
                f"{values['kappa']} {format_interval(kappa.low, kappa.high)}",
                values["quadratic_kappa"],
                values["binary_kappa"],
                values["kendall"],
                f"{format_number(calibration.brier)} ({format_number(calibration.base_rate_brier)})",
                calibration.ece,
                format_number(top.relevant, 2),
            ]
        )
    head = ["judge", "pairs", "same", "kappa", "quadratic", "binary", "tau-b", "Brier (constant)", "ECE",
            "relevant at top grade"]  # fmt: skip
    low, high = report.scale
    lines = [
        f"{report.human_pairs} human labels of {report.human_queries} queries on {low:g} to {high:g}, relevant from "
        f"{report.relevant_from:g}; intervals 95 % over queries",
        "",
        format_table(rows, head),
    ]
    shown = report.shown_differences()
    if shown:
        counts = "; ".join(f"{name} {number} of {total}" for name, (number, total) in shown.items())
        lines += [
            "",
            f"differences between judges beyond their 95 % intervals: {counts} (paired by query; not corrected for "
            "the number of comparisons)",
        ]
    return "\n".join([*lines, *impossible_lines(report.impossible)])


VERB = Verb(AuditSettings, AuditOptions, run)
