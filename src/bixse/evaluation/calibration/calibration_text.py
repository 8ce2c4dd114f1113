"""What `bixse calibrate` found, as text: figures, reliability, thresholds, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.report.table import format_interval, format_number, format_table

if TYPE_CHECKING:
    from bixse.evaluation.calibration.calibrate import CalibrateResult
    from bixse.evaluation.calibration.thresholds import OperatingPoint
    from bixse.results import CalibrationReport


def calibration_text(result: CalibrateResult, prior: float | None) -> str:
    """Tables and lines for a terminal; `prior` is the one that was asked for."""
    after = result.check.calibrated
    weighted = f", weighted to a mean relevance of {prior:g}" if prior is not None else ""
    parts = [result.pairs] if result.negatives else []
    parts += [
        format_table(
            [[name, *_figures(report)] for name, report in result.check.reports.items()],
            ["held-out half", "Brier", "95 % interval", "ECE", "95 % interval", "Brier of a constant"],
        ),
        f"reliability of the calibrated probabilities on {after.pairs} pairs of {after.queries} held-out "
        f"queries{weighted}",
        format_table(
            [[b.predicted, b.observed, format_interval(b.low, b.high), b.count] for b in after.curve],
            ["predicted", "observed", "95 % interval", "pairs"],
        ),
    ]
    if result.points:
        parts.append("\n".join(_point_line(point) for point in result.points))
    parts += [_kept(result), f"precision: {result.precision}"]
    return "\n\n".join(parts)


def _kept(result: CalibrateResult) -> str:
    saved = result.artifacts.get("model")
    if saved is None:
        return "not kept, nothing is changed: on held-out queries the calibration does not lower the Brier score"
    if not result.check.helps:
        return (
            "the calibration is not kept, it does not lower the Brier score on held-out queries; thresholds of the "
            f"probabilities as they were are saved: {saved}"
        )
    share = result.head.prior if result.head is not None else None
    meant = f"\nthe probabilities are for documents of which a share of {share:.4g} is relevant" if share else ""
    return f"saved: {saved}{meant}"


def _figures(report: CalibrationReport) -> list[str]:
    """Entries of a row; where few are relevant, Brier scores are small and need more digits."""
    digits = 3 if report.base_rate_brier >= 0.01 else 6
    return [
        format_number(report.brier, digits),
        format_interval(*report.brier_interval, digits=digits),
        format_number(report.ece, digits),
        format_interval(*report.ece_interval, digits=digits),
        format_number(report.base_rate_brier, digits),
    ]


def _point_line(point: OperatingPoint) -> str:
    found = (
        f"precision {point.precision:.3f} {format_interval(*point.interval)}, recall {point.recall:.3f}, "
        f"{point.pairs} pairs of {point.queries} queries"
    )
    if point.is_reached:
        return f"precision {point.wanted:g}: from probability {point.threshold:.4g} on ({found})"
    return f"precision {point.wanted:g}: not reachable; best is probability {point.threshold:.4g} ({found})"


def threshold_warnings(result: CalibrateResult) -> list[str]:
    """Thresholds that held-out queries leave in doubt."""
    return [
        f"precision {point.wanted:g}: the interval reaches down to {point.interval[0]:.3f}; more graded queries narrow "
        "it, a higher --at-precision stays on the safe side"
        for point in result.points
        if point.is_reached and point.interval[0] < point.wanted
    ]
