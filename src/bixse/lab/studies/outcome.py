"""The outcome of a study: means, intervals and tested claims, as data, tables, files, a page and model cards."""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import holm
from bixse.files.files import read_text, write_atomically
from bixse.lab.experiments import TRAIN_FOLDER, show
from bixse.lab.studies.measures import NOT_MERGED
from bixse.lab.studies.study import ClaimResult, PerSeed, above, interval_of, key_of, measure
from bixse.report.page import render_page
from bixse.report.plots import INK, MARKERS, SERIES, clean, drawing, finished, save_plot
from bixse.report.table import format_difference, format_interval, format_markdown, format_number, format_p_value
from bixse.training.config import MODEL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from bixse.lab.experiments import ArmLabels, ArmRun, RunResult
    from bixse.lab.lab_config import StudyConfig
    from bixse.lab.studies.study import Study
    from bixse.report.plots import Plot
    from bixse.report.table import Cell
    from bixse.results import Difference


@dataclass(frozen=True)
class SummaryRow:
    """One arm of a study (a combination of labels) over its seeds."""

    labels: ArmLabels
    seeds: int
    """Number of seeds that finished."""
    figures: Mapping[str, float]
    """Metric -> mean over the seeds."""
    interval: Difference | None
    """Mean nDCG@10 with its interval over seeds and queries. None for a study without queries."""
    spread: float | None
    """Standard deviation of nDCG@10 over the seeds. None for one seed."""
    seconds: float
    rows: int | None


@dataclass(frozen=True)
class ApartRow:
    """One arm on a collection without a claim, or before its model was merged."""

    labels: ArmLabels
    name: str
    """The name of the collection, with a suffix if the model was not merged."""
    figure: Difference
    """Mean nDCG@10 with its interval over seeds and queries."""
    gain: Difference | None
    """The difference from the untrained encoder. None for that encoder itself and in studies without it."""


@dataclass(frozen=True)
class StudyOutcome:
    """All results of a study, as plain data."""

    study: Study
    config: StudyConfig
    results: Sequence[RunResult]
    summary: Sequence[SummaryRow]
    claims: Sequence[ClaimResult]
    command: str = ""
    models: Sequence[str] = ()
    """Folders of the kept models."""
    apart: Sequence[ApartRow] = ()

    @property
    def failed(self) -> list[RunResult]:
        return [found for found in self.results if found.status != "finished"]

    def verdict(self) -> str:
        if not self.claims:
            return "No claim is tested: the table is the finding."
        count = {word: sum(found.finding == word for found in self.claims) for word in
                 ("reproduced", "not shown", "contradicted", "no figures")}  # fmt: skip
        said = [f"{number} {word}" for word, number in count.items() if number]
        return f"Of {len(self.claims)} claims: {', '.join(said)}."

    def about(self) -> list[str]:
        config = self.config
        queries = next((found.interval.queries for found in self.summary if found.interval), 0)
        collection = ", ".join(folder.name for folder in config.data.test) or _last(config.data.collection)
        seeds = f"{len(config.seeds)} seed{'s' if len(config.seeds) != 1 else ''}"
        lines = [f"Encoder {config.model}, collection {collection}, {queries} test queries, {seeds}."]
        computed = sorted({found.precision for found in self.results if found.precision})
        if computed:
            lines.append(f"Computed in {' and '.join(computed)}.")
        if config.note:
            lines.append(config.note)
        return lines

    def claim_rows(self) -> list[list[Cell]]:
        return [
            [found.claim, *_difference_entries(found.difference, found.adjusted), found.finding]
            for found in self.claims
        ]

    def apart_headers(self) -> list[str]:
        labels = [label.replace("_", " ") for label in self.apart[0].labels] if self.apart else []
        return ["measured on", *labels, "nDCG@10", "difference from untrained", "95 % interval", "p"]

    def apart_rows(self) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        for row in self.apart:
            gain = _difference_entries(row.gain, row.gain.p_value if row.gain else None)
            rows.append([row.name, *map(show, row.labels.values()), format_number(row.figure.mean), *gain])
        return rows

    def summary_headers(self) -> list[str]:
        labels = [label.replace("_", " ") for label in self.summary[0].labels] if self.summary else []
        return [*labels, "nDCG@10", "95 % interval", "± over seeds", "recall@100", "MRR@10", "pairs", "seconds"]

    def summary_rows(self) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        for row in self.summary:
            labels = [value if isinstance(value, str) else f"{value:g}" for value in row.labels.values()]
            ndcg, *others = (
                format_number(row.figures.get(metric)) for metric in (PRIMARY_METRIC, "recall@100", "mrr@10")
            )
            interval = format_interval(*((row.interval.low, row.interval.high) if row.interval else (None, None)))
            seconds = f"{row.seconds:.0f}"
            rows.append([*labels, ndcg, interval, format_number(row.spread), *others, row.rows, seconds])
        return rows

    def tables(self) -> dict[str, tuple[Sequence[str], list[list[Cell]]]]:
        """Return title -> (headers, rows) for each table that has rows."""
        claims = {"Claims": (CLAIM_HEADERS, self.claim_rows())} if self.claims else {}
        arms = {"Arms": (self.summary_headers(), self.summary_rows())}
        return {
            **claims,
            **arms,
            **({"Measured beside": (self.apart_headers(), self.apart_rows())} if self.apart else {}),
        }


UNTRAINED: ArmLabels = {"loss": "untrained"}
"""The baseline of other arms on collections without a claim."""
CLAIM_HEADERS = ("claim", "difference", "95 % interval", "p (Holm)", "finding")


def outcome_of(
    study: Study,
    config: StudyConfig,
    values: Mapping[str, Any],
    results: Sequence[RunResult],
    command: str,
    models: Sequence[str] = (),
    seedless: Collection[Any] = (),
) -> StudyOutcome:
    """Return means, intervals and tested claims. `seedless` holds the keys of the systems without training."""
    finished: dict[Any, list[RunResult]] = {}
    for found in results:
        finished.setdefault(key_of(found.labels), [])
        if found.status == "finished":
            finished[key_of(found.labels)].append(found)
    figures = {key: {found.seed: found.per_query for found in group if found.per_query}
               for key, group in finished.items()}  # fmt: skip
    summary = [_summary(group, figures[key]) for key, group in finished.items() if group]
    claims = [measure(contrast, figures, seedless) for contrast in study.contrasts(values)]
    corrected = holm([1.0 if found.difference is None else found.difference.p_value for found in claims])
    claims = [replace(found, adjusted=p_value) for found, p_value in zip(claims, corrected, strict=True)]
    apart = _apart([found for group in finished.values() for found in group], seedless)
    return StudyOutcome(study, config, list(results), summary, claims, command, models, apart)


def _apart(results: Sequence[RunResult], seedless: Collection[Any]) -> list[ApartRow]:
    """Return one row per collection and arm, with the difference from the untrained encoder on that collection."""
    untrained = next((found for found in results if found.labels == UNTRAINED), None)
    base: dict[str, dict[str, float]] = {}
    if untrained is not None:
        for query, value in untrained.per_query.items():
            base.setdefault(query.partition("/")[0], {})[query] = value
        base |= {name: dict(own) for name, own in untrained.apart.items()}
    figures: dict[str, dict[Any, dict[int, Mapping[str, float]]]] = {}
    labels = {key_of(found.labels): found.labels for found in results}
    for found in results:
        for name, own in found.apart.items():
            figures.setdefault(name, {}).setdefault(key_of(found.labels), {})[found.seed] = own
    rows = []
    for name, arms in figures.items():
        against = base.get(name.removesuffix(NOT_MERGED))
        for key, seeds in arms.items():
            gain = None
            if against is not None and labels[key] != UNTRAINED:
                both: dict[Any, PerSeed] = {key: seeds, key_of(UNTRAINED): {0: against}}
                gain = measure(above(name, labels[key], UNTRAINED), both, {*seedless, key_of(UNTRAINED)}).difference
            rows.append(ApartRow(labels[key], name, interval_of(seeds), gain))
    return rows


def _summary(group: Sequence[RunResult], figures: Mapping[int, Mapping[str, float]]) -> SummaryRow:
    metrics = list(group[0].metrics)
    means = {metric: statistics.fmean(found.metrics[metric] for found in group) for metric in metrics}
    headline = [found.metrics[PRIMARY_METRIC] for found in group]
    return SummaryRow(
        labels=group[0].labels,
        seeds=len(group),
        figures=means,
        interval=interval_of(figures) if figures else None,
        spread=statistics.stdev(headline) if len(headline) > 1 else None,
        seconds=statistics.fmean(found.seconds for found in group),
        rows=group[0].rows,
    )


def _difference_entries(gap: Difference | None, p_value: float | None) -> list[Cell]:
    """Return difference, interval and p-value as table entries."""
    if gap is None:
        return ["–", "–", "–"]
    return [format_difference(gap.mean), format_interval(gap.low, gap.high, signed=True), format_p_value(p_value)]


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


FILES = {
    "runs": "runs.csv",
    "summary": "summary.csv",
    "claims": "findings.csv",
    "apart": "apart.csv",
    "findings": "findings.md",
    "plot": "plot.svg",
    "page": "study.html",
}
CARD = "README.md"
"""The model card in a model folder."""
_BEGIN, _END = "<!-- bixse study -->", "<!-- end of bixse study -->"
WORDS = {"ndcg@10": "nDCG@10", "batch_size": "queries per batch",
         "hard_negatives": "hard negatives per query", "labels_per_query": "labels per query",
         "noise": "probability of swapped labels", "cutoff": "relevance cutoff",
         "multiplier": "rate of the bias over the encoder's"}  # fmt: skip
"""Metric or label -> its name in plots."""


def write_outcome(outcome: StudyOutcome, out: Path) -> dict[str, str]:
    """Write tables, plot, findings and page. Return name -> file."""
    plot = plot_of(outcome)
    save_plot(plot, out / FILES["plot"])
    texts = {
        "runs": _runs_csv(outcome),
        "summary": _summary_csv(outcome),
        "claims": _claims_csv(outcome),
        "apart": _apart_csv(outcome),
        "findings": markdown(outcome),
        "page": render_page("study.html.j2", **page_content(outcome, plot)),
    }
    for name, text in texts.items():
        write_atomically(out / FILES[name], text)
    return {name: str(out / file) for name, file in FILES.items()}


def page_content(outcome: StudyOutcome, plot: Plot) -> dict[str, Any]:
    """Return the content of the page as plain data."""
    return {
        "title": outcome.study.title,
        "command": outcome.command,
        "about": outcome.about(),
        "paper": outcome.study.paper,
        "verdict": outcome.verdict(),
        "plot": plot,
        "tables": [
            {"title": title, "headers": headers, "rows": rows} for title, (headers, rows) in outcome.tables().items()
        ],
        "notes": [
            *outcome.study.notes,
            *(f"{found.labels}: {found.reason}" for found in outcome.failed),
            *(f"model: {folder}" for folder in outcome.models),
        ],
    }


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
        points = [(_name(row), _point(row, 0.0)) for row in outcome.summary]
        return row_plot(study.title, metric, points)
    series: dict[str, list[Point]] = {}
    for row in outcome.summary:
        rest = [str(value) for label, value in row.labels.items() if label != study.axis]
        series.setdefault(", ".join(rest) or metric, []).append(_point(row, float(row.labels[study.axis])))
    label = WORDS.get(study.axis, study.axis.replace("_", " "))
    return line_plot(study.title, label, metric, series, study.axis_scale)


def _point(row: SummaryRow, x: float) -> Point:
    value = row.figures[PRIMARY_METRIC]
    ends = (row.interval.low, row.interval.high) if row.interval is not None else (value, value)
    return Point(x, value, *ends)


def _name(row: SummaryRow) -> str:
    return ", ".join(str(value) for value in row.labels.values())


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


def markdown(outcome: StudyOutcome) -> str:
    """Return the findings as Markdown: command, data, the paper's claim, verdict, and tables."""
    study = outcome.study
    command = [f"`{outcome.command}`"] if outcome.command else []
    parts = [f"# {study.title}", *command, *outcome.about(), f"The paper: {study.paper}.", outcome.verdict()]
    for title, (headers, rows) in outcome.tables().items():
        parts += ["Measured beside:"] if title == "Measured beside" else []
        parts.append(format_markdown(rows, headers))
    parts += ["\n".join(study.notes)] if study.notes else []
    parts += [f"{len(outcome.failed)} runs failed: {outcome.failed[0].reason}"] if outcome.failed else []
    return "\n\n".join(parts) + "\n"


def _runs_csv(outcome: StudyOutcome) -> str:
    """Return one row per run. The wall time is last, because it differs in every rerun."""
    metrics = list(next((found.metrics for found in outcome.results if found.metrics), {}))
    return _csv(
        {**found.labels, "seed": found.seed, "status": found.status}
        | {metric: _figure(found.metrics.get(metric)) for metric in metrics}
        | {"pairs": found.rows, "precision": found.precision, "reason": found.reason, "seconds": f"{found.seconds:.1f}"}
        for found in outcome.results
    )


def _summary_csv(outcome: StudyOutcome) -> str:
    return _csv(
        {**row.labels, "seeds": row.seeds}
        | {metric: _figure(value) for metric, value in row.figures.items()}
        | {end: _figure(getattr(row.interval, end, None)) for end in ("low", "high")}
        | {"spread": _figure(row.spread), "pairs": row.rows, "seconds": f"{row.seconds:.1f}"}
        for row in outcome.summary
    )


def _claims_csv(outcome: StudyOutcome) -> str:
    return _csv(
        {"claim": found.claim, **_difference_columns(found.difference)}
        | {"p_holm": _figure(found.adjusted), "seeds": found.seeds}
        | {"queries": getattr(found.difference, "queries", None), "finding": found.finding}
        for found in outcome.claims
    )


def _apart_csv(outcome: StudyOutcome) -> str:
    return _csv(
        {"measured_on": row.name, **row.labels, "ndcg@10": _figure(row.figure.mean)}
        | _difference_columns(row.gain)
        | {"queries": row.figure.queries}
        for row in outcome.apart
    )


def _difference_columns(gap: Difference | None) -> dict[str, str | None]:
    names = {"difference": "mean", "low": "low", "high": "high", "p": "p_value"}
    return {name: _figure(getattr(gap, own, None)) for name, own in names.items()}


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _csv(rows: Iterable[Mapping[str, object]]) -> str:
    text, rows = io.StringIO(), list(rows)
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def write_cards(study: Study, runs: Iterable[tuple[ArmRun, RunResult]], folder: Path, command: str) -> list[str]:
    """Write the study into the card of every kept model, in place of an earlier entry. Return the models' folders."""
    found = []
    for run, result in runs:
        model = folder / run.name / TRAIN_FOLDER / MODEL_FOLDER
        if not model.is_dir():
            continue
        card = model / CARD
        before = read_text(card) if card.exists() else ""
        if _BEGIN in before:
            before = before[: before.index(_BEGIN)] + before[before.index(_END) + len(_END) :].lstrip("\n")
        write_atomically(card, f"{before.rstrip()}\n\n{_section(study, run, result, command)}\n")
        found.append(str(model))
    return found


def _section(study: Study, run: ArmRun, result: RunResult, command: str) -> str:
    labels = ", ".join(f"{label.replace('_', ' ')} {value}" for label, value in run.arm.labels.items())
    figures = ", ".join(f"{metric} {value:.4f}" for metric, value in result.metrics.items())
    arm = f"Arm of the study `{study.name}` ({study.title}): {labels}, seed {run.seed}."
    measured = f"On the test queries, in {result.precision}: {figures}."
    return "\n".join([_BEGIN, "## Study", "", arm, measured, f"Command: `{command}`" if command else "", _END])
