"""`bixse grade calibrate`: map a judge's grades to people's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bixse.cli.verb import CommandResult, Folder, Options, Verb
from bixse.judging.audit.audit_settings import GradeMapSettings


class MapOptions(Options):
    """The folder of the files."""

    out: Folder = Path("runs/grade-map")
    """Write map.json and run.json here."""


def run(settings: GradeMapSettings, options: MapOptions) -> CommandResult:
    """Fit, measure on held-out queries; keep the map only if it helps there."""
    from bixse.judging.audit.calibrate_grades import calibrate_grades

    result = calibrate_grades(settings, options.out)
    text = result.text()
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


VERB = Verb(GradeMapSettings, MapOptions, run)
