"""Plots as inline SVG: training curves, reliability diagram, gains and losses, differences with intervals.

Every function returns the text of one `<svg>` element that goes into an HTML page as it is: no id, script or
style rule that could reach beyond it, text kept as text, a label for screen readers, and the same bytes for the
same data. Pictures are drawn narrow (a phone's width) and scale with the page. matplotlib is imported on first
use and its settings outside are left alone.
"""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from bixse.errors import printable
from bixse.report.table import format_difference, format_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bixse.report.schema import (
        Calibration,
        Comparison,
        MergeCurve,
        QueryChange,
        TrainingCurve,
        TrainingPoint,
        Verdict,
    )

POINTS_SHOWN = 300
"""Most points of a line; a longer one shows means of neighbouring points."""
LABEL_LENGTH = 34
"""Longest text taken from data, in characters; the rest is cut."""

_WIDTH = 4.3  # inches; 310 SVG units, about a phone's width
INK, _GREY = "#22303c", "#5b6873"
SERIES = ["#0b5cad", "#c45a00", "#1a7f4b", "#7a3ea1", "#8a6d00", "#b3261e"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
_VERDICT_STYLE: dict[Verdict, tuple[str, str]] = {
    "better": ("#1a7f4b", "^"),
    "no difference": (_GREY, "o"),
    "worse": ("#b3261e", "v"),
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bixse",
    "text.parse_math": False,
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


def training_plots(curves: Sequence[TrainingCurve], label: Callable[[str], str] = str) -> dict[str, str]:
    """The panels of the training log that have data, title -> SVG.

    Losses differ in scale from system to system, so loss and logits get a panel a system; beta and nDCG on the
    development queries are drawn together. The step of the kept checkpoint is a dashed line.

    Args:
        curves: one a training run.
        label: from a system's name to what the picture shows.

    Example:
        >>> from bixse.report.schema import TrainingCurve, TrainingPoint
        >>> curve = TrainingCurve(system="tuned", points=[TrainingPoint(step=s, loss=9.0 / s) for s in (1, 2, 3)])
        >>> list(training_plots([curve]))
        ['Training loss: tuned']
    """
    plots: dict[str, str] = {}
    for curve in curves:
        plots[f"Training loss: {label(curve.system)}"] = _line_plot(
            "Training loss", [(label(curve.system), curve, "loss")]
        )
        plots[f"Mean logit: {label(curve.system)}"] = _line_plot(
            "Mean logit",
            [("relevant", curve, "mean_logit_relevant"), ("not relevant", curve, "mean_logit_irrelevant")],
        )
    for title, name in (("nDCG@10 on the development queries", "dev_ndcg"), ("Logit bias beta", "logit_bias")):
        plots[title] = _line_plot(title, [(label(curve.system), curve, name) for curve in curves])
    return {title: svg for title, svg in plots.items() if svg}


def merge_plot(curve: MergeCurve, label: Callable[[str], str] = str) -> str:
    """Difference of dev and guard from the base model against the weight of the tuned model.

    Args:
        curve: at least one point, the base model among them.
        label: from a system's name to what the picture shows.
    """
    names = list(curve.points[0].scores)
    with drawing(height=2.8) as figure:
        axes = figure.add_subplot()
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axvline(curve.weight, color=_GREY, linewidth=1, linestyle=":")
        lines = []
        for i, name in enumerate(names):
            values = [point.scores[name] - curve.points[0].scores[name] for point in curve.points]
            lines += axes.plot(
                [point.weight for point in curve.points],
                values,
                color=SERIES[i % len(SERIES)],
                marker=MARKERS[i % len(MARKERS)],
                linestyle="--" if name in curve.guards else "-",
                markersize=4,
                linewidth=1.5,
            )
        axes.set(xlabel="weight of the tuned model (dotted: kept)", ylabel="change of nDCG@10", xlim=(-0.03, 1.03))
        words = [f"{clean(name, 24)} ({'guard' if name in curve.guards else 'dev'})" for name in names]
        figure.legend(lines, words, loc="outside lower left", ncols=1)
        said = "; ".join(
            f"{name} {format_difference(point.scores[name] - curve.points[0].scores[name])}"
            for point in curve.points
            if point.weight == curve.weight
            for name in names
        )
        return to_svg(figure, f"{label(curve.system)}, merged with weight {curve.weight:g} of the tuned model: {said}")


def reliability_diagram(calibration: Calibration) -> str:
    """Observed against predicted relevance by bin, with intervals, and the number of pairs in each bin below.

    Points on the diagonal mean that a probability of 0.7 is right 70 % of the time.
    """
    with drawing(height=4.5) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
        predicted = np.array([b.predicted for b in calibration.curve])
        observed = np.array([b.observed for b in calibration.curve])
        counts = np.array([b.count for b in calibration.curve])
        low = np.array([b.observed if b.low is None else b.low for b in calibration.curve])
        high = np.array([b.observed if b.high is None else b.high for b in calibration.curve])
        top.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
        top.text(0.03, 0.97, "seen more often than predicted", color=_GREY, va="top", transform=top.transAxes, size=9)
        top.text(0.97, 0.03, "seen less often than predicted", color=_GREY, ha="right", transform=top.transAxes, size=9)
        top.vlines(predicted, low, high, color=SERIES[0], linewidth=1.4)
        top.plot(predicted, observed, color=SERIES[0], marker="o", markersize=4.5, linewidth=1)
        top.set(ylabel="observed relevance", xlim=(0, 1), ylim=(0, 1))
        bottom.vlines(predicted, 0, counts, color=SERIES[0], linewidth=7, alpha=0.55)
        bottom.set(xlabel="predicted probability of relevance", ylabel="pairs", ylim=(0, None))
        bottom.locator_params(axis="y", nbins=3)
        figure.align_ylabels([top, bottom])
        return to_svg(
            figure,
            f"Reliability diagram of {calibration.name}: observed relevance against predicted probability in "
            f"{len(calibration.curve)} bins, {calibration.pairs} pairs, Brier score {calibration.brier:.3f}, "
            f"calibration error {calibration.ece:.3f}",
        )


def gains_and_losses_plot(changes: Sequence[QueryChange], metric: str) -> str:
    """Every query's change, sorted from the largest loss to the largest gain.

    Losses hang below the zero line and are hatched; gains stand above it.

    Args:
        changes: at least one.
        metric: name of the metric, for the axis.
    """
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
        return to_svg(
            figure,
            f"Change of {metric} by query, sorted: {gained} queries gained, {lost} lost, "
            f"{count - gained - lost} stayed the same",
        )


def forest_plot(comparisons: Sequence[Comparison], label: Callable[[str], str] = str) -> str:
    """Mean differences with their intervals around the zero line, one row each, sign and shape by verdict.

    Args:
        comparisons: at least one, all of one metric.
        label: from a system's name to what the picture shows.
    """
    with drawing(height=0.75 + 0.5 * len(comparisons)) as figure:
        axes = figure.add_subplot()
        reach = 1.1 * max(0.001, *(abs(end) for c in comparisons for end in (c.low, c.high, c.mean)))
        for row, comparison in enumerate(comparisons):
            colour, marker = _VERDICT_STYLE[comparison.verdict]
            axes.hlines(row, comparison.low, comparison.high, color=colour, linewidth=2)
            axes.vlines([comparison.low, comparison.high], row - 0.1, row + 0.1, color=colour, linewidth=2)
            axes.plot(comparison.mean, row, color=colour, marker=marker, markersize=7)
            pair = f"{clean(label(comparison.system), 20)} − {clean(label(comparison.baseline), 20)}"
            above = axes.get_yaxis_transform()
            text = {"transform": above, "size": 9.5, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
            axes.text(0.01, row - 0.28, pair, **text)
            axes.text(0.99, row - 0.28, format_difference(comparison.mean), ha="right", color=colour, **text)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlim=(-reach, reach), ylim=(len(comparisons) - 0.6, -0.72), yticks=[])
        axes.set_xlabel("← worse | better →")
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=6)
        said = "; ".join(
            f"{label(c.system)} against {label(c.baseline)} {format_difference(c.mean)}, {c.verdict}"
            for c in comparisons
        )
        return to_svg(figure, f"Differences of {comparisons[0].metric} with intervals: {said}")


def _line_plot(title: str, series: Sequence[tuple[str, TrainingCurve, str]]) -> str:
    """Lines of a logged value over steps, each (label, curve, field); an empty text when none has a value."""
    drawn = [(name, curve, field, _values(curve.points, field)) for name, curve, field in series]
    drawn = [item for item in drawn if len(item[3][0])]
    if not drawn:
        return ""
    with drawing(height=2.6) as figure:
        axes = figure.add_subplot()
        lines = []
        for i, (_, curve, _, (steps, values)) in enumerate(drawn):
            style: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "linestyle": ["-", "--"][i % 2]}
            marker = MARKERS[i % len(MARKERS)] if len(steps) <= 40 else None
            lines += axes.plot(steps, values, linewidth=1.5, marker=marker, markersize=3.5, **style)
            if curve.best_step is not None and (i == 0 or curve is not drawn[i - 1][1]):
                axes.axvline(curve.best_step, color=style["color"], linewidth=1, linestyle=":")
                if curve.best_step in steps and drawn[0][2] == "dev_ndcg":
                    best = float(values[list(steps).index(curve.best_step)])
                    axes.plot(curve.best_step, best, marker="*", markersize=12, color=style["color"])
        axes.set(xlabel=_step_label([curve for _, curve, _, _ in drawn]))
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(drawn) > 1:
            names = [clean(name) for name, _, _, _ in drawn]
            figure.legend(lines, names, loc="outside lower left", ncols=1 if max(map(len, names)) > 16 else 2)
        said = "; ".join(
            f"{name} from {format_number(float(values[0]))} to {format_number(float(values[-1]))}"
            for name, _, _, (_, values) in drawn
        )
        return to_svg(figure, f"{title} over training steps: {said}")


def _step_label(curves: Sequence[TrainingCurve]) -> str:
    kept = any(curve.best_step is not None for curve in curves)
    return "step (dotted: checkpoint kept)" if kept else "step"


def _values(points: Sequence[TrainingPoint], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values where the field was logged, thinned to at most POINTS_SHOWN by means of neighbours."""
    known = [(point.step, getattr(point, field)) for point in points if getattr(point, field) is not None]
    steps = np.array([step for step, _ in known], dtype=np.float64)
    values = np.array([value for _, value in known], dtype=np.float64)
    if len(steps) <= POINTS_SHOWN:
        return steps, values
    parts = zip(np.array_split(steps, POINTS_SHOWN), np.array_split(values, POINTS_SHOWN), strict=True)
    means = np.array([(step.mean(), value.mean()) for step, value in parts])
    return means[:, 0], means[:, 1]


def clean(text: str, length: int = LABEL_LENGTH) -> str:
    """Text from data as one short printable line; accents stay, control and direction marks do not."""
    line = printable(" ".join(unicodedata.normalize("NFC", text).split()))
    if len(line) > length:
        line = line[: length - 1] + "…"
    # matplotlib before 3.10 leaves a label that begins with an underscore out of the legend
    return "\N{ZERO WIDTH SPACE}" + line if line.startswith("_") else line


@contextmanager
def drawing(height: float) -> Iterator[Any]:
    """A figure under our settings only; height in inches. Draw and save it inside the block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has the glyph
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Figure(figsize=(_WIDTH, height), layout="constrained")


def to_svg(figure: Any, label: str) -> str:
    """The figure as one `<svg>` element for inline use.

    Namespaces, metadata, the global style rule and ids nobody refers to are dropped; the ids left get a prefix
    from the content so that two plots on a page do not meet.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    prefix = "p" + hashlib.sha256(buffer.getvalue() + label.encode()).hexdigest()[:10] + "-"
    root = ElementTree.fromstring(buffer.getvalue())
    used: set[str] = set()
    for parent in root.iter():
        for child in [c for c in parent if _local(c.tag) in ("metadata", "style")]:
            parent.remove(child)
        parent.tag = _local(parent.tag)
        parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
        for name, value in parent.attrib.items():
            used.update(re.findall(r"url\(#([^)]+)\)", value))
            if name == "href":
                used.add(value.removeprefix("#"))
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id" and value not in used:
                del element.attrib["id"]
            elif name == "id":
                element.attrib["id"] = prefix + value
            elif name == "href":
                element.attrib["href"] = "#" + prefix + value.removeprefix("#")
            else:
                element.attrib[name] = re.sub(r"url\(#", f"url(#{prefix}", value)
    view_box = root.attrib["viewBox"]
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": view_box,
        "width": "100%",
        "role": "img",
        "aria-label": "".join(c if c.isprintable() else " " for c in label),
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }
    return ElementTree.tostring(root, encoding="unicode").strip()


def _local(name: str) -> str:
    """A tag or attribute name without its namespace."""
    return name.rpartition("}")[2]
