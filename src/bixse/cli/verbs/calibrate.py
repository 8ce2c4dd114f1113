"""`bixse calibrate`: calibrated probabilities of relevance, and thresholds for a precision."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.cli.verb import FINISHED_BEFORE, CommandResult, ComputingOptions, Output, Verb
from bixse.progress import progress_bar
from bixse.rendering.table import Cell, format_number, format_table
from bixse.rendering.wording import format_interval, format_threshold

if TYPE_CHECKING:
    from bixse.calibration.calibrate_files import CalibrateResult
    from bixse.results import CalibrationReport


def run(settings: CalibrateSettings, options: ComputingOptions) -> CommandResult:
    """Fit on half of the queries and measure on the other half. Keep the calibration only if it helps there."""
    from bixse.calibration.calibrate_files import calibrate_into

    result = calibrate_into(settings, options.out, progress_bar)
    figures = {
        name: {"brier": r.brier, "brier_interval": r.brier_interval, "ece": r.ece, "ece_interval": r.ece_interval,
               "constant": r.base_rate_brier}
        for name, r in result.check.reports.items()
    }  # fmt: skip
    metrics = {
        **figures,
        "saved": result.saved,
        "prior": result.head.prior if result.head is not None else None,
        "reliability": [asdict(point) for point in result.check.calibrated.curve],
        "thresholds": [asdict(point) for point in result.points],
        "cuts": [asdict(cut) for cut in result.cuts],
        "auc": None if result.check.auc is None else result.check.auc._asdict(),
        "precision": result.precision,
    }
    text = _text(result, settings)
    if result.refused:
        why = f"refused, nothing is written: {result.check.finding}; fix: {result.check.fix}"
        return CommandResult(text, metrics, warnings=result.warnings(), errors=[why], exit_code=1)
    warnings = [FINISHED_BEFORE] if result.reused else result.warnings()
    return CommandResult(text, metrics, result.artifacts, warnings)


def _text(result: CalibrateResult, settings: CalibrateSettings) -> str:
    after, of_scores = result.check.calibrated, settings.scores is not None
    weighted = ", weighted to the corpus" if settings.collection is not None else ""
    weighted += f", weighted to a mean relevance of {settings.prior:g}" if settings.prior is not None else ""
    figures = [[name, *_figures(report)] for name, report in result.check.reports.items()]
    curve: list[list[Cell]] = [[b.predicted, b.observed, format_interval(b.low, b.high), b.count] for b in after.curve]
    held_out = f"{after.pairs} pairs of {after.queries} held-out queries"
    cuts = [[f"{cut.probability:.4g}", f"{cut.cosine:.4f}", f"{cut.precision or '–'}"] for cut in result.cuts]
    table = format_table(cuts, ["probability", f"cut at {'score' if of_scores else 'cosine'}", "of precision"])
    thresholds = ["\n".join(format_threshold(point, result.head if of_scores else None) for point in result.points)]
    thresholds += [table] if cuts else []
    parts = [
        *(thresholds if of_scores else []),  # first, as the cut is what scores are calibrated for
        result.pairs if settings.collection is not None else "",
        "" if result.check.auc is None else f"{result.check.auc} of one threshold for all queries",
        format_table(figures, ["held-out half", "Brier", "95 % interval", "ECE", "95 % interval", "constant's Brier"]),
        f"reliability of the calibrated probabilities on {held_out}{weighted}",
        format_table(curve, ["predicted", "observed", "95 % interval", "pairs"]),
        *([] if of_scores else thresholds),
        _saved_line(result),
        f"precision: {result.precision}" if result.precision else "",
    ]
    return "\n\n".join(filter(None, parts))


def _saved_line(result: CalibrateResult) -> str:
    saved, finding = result.artifacts.get("model", result.artifacts.get("head")), result.check.finding
    if saved is None:
        return f"not kept, nothing is changed: {finding}"
    if not result.saved:
        return f"not kept: {finding}; thresholds of the unchanged probabilities are saved: {saved}"
    share = result.head.prior if result.head is not None else None
    meant = f"\nthe probabilities are for documents of which a share of {share:.4g} is relevant" if share else ""
    return f"saved: {saved}{meant}" + f"\n{finding}" * bool(result.check.doubt)


def _figures(report: CalibrationReport) -> list[str]:
    digits = 3 if report.base_rate_brier >= 0.01 else 6  # if few pairs are relevant, Brier scores are small
    brier, ece, constant = (format_number(v, digits) for v in (report.brier, report.ece, report.base_rate_brier))
    intervals = (report.brier_interval, report.brier_few), (report.ece_interval, report.ece_few)
    ends = [format_interval(*interval, digits=digits) or few for interval, few in intervals]
    return [brier, ends[0], ece, ends[1], constant]


OUT = "Folder for the calibrated model and a reliability diagram. Without it, the head in the model folder is replaced."
VERB = Verb(
    CalibrateSettings,
    ComputingOptions,
    run,
    out=Output(OUT),
    report=True,
    first=("model", "collection", "split", "pairs", "scores", "scored_by", "at_precision", "prior"),
)
