"""The files of a study: tables as CSV, findings as Markdown, the plot, the page, and the cards of kept models."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from bixse.files.files import read_text, write_atomically
from bixse.lab.experiments.runner import TRAIN_FOLDER
from bixse.lab.findings.outcome import CLAIM_HEADERS
from bixse.report.page import render_page
from bixse.report.plots import Point, line_plot, row_plot, save_plot
from bixse.report.table import format_markdown
from bixse.training.config import MODEL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from bixse.lab.experiments.arms import ArmRun, RunResult
    from bixse.lab.findings.outcome import StudyOutcome, SummaryRow
    from bixse.lab.studies.study import Study
    from bixse.report.plots import Plot
    from bixse.results import Difference

FILES = {
    "runs": "runs.csv",
    "summary": "summary.csv",
    "claims": "findings.csv",
    "apart": "apart.csv",
    "findings": "findings.md",
    "plot": "plot.svg",
    "page": "study.html",
}
"""What a study writes beside its record."""
CARD = "README.md"
"""The model card in a model folder."""
_BEGIN, _END = "<!-- bixse study -->", "<!-- end of bixse study -->"
WORDS = {"ndcg@10": "nDCG@10", "extra_mib": "extra memory, MiB", "batch_size": "queries per batch",
         "hard_negatives": "hard negatives per query", "labels_per_query": "labels per query",
         "noise": "probability of swapped labels", "cutoff": "relevance cutoff",
         "multiplier": "rate of the bias over the encoder's"}  # fmt: skip
"""What plots call metrics and labels."""


def write_outcome(outcome: StudyOutcome, out: Path) -> dict[str, str]:
    """Write tables, plot, findings and page; gives name -> file."""
    write_atomically(out / FILES["runs"], _runs_csv(outcome))
    write_atomically(out / FILES["summary"], _summary_csv(outcome))
    write_atomically(out / FILES["claims"], _claims_csv(outcome))
    write_atomically(out / FILES["apart"], _apart_csv(outcome))
    write_atomically(out / FILES["findings"], markdown(outcome))
    plot = plot_of(outcome)
    save_plot(plot, out / FILES["plot"])
    write_atomically(out / FILES["page"], render_page("study.html.j2", **page_content(outcome, plot)))
    return {name: str(out / file) for name, file in FILES.items()}


def page_content(outcome: StudyOutcome, plot: Plot) -> dict[str, Any]:
    """What the page shows, as plain data."""
    tables = []
    if outcome.claims:
        tables.append({"title": "Claims", "headers": CLAIM_HEADERS, "rows": outcome.claim_rows()})
    tables.append({"title": "Arms", "headers": outcome.summary_headers(), "rows": outcome.summary_rows()})
    if outcome.apart:
        tables.append({"title": "Measured beside", "headers": outcome.apart_headers(), "rows": outcome.apart_rows()})
    return {
        "title": outcome.study.title,
        "command": outcome.command,
        "about": outcome.about(),
        "paper": outcome.study.paper,
        "verdict": outcome.verdict(),
        "plot": plot,
        "tables": tables,
        "notes": [
            *outcome.study.notes,
            *(f"{found.labels}: {found.reason}" for found in outcome.failed),
            *(f"model: {folder}" for folder in outcome.models),
        ],
    }


def plot_of(outcome: StudyOutcome) -> Plot:
    """Lines over the study's axis with intervals, or a row per arm where it has none."""
    study = outcome.study
    metric = WORDS.get(study.metric, study.metric)
    if study.axis is None:
        points = [(_name(row), _point(outcome, row, 0.0)) for row in outcome.summary]
        return row_plot(study.title, metric, points)
    series: dict[str, list[Point]] = {}
    for row in outcome.summary:
        rest = [str(value) for label, value in row.labels.items() if label != study.axis]
        series.setdefault(", ".join(rest) or metric, []).append(_point(outcome, row, float(row.labels[study.axis])))
    label = WORDS.get(study.axis, study.axis.replace("_", " "))
    return line_plot(study.title, label, metric, series, study.axis_scale, study.metric == "extra_mib")


def _point(outcome: StudyOutcome, row: SummaryRow, x: float) -> Point:
    value = row.figures[outcome.study.metric]
    ends = (row.interval.low, row.interval.high) if row.interval is not None else (value, value)
    return Point(x, value, *ends)


def _name(row: SummaryRow) -> str:
    return ", ".join(str(value) for value in row.labels.values())


def markdown(outcome: StudyOutcome) -> str:
    """The findings as Markdown: what ran, the paper's claim, the verdict, both tables."""
    study = outcome.study
    command = [f"`{outcome.command}`", ""] if outcome.command else []
    lines = [
        f"# {study.title}",
        "",
        *command,
        "\n\n".join(outcome.about()),
        "",
        f"The paper: {study.paper}.",
        "",
        outcome.verdict(),
        "",
    ]
    if outcome.claims:
        lines += [format_markdown(outcome.claim_rows(), CLAIM_HEADERS), ""]
    lines += [format_markdown(outcome.summary_rows(), outcome.summary_headers()), ""]
    if outcome.apart:
        lines += ["Measured beside:", "", format_markdown(outcome.apart_rows(), outcome.apart_headers()), ""]
    lines += [*study.notes, ""] if study.notes else []
    lines += [f"{len(outcome.failed)} runs failed: {outcome.failed[0].reason}", ""] if outcome.failed else []
    return "\n".join(lines)


def _runs_csv(outcome: StudyOutcome) -> str:
    """A row per run; the wall time last, which is never the same."""
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
    """Add the study to the card of every kept model, in place of an earlier entry; gives the models' folders."""
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
    lines = [_BEGIN, "## Study", "", f"Arm of the study `{study.name}` ({study.title}): {labels}, seed {run.seed}."]
    lines += [
        f"On the test queries, in {result.precision}: {figures}.",
        f"Command: `{command}`" if command else "",
        _END,
    ]
    return "\n".join(line for line in lines if line or line == "")
