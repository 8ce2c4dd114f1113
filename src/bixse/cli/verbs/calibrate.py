"""`bixse calibrate`: calibrated probabilities of relevance, and thresholds for a precision."""

from __future__ import annotations

from dataclasses import asdict

from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.cli.verb import FINISHED_BEFORE, CommandResult, ComputingOptions, Folder, Verb


class CalibrateOptions(ComputingOptions):
    """Options of `bixse calibrate`."""

    out: Folder | None = None
    """Save the calibrated model and a reliability diagram here; without it the head inside the model folder is
    replaced."""


def run(settings: CalibrateSettings, options: CalibrateOptions) -> CommandResult:
    """Fit on half of the queries and measure on the other half. Keep the calibration only if it helps there."""
    from bixse.calibration.calibrate import calibrate, calibration_text, calibration_warnings
    from bixse.progress import progress_bar

    result = calibrate(settings, options.out, progress_bar)
    figures = {
        name: {"brier": r.brier, "brier_interval": r.brier_interval, "ece": r.ece, "ece_interval": r.ece_interval,
               "constant": r.base_rate_brier}
        for name, r in result.check.reports.items()
    }  # fmt: skip
    metrics = {
        **figures,
        "kept": result.kept,
        "prior": result.head.prior if result.head is not None else None,
        "reliability": [asdict(point) for point in result.check.calibrated.curve],
        "thresholds": [asdict(point) for point in result.points],
        "cuts": [asdict(cut) for cut in result.cuts],
        "negatives": result.negatives,
        "precision": result.precision,
    }
    text = calibration_text(result, settings.prior)
    if result.refused:
        why = (
            f"refused, nothing is written: {result.check.finding}; fix: grade more pairs, or save the calibration all "
            "the same with --anyway"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    warnings = [FINISHED_BEFORE] if result.reused else calibration_warnings(result)
    return CommandResult(text, metrics, result.artifacts, warnings)


VERB = Verb(CalibrateSettings, CalibrateOptions, run)
