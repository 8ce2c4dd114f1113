"""SVG plots: training curves, merge weights, reliability diagram, gains and losses.

The same data give the same bytes. matplotlib is imported on first use, and its settings outside do not change. `label`
maps the name of a system to its name in the plot.
"""

from __future__ import annotations

import base64
import io
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import escape

from bixse.errors import printable
from bixse.files.files import write_atomically
from bixse.rendering.table import format_number
from bixse.rendering.wording import format_difference

if TYPE_CHECKING:
    from bixse.rendering.schema import MergeCurve, QueryChange, TrainingCurve
    from bixse.results import CalibrationReport

DEV_FIELD = "eval_dev_ndcg@10"
"""Field of the training log."""
POINTS_SHOWN = 300
"""Maximum number of points of a line; a longer line shows means of neighbouring points."""
_WIDTH = 4.3  # inches; 310 SVG units, about a phone's width
INK, _GREY = "#22303c", "#5b6873"
SERIES = ["#0b5cad", "#c45a00", "#1a7f4b", "#7a3ea1", "#8a6d00", "#b3261e"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files, in the fonts of the browser
    "svg.hashsalt": "bixse",  # without it ids are random, and the same data give other bytes
    "text.parse_math": False,  # a "$" in a name starts no formula
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe4e8",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True)
class Plot:
    """An SVG plot. A page embeds it as an image, so that its markup stays outside of the page."""

    svg: str
    alt: str
    """Text for screen readers."""

    def __html__(self) -> str:
        """Return the markup that Jinja inserts into a page."""
        data = base64.b64encode(self.svg.encode("utf-8")).decode("ascii")
        return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(self.alt)}">'


def training_plots(curves: Sequence[TrainingCurve], label: Callable[[str], str] = str) -> dict[str, Plot]:
    """Title -> plot of each panel of the training log that has data; a dotted line marks the best checkpoint."""
    panels: dict[str, list[tuple[str, TrainingCurve, str]]] = {}
    for curve in curves:  # losses differ in scale between systems, so loss and logits have a panel per system
        name = label(curve.system)
        logits = [("relevant", curve, "mean_logit_relevant"), ("not relevant", curve, "mean_logit_irrelevant")]
        panels |= {f"Training loss: {name}": [(name, curve, "loss")], f"Mean logit: {name}": logits}
    for title, field in (("nDCG@10 on the development queries", DEV_FIELD), ("Logit bias beta", "logit_bias")):
        panels[title] = [(label(curve.system), curve, field) for curve in curves]
    drawn = {title: _training_plot(title, series) for title, series in panels.items()}
    return {title: plot for title, plot in drawn.items() if plot is not None}


def _training_plot(title: str, series: Sequence[tuple[str, TrainingCurve, str]]) -> Plot | None:
    """The plot of series (label, curve, field); None if no series has a value."""
    drawn = [(name, curve, *_values(curve.logged.get(field, ()))) for name, curve, field in series]
    drawn = [item for item in drawn if len(item[2])]
    if not drawn:
        return None
    with drawing(height=2.6) as figure:
        axes = figure.add_subplot()
        lines = []
        for i, (_, curve, steps, values) in enumerate(drawn):
            style: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": ["-", "--"][i % 2]}
            marker = MARKERS[i % len(MARKERS)] if len(steps) <= 40 else None
            lines += axes.plot(steps, values, linewidth=1.5, marker=marker, markersize=3.5, **style)
            if curve.best_step is not None and (i == 0 or curve is not drawn[i - 1][1]):
                axes.axvline(curve.best_step, color=style["color"], linewidth=1, linestyle=":")
                if curve.best_step in steps and series[0][2] == DEV_FIELD:
                    best = float(values[list(steps).index(curve.best_step)])
                    axes.plot(curve.best_step, best, marker="*", markersize=12, color=style["color"])
        has_best = any(curve.best_step is not None for _, curve, _, _ in drawn)
        axes.set(xlabel="step (dotted: best checkpoint)" if has_best else "step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(drawn) > 1:
            names = [clean(name) for name, *_ in drawn]
            figure.legend(lines, names, loc="outside lower left", ncols=1 if max(map(len, names)) > 16 else 2)
        changes = "; ".join(
            f"{name} from {format_number(float(values[0]))} to {format_number(float(values[-1]))}"
            for name, _, _, values in drawn
        )
        return finished(figure, f"{title} over training steps: {changes}")


def _values(logged: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a logged field, thinned to at most POINTS_SHOWN by means of neighbours."""
    pairs = np.array(logged, dtype=np.float64).reshape(-1, 2)
    if len(pairs) > POINTS_SHOWN:
        pairs = np.array([part.mean(axis=0) for part in np.array_split(pairs, POINTS_SHOWN)])
    return pairs[:, 0], pairs[:, 1]


def merge_plot(curve: MergeCurve, label: Callable[[str], str] = str) -> Plot:
    """The change of dev and guard from the base model (the first point) against the weight of the tuned model."""
    changes = {
        name: [(point.weight, point.scores[name] - score) for point in curve.points]
        for name, score in curve.points[0].scores.items()
    }
    with drawing(height=2.8) as figure:
        axes = figure.add_subplot()
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axvline(curve.weight, color=_GREY, linewidth=1, linestyle=":")
        if curve.guards and curve.tolerance is not None:
            axes.axhline(-curve.tolerance, color="#b3261e", linewidth=1, linestyle="--")
            axes.text(0, -curve.tolerance, f"guard tolerance {curve.tolerance:g}", color="#b3261e", va="top", size=9)
        lines = []
        for i, (name, points) in enumerate(changes.items()):
            style = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)]}
            dashes = "--" if name in curve.guards else "-"
            lines += axes.plot(*zip(*points, strict=True), linestyle=dashes, markersize=4, linewidth=1.5, **style)
            if name not in curve.guards and len(changes) - len(curve.guards) == 1:  # the error is of the mean over dev
                errors = [point.error for point in curve.points]
                axes.errorbar(*zip(*points, strict=True), yerr=errors, fmt="none", capsize=3, color=style["color"])
        axes.set(
            xlabel="weight of the tuned model (dotted: chosen)\nbars: error of the difference from the best",
            ylabel="change of nDCG@10",
            xlim=(-0.03, 1.03),
        )
        names = [f"{clean(name, 24)} ({'guard' if name in curve.guards else 'dev'})" for name in changes]
        figure.legend(lines, names, loc="outside lower left", ncols=1)
        summary = "; ".join(
            f"{name} {format_difference(change)}"
            for name, points in changes.items()
            for weight, change in points
            if weight == curve.weight
        )
        return finished(
            figure, f"{label(curve.system)}, merged with weight {curve.weight:g} of the tuned model: {summary}"
        )


def reliability_diagram(report: CalibrationReport, name: str) -> Plot:
    """Observed against predicted relevance per bin, with intervals, and below it the number of pairs per bin."""
    with drawing(height=4.5) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
        predicted = [b.predicted for b in report.curve]
        top.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
        top.text(0.03, 0.97, "seen more often than predicted", color=_GREY, va="top", transform=top.transAxes, size=9)
        top.text(0.97, 0.03, "seen less often than predicted", color=_GREY, ha="right", transform=top.transAxes, size=9)
        low, high = [b.low for b in report.curve], [b.high for b in report.curve]
        top.vlines(predicted, low, high, color=SERIES[0], linewidth=1.4)
        observed = [b.observed for b in report.curve]
        top.plot(predicted, observed, color=SERIES[0], marker="o", markersize=4.5, linewidth=1)
        top.set(ylabel="observed relevance", xlim=(0, 1), ylim=(0, 1))
        bottom.vlines(predicted, 0, [b.count for b in report.curve], color=SERIES[0], linewidth=7, alpha=0.55)
        bottom.set(xlabel="predicted probability of relevance", ylabel="pairs", ylim=(0, None))
        bottom.locator_params(axis="y", nbins=3)
        figure.align_ylabels([top, bottom])
        return finished(
            figure,
            f"Reliability diagram of {name}: observed relevance against predicted probability in "
            f"{len(report.curve)} bins, {report.pairs} pairs, Brier score {report.brier:.3f}, "
            f"calibration error {report.ece:.3f}",
        )


def gains_and_losses_plot(changes: Sequence[QueryChange], metric: str) -> Plot:
    """The changes of one or more queries, from the largest loss (hatched, below zero) to the largest gain."""
    values = np.sort(np.array([change.change for change in changes]))
    count = len(values)
    gained, lost = int((values > 0).sum()), int((values < 0).sum())
    shown = values if count <= POINTS_SHOWN else values[np.linspace(0, count - 1, POINTS_SHOWN).round().astype(int)]
    edges = np.linspace(0, count, len(shown) + 1)
    with drawing(height=2.7) as figure:
        axes = figure.add_subplot()
        axes.stairs(np.minimum(shown, 0), edges, fill=True, facecolor="#f0b9b5", edgecolor="#b3261e", hatch="////")
        axes.stairs(np.maximum(shown, 0), edges, fill=True, facecolor="#1a7f4b", edgecolor="#1a7f4b")
        axes.axhline(0, color=INK, linewidth=0.8)
        reach = max(1.15 * float(np.abs(values).max()), 0.01)
        axes.set(xlim=(0, count), ylim=(-reach, reach), xlabel="queries, sorted by change")
        axes.set_ylabel(f"change of {clean(metric, 22)}")
        axes.text(0.98, 0.04, f"▼ {lost} worse", color="#b3261e", ha="right", transform=axes.transAxes)
        axes.text(0.02, 0.95, f"▲ {gained} better", color="#1a7f4b", va="top", transform=axes.transAxes)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="x", visible=False)
        return finished(
            figure,
            f"Change of {metric} by query, sorted: {gained} queries gained, {lost} lost, "
            f"{count - gained - lost} stayed the same",
        )


def clean(text: str, length: int = 34) -> str:
    """Shorten text from data to one printable line; accents stay, control and direction marks do not."""
    line = printable(" ".join(unicodedata.normalize("NFC", text).split()))
    return line[: length - 1] + "…" if len(line) > length else line


@contextmanager
def drawing(height: float) -> Iterator[Any]:
    """Yield a figure, `height` in inches, to draw and save inside the block, where only our settings apply."""
    import matplotlib
    from matplotlib.figure import Figure  # pyplot keeps global state

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has the glyph
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the plots
        matplotlib.rcParams.update(_STYLE)
        yield Figure(figsize=(_WIDTH, height), layout="constrained")


def finished(figure: Any, alt: str) -> Plot:
    """Convert a figure to a plot."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})  # the same data give the same bytes
    return Plot(buffer.getvalue().decode("utf-8"), "".join(c if c.isprintable() else " " for c in alt))


def save_plot(plot: Plot, path: Path) -> None:
    """Write a plot as an SVG file."""
    write_atomically(path, plot.svg)
