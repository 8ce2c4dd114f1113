"""`bixse grade calibrate`: map a judge's grades to what people would say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult
from bixse.cli.verb import Folder, Options, Verb
from bixse.grading.audit.calibrate_grades import GradeMapSettings

if TYPE_CHECKING:
    from bixse.grading.audit.calibrate_grades import GradeMapResult


class MapOptions(Options):
    """Where the files go."""

    out: Folder = Path("runs/grade-map")
    """Write map.json and run.json here."""


def run(settings: GradeMapSettings, options: MapOptions) -> CommandResult:
    """Fit, measure on held-out queries; keep the map only if it helps there."""
    from bixse.grading.audit.calibrate_grades import calibrate_grades
    from bixse.grading.audit.labels import impossible_lines

    result = calibrate_grades(settings, options.out)
    text = "\n".join([_text(result), *impossible_lines(result.impossible)])
    metrics: dict[str, Any] = {**result.map.model_dump()["held_out"], "labels": result.map.labels, "kept": result.kept}
    if not result.kept:
        why = (
            "refused, nothing is written: on held-out queries the map does not help (its Brier score is not below "
            "that of the grades as they are and that of a constant); fix: train on the grades as they are, label "
            "more pairs, or write it anyway with --force"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    warnings = [] if result.map.helps else ["forced: on held-out queries this map does not help"]
    written = "\n".join(f"{name}: {path}" for name, path in result.artifacts.items())
    code = 3 if result.impossible else 0
    return CommandResult(f"{text}\n\n{written}", metrics, result.artifacts, warnings, exit_code=code)


def _text(result: GradeMapResult) -> str:
    """The held-out figures, and what they say."""
    from bixse.report.table import format_difference, format_interval, format_table

    fitted, figures = result.map, result.map.held_out
    assert figures is not None, "fitted maps carry them"
    rows: list[list[str | float | None]] = [
        ["as graded", figures.brier_before, figures.ece_before],
        ["mapped", figures.brier_after, figures.ece_after],
        ["a constant", figures.brier_constant, None],
    ]
    change = figures.interval
    said = {
        "below": "lower beyond the interval",
        "across": "the interval holds 0: no difference is shown",
        "above": "higher beyond the interval",
    }[change.side]
    shown = [0.0, 1 / 3, 2 / 3, 1.0]
    points = zip(shown, fitted.apply(shown).tolist(), strict=True)
    return "\n".join(
        [
            f"{fitted.judge}: {fitted.kind} map fitted on {fitted.labels} human labels of {fitted.queries} queries, "
            f"measured on {figures.pairs} pairs, each by the map of other queries",
            "",
            format_table(rows, ["held-out queries", "Brier", "ECE"]),
            "",
            f"change of the Brier score {format_difference(change.value or 0.0)} "
            f"{format_interval(change.low, change.high, signed=True)}: {said}",
            "mapped: " + ", ".join(f"{z:.2f} to {p:.2f}" for z, p in points),
        ]
    )


VERB = Verb(GradeMapSettings, MapOptions, run)
