"""The outcome of a study: means, intervals and tested claims, as data, tables, files and a plot."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import holm
from bixse.files.files import write_atomically
from bixse.lab.experiments import ArmLabels, RunResult, show
from bixse.lab.studies.measures import NOT_MERGED
from bixse.lab.studies.study import ClaimResult, PerSeed, Study, above, interval_of, key_of, measure
from bixse.rendering.plots import INK, MARKERS, SERIES, Plot, clean, drawing, finished, save_plot
from bixse.rendering.table import Cell, format_markdown, format_number, format_table
from bixse.rendering.wording import format_csv, format_difference, format_interval, format_p_value

if TYPE_CHECKING:
    from bixse.lab.lab_config import StudyConfig
    from bixse.results import Difference


class ArmRow(NamedTuple):
    """One arm of a study over its seeds, with the columns of its row in a file."""

    labels: ArmLabels
    """The arm's labels, and `measured_on` for a collection without a claim or a model before merging."""
    figures: Mapping[str, Any]
    """Column -> number or None. `low` and `high` are the ends of an interval over seeds and queries."""


@dataclass(frozen=True)
class StudyOutcome:
    """All results of a study, as plain data."""

    study: Study
    config: StudyConfig
    results: Sequence[RunResult]
    summary: Sequence[ArmRow]
    claims: Sequence[ClaimResult]
    command: str = ""
    apart: Sequence[ArmRow] = ()

    @property
    def failed(self) -> list[RunResult]:
        return [result for result in self.results if result.status != "finished"]

    def verdict(self) -> str:
        if not self.claims:
            return "No claim is tested: the table is the finding."
        count = {word: sum(claim.finding == word for claim in self.claims) for word in
                 ("reproduced", "not shown", "cannot tell", "contradicted", "no figures")}  # fmt: skip
        parts = [f"{number} {word}" for word, number in count.items() if number]
        return f"Of {len(self.claims)} claims: {', '.join(parts)}."

    def about(self) -> list[str]:
        config = self.config
        queries = next((len(each.per_query) for each in self.results if each.per_query), 0)
        names = [folder.name for folder in config.data.test] or [config.data.collection.rstrip("/").split("/")[-1]]
        seeds = f"{len(config.seeds)} seed{'s' if len(config.seeds) != 1 else ''}"
        lines = [f"Encoder {config.model}, collection {', '.join(names)}, {queries} test queries, {seeds}."]
        computed = sorted({each.precision for each in self.results if each.precision})
        if computed:
            lines.append(f"Computed in {' and '.join(computed)}.")
        if config.note:
            lines.append(config.note)
        return lines

    def tables(self) -> dict[str, list[dict[str, Cell]]]:
        """Return title -> rows (column -> entry) for each table that has rows."""
        claims: list[dict[str, Cell]] = [
            {
                "claim": result.claim,
                **_difference_entries("difference", _difference_columns(result.difference)),
                "p (Holm)": format_p_value(result.adjusted if result.difference else None),
                "finding": result.explained,
            }
            for result in self.claims
        ]
        apart: list[dict[str, Cell]] = [
            {
                **_label_entries(labels),
                "nDCG@10": format_number(figures[PRIMARY_METRIC]),
                **_difference_entries("difference from untrained", figures),
                "p": format_p_value(figures["p"]),
            }
            for labels, figures in self.apart
        ]
        tables = {"Claims": claims, "Arms": list(map(_summary_entries, self.summary)), "Also measured": apart}
        return {title: rows for title, rows in tables.items() if rows}

    def text(self) -> str:
        """Return the tables, what the paper says, and the verdict, for a terminal."""
        tables = [format_table(*_laid_out(rows)) for rows in self.tables().values()]
        return "\n\n".join([*tables, f"The paper: {self.study.paper}.\n{self.verdict()}"])

    def markdown(self) -> str:
        """Return the findings as Markdown: command, data, the paper's claim, verdict, and tables."""
        command = [f"`{self.command}`"] if self.command else []
        parts = [f"# {self.study.title}", *command, *self.about(), f"The paper: {self.study.paper}.", self.verdict()]
        for title, rows in self.tables().items():
            parts += ["Also measured:"] if title == "Also measured" else []
            parts.append(format_markdown(*_laid_out(rows)))
        parts += ["\n".join(self.study.notes)] if self.study.notes else []
        parts += [f"{len(self.failed)} runs failed: {self.failed[0].reason}"] if self.failed else []
        return "\n\n".join(parts) + "\n"


def _laid_out(rows: Sequence[Mapping[str, Cell]]) -> tuple[list[list[Cell]], list[str]]:
    return [list(row.values()) for row in rows], list(rows[0])


def _label_entries(labels: ArmLabels) -> dict[str, Cell]:
    return {label.replace("_", " "): show(value) for label, value in labels.items()}


def _summary_entries(row: ArmRow) -> dict[str, Cell]:
    figures = row.figures
    return {
        **_label_entries(row.labels),
        "nDCG@10": format_number(figures.get(PRIMARY_METRIC)),
        "95 % interval": format_interval(figures["low"], figures["high"]),
        "± over seeds": format_number(figures["spread"]),
        "recall@100": format_number(figures.get("recall@100")),
        "MRR@10": format_number(figures.get("mrr@10")),
        "pairs": figures["pairs"],
        "seconds": f"{figures['seconds']:.0f}",
    }


def _difference_entries(column: str, figures: Mapping[str, float | None]) -> dict[str, Cell]:
    if (mean := figures["difference"]) is None:
        return {column: "–", "95 % interval": "–"}
    return {column: format_difference(mean), "95 % interval": format_interval(figures["low"], figures["high"], True)}


UNTRAINED: ArmLabels = {"loss": "untrained"}
"""The baseline of other arms on collections without a claim."""


def outcome_of(
    study: Study,
    config: StudyConfig,
    values: Mapping[str, Any],
    results: Sequence[RunResult],
    command: str,
    seedless: Collection[Any] = (),
) -> StudyOutcome:
    """Return means, intervals and tested claims. `seedless` holds the keys of the systems without training."""
    finished: dict[Any, list[RunResult]] = {}
    for result in results:
        finished.setdefault(key_of(result.labels), [])
        if result.status == "finished":
            finished[key_of(result.labels)].append(result)
    figures = {key: {result.seed: result.per_query for result in group if result.per_query}
               for key, group in finished.items()}  # fmt: skip
    summary = [_summary(group, figures[key]) for key, group in finished.items() if group]
    claims = [measure(contrast, figures, seedless) for contrast in study.contrasts(values)]
    # a claim without figures or interval counts as tested: a failed run cannot make another claim significant
    p_values = [getattr(result.difference, "p_value", None) for result in claims]
    corrected = holm([1.0 if p_value is None else p_value for p_value in p_values])
    claims = [replace(result, adjusted=p_value) for result, p_value in zip(claims, corrected, strict=True)]
    apart = _apart([result for group in finished.values() for result in group], seedless)
    return StudyOutcome(study, config, list(results), summary, claims, command, apart)


def _apart(results: Sequence[RunResult], seedless: Collection[Any]) -> list[ArmRow]:
    """Return one row per collection and arm, with the difference from the untrained encoder on that collection."""
    untrained = next((result for result in results if result.labels == UNTRAINED), None)
    base: dict[str, dict[str, float]] = {}
    if untrained is not None:
        for query, value in untrained.per_query.items():
            base.setdefault(query.partition("/")[0], {})[query] = value
        base |= {name: dict(per_query) for name, per_query in untrained.apart.items()}
    per_query: dict[str, dict[Any, dict[int, Mapping[str, float]]]] = {}
    labels = {key_of(result.labels): result.labels for result in results}
    for result in results:
        for name, values in result.apart.items():
            per_query.setdefault(name, {}).setdefault(key_of(result.labels), {})[result.seed] = values
    rows = []
    for name, arms in per_query.items():
        against = base.get(name.removesuffix(NOT_MERGED))  # the untrained encoder is never merged
        for key, seeds in arms.items():
            gain = None
            if against is not None and labels[key] != UNTRAINED:
                both: dict[Any, PerSeed] = {key: seeds, key_of(UNTRAINED): {0: against}}
                gain = measure(above(name, labels[key], UNTRAINED), both, {*seedless, key_of(UNTRAINED)}).difference
            mean = interval_of(seeds)
            figures = {PRIMARY_METRIC: mean.mean, **_difference_columns(gain), "queries": mean.queries}
            rows.append(ArmRow({"measured_on": name, **labels[key]}, figures))
    return rows


def _summary(group: Sequence[RunResult], per_query: Mapping[int, Mapping[str, float]]) -> ArmRow:
    interval = interval_of(per_query) if per_query else None
    headline = [result.metrics[PRIMARY_METRIC] for result in group]
    figures = {
        "seeds": len(group),
        **{metric: statistics.fmean(result.metrics[metric] for result in group) for metric in group[0].metrics},
        "low": getattr(interval, "low", None),
        "high": getattr(interval, "high", None),
        "spread": statistics.stdev(headline) if len(headline) > 1 else None,
        "pairs": group[0].rows,
        "seconds": statistics.fmean(result.seconds for result in group),
    }
    return ArmRow(group[0].labels, figures)


PLOT_FILE = "plot.svg"
WORDS = {"ndcg@10": "nDCG@10", "batch_size": "queries per batch",
         "hard_negatives": "hard negatives per query", "labels_per_query": "labels per query",
         "noise": "probability of swapped labels", "cutoff": "relevance cutoff",
         "multiplier": "rate of the bias over the encoder's"}  # fmt: skip
"""Metric or label -> its name in plots."""


def write_outcome(outcome: StudyOutcome, out: Path) -> dict[str, str]:
    """Write tables, findings and plot. Return name -> file."""
    texts = {
        "runs": ("runs.csv", format_csv(_run_columns(outcome.results))),
        "summary": ("summary.csv", format_csv(map(_columns, outcome.summary))),
        "claims": ("findings.csv", format_csv(map(_claim_columns, outcome.claims))),
        "apart": ("apart.csv", format_csv(map(_columns, outcome.apart))),
        "findings": ("findings.md", outcome.markdown()),
    }
    for file, text in texts.values():
        write_atomically(out / file, text)
    save_plot(plot_of(outcome), out / PLOT_FILE)
    return {name: str(out / file) for name, (file, _) in texts.items()} | {"plot": str(out / PLOT_FILE)}


def _run_columns(results: Sequence[RunResult]) -> list[dict[str, object]]:
    """Return the columns of each run. The wall time is last, because it differs in every rerun."""
    metrics = list(next((run.metrics for run in results if run.metrics), {}))
    return [
        {**run.labels, "seed": run.seed, "status": run.status}
        | {metric: _figure(metric, run.metrics.get(metric)) for metric in metrics}
        | {"pairs": run.rows, "precision": run.precision, "reason": run.reason}
        | {"seconds": _figure("seconds", run.seconds)}
        for run in results
    ]


def _columns(row: ArmRow) -> dict[str, object]:
    return {**row.labels, **{name: _figure(name, value) for name, value in row.figures.items()}}


def _claim_columns(result: ClaimResult) -> dict[str, object]:
    queries = getattr(result.difference, "queries", None)
    figures = {**_difference_columns(result.difference), "p_holm": result.adjusted, "seeds": result.seeds}
    return {**_columns(ArmRow({"claim": result.claim}, figures)), "queries": queries, "finding": result.finding}


def _difference_columns(gap: Difference | None) -> dict[str, float | None]:
    names = {"difference": "mean", "low": "low", "high": "high", "p": "p_value"}
    return {name: getattr(gap, field, None) for name, field in names.items()}


def _figure(name: str, value: float | None) -> str | int | None:
    return format(value, ".1f" if name == "seconds" else ".6g") if isinstance(value, float) else value


class Point(NamedTuple):
    """A mean with its interval at a position on the horizontal axis."""

    x: float
    value: float
    low: float
    high: float


def plot_of(outcome: StudyOutcome) -> Plot:
    """Return the plot of a study: lines over its axis, or one row per arm if it has no axis."""
    study = outcome.study
    metric = WORDS[PRIMARY_METRIC]
    if study.axis is None:
        points = [(", ".join(map(str, row.labels.values())), _point(row, 0.0)) for row in outcome.summary]
        return row_plot(study.title, metric, points)
    series: dict[str, list[Point]] = {}
    for row in outcome.summary:
        rest = [str(value) for label, value in row.labels.items() if label != study.axis]
        series.setdefault(", ".join(rest) or metric, []).append(_point(row, float(row.labels[study.axis])))
    label = WORDS.get(study.axis, study.axis.replace("_", " "))
    return line_plot(study.title, label, metric, series, study.axis_scale)


def _point(row: ArmRow, x: float) -> Point:
    value = row.figures[PRIMARY_METRIC]
    return Point(x, value, *(value if row.figures[end] is None else row.figures[end] for end in ("low", "high")))


def line_plot(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], x_scale: str) -> Plot:
    """Draw lines with one interval bar per point. `series` is name -> points, `x_scale` "linear" or "log"."""
    with drawing(height=3.1) as figure:
        axes = figure.add_subplot()
        ticks = sorted({point.x for points in series.values() for point in points})
        step = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
        lines = []
        for number, (name, points) in enumerate(series.items()):
            ordered = sorted(points)
            shift = (number - (len(series) - 1) / 2) * 0.08  # so that bars of different lines do not overlap
            xs = [p.x * (1 + shift) if x_scale == "log" else p.x + shift * step for p in ordered]
            style = {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(xs, [p.value for p in ordered], linewidth=1.5, markersize=4.5, label=clean(name), **style)
            if any(p.high > p.low for p in ordered):
                axes.vlines(xs, [p.low for p in ordered], [p.high for p in ordered], color=style["color"],
                            linewidth=1.2, alpha=0.6)  # fmt: skip
            lines.append(f"{name}: " + ", ".join(f"{point.x:g} {format_number(point.value)}" for point in ordered))
        if x_scale == "log":
            axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=x_label, ylabel=y_label)
        if len(series) > 1:
            figure.legend(loc="outside lower left", ncols=2)
        return finished(figure, f"{title}, {y_label} against {x_label}: {'; '.join(lines)}")


def row_plot(title: str, label: str, points: Sequence[tuple[str, Point]]) -> Plot:
    """Draw one row per system, top down: the mean as a dot, the interval as a line. The title is for screen readers."""
    with drawing(height=0.8 + 0.34 * len(points)) as figure:
        axes = figure.add_subplot()
        for row, (_, point) in enumerate(points):
            axes.hlines(row, point.low, point.high, color=SERIES[0], linewidth=1.8, alpha=0.6)
            axes.plot(point.value, row, color=SERIES[0], marker="o", markersize=5)
        axes.set_yticks(range(len(points)), [clean(name, 22) for name, _ in points], color=INK)
        axes.set(ylim=(len(points) - 0.5, -0.5), xlabel=label)
        axes.locator_params(axis="x", nbins=5)
        means = "; ".join(f"{name} {format_number(point.value)}" for name, point in points)
        return finished(figure, f"{title}, {label}: {means}")
