"""`bixse quickstart`: the main job on the embedded default."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.verb import FINISHED_BEFORE, CommandResult, ComputingOptions, Folder, Verb
from bixse.lab.lab_config import QuickstartConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.report.schema import ReportData


class QuickstartOptions(ComputingOptions):
    """Options of `bixse quickstart`."""

    out: Folder = Path("runs/quickstart")
    """Folder for models and report."""


def run(settings: QuickstartConfig, options: QuickstartOptions) -> CommandResult:
    """Run it and print the table, the verdict, the report's path and what to do next."""
    from bixse.lab.quickstart import quickstart
    from bixse.progress import progress_bar
    from bixse.report.table import format_table

    result = quickstart(settings, options.out, _say, progress_bar)
    report = result.report
    baselines = [name for name in report.baselines if report.comparison("bixse", name) is not None]
    rows: list[list[str | float]] = [
        [s.label, *(s.metrics[name] for name in report.metrics), *_differences(report, s.name, baselines)]
        for s in report.systems
    ]
    table = format_table(rows, ["system", *report.metrics, *(f"vs {report.label(name)}" for name in baselines)])
    lines = [*result.verdicts, "", table, ""]
    lines += [f"probabilities, {name}: Brier {c.brier:.3f} (a constant: {c.base_rate_brier:.3f}), ECE {c.ece:.3f}"
              for name, c in report.calibrations.items() if name.startswith("BiXSE")]  # fmt: skip
    lines += ["", f"report: {result.artifacts['report']}", "to go on:", *(f"  {line}" for line in report.commands)]
    metrics = {
        "systems": {system.name: system.metrics for system in report.systems},
        **report.model_dump(mode="json", include={"comparisons", "calibrations"}),
        "verdicts": result.verdicts,
    }
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    return CommandResult("\n".join(lines), metrics, result.artifacts, warnings)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _differences(report: ReportData, system: str, baselines: Sequence[str]) -> list[str]:
    from bixse.report.table import format_difference

    found = [report.comparison(system, baseline) for baseline in baselines]
    return [format_difference(c.difference.mean) if c is not None else "" for c in found]


VERB = Verb(QuickstartConfig, QuickstartOptions, run)
