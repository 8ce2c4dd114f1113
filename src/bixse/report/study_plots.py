"""Plots of a study as inline SVG: a metric over what was varied, or a row per system, with intervals."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from bixse.report.plots import INK, MARKERS, SERIES, clean, drawing, to_svg
from bixse.report.table import format_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Point(NamedTuple):
    """A mean with its interval."""

    x: float
    """Place on the horizontal axis."""
    value: float
    """The mean."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end."""


def line_plot(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[Point]],
    x_scale: str = "linear",
    y_log: bool = False,
) -> str:
    """Lines with a bar for each point's interval; points of different lines stand a little apart.

    Args:
        title: for screen readers.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        series: name -> points, at least one.
        x_scale: "linear" or "log"; a logarithmic axis shows every value as a tick.
        y_log: logarithmic vertical axis; values below 1 are drawn at 1.
    """
    with drawing(height=3.1) as figure:
        axes = figure.add_subplot()
        places = sorted({point.x for points in series.values() for point in points})
        step = min((b - a for a, b in itertools.pairwise(places)), default=1.0)
        for number, (name, points) in enumerate(series.items()):
            ordered = sorted(points)
            shift = (number - (len(series) - 1) / 2) * 0.08
            xs = [p.x * (1 + shift) if x_scale == "log" else p.x + shift * step for p in ordered]
            values = [max(p.value, 1.0) if y_log else p.value for p in ordered]
            style = {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(xs, values, linewidth=1.5, markersize=4.5, label=clean(name), **style)
            if any(p.high > p.low for p in ordered):
                axes.vlines(xs, [p.low for p in ordered], [p.high for p in ordered], color=style["color"],
                            linewidth=1.2, alpha=0.6)  # fmt: skip
        if x_scale == "log":
            axes.set_xscale("log", base=2)
        if y_log:
            axes.set_yscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
        axes.set(xlabel=x_label, ylabel=y_label)
        if len(series) > 1:
            figure.legend(loc="outside lower left", ncols=2)
        said = "; ".join(
            f"{name}: " + ", ".join(f"{point.x:g} {format_number(point.value)}" for point in sorted(points))
            for name, points in series.items()
        )
        return to_svg(figure, f"{title}, {y_label} against {x_label}: {said}")


def row_plot(title: str, label: str, points: Sequence[tuple[str, Point]]) -> str:
    """A row per system: its mean as a dot, its interval as a line, the figure beside it.

    Args:
        title: for screen readers.
        label: of the horizontal axis.
        points: name and figures, in the order they are shown from the top.
    """
    with drawing(height=0.8 + 0.34 * len(points)) as figure:
        axes = figure.add_subplot()
        for row, (_, point) in enumerate(points):
            axes.hlines(row, point.low, point.high, color=SERIES[0], linewidth=1.8, alpha=0.6)
            axes.plot(point.value, row, color=SERIES[0], marker="o", markersize=5)
        axes.set_yticks(range(len(points)), [clean(name, 22) for name, _ in points], color=INK)
        axes.set(ylim=(len(points) - 0.5, -0.5), xlabel=label)
        axes.locator_params(axis="x", nbins=5)
        said = "; ".join(f"{name} {format_number(point.value)}" for name, point in points)
        return to_svg(figure, f"{title}, {label}: {said}")
