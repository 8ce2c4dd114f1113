"""What a study's cells show together: tables, tested claims, a plot and a paragraph of findings."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import write_atomically
from bixse.evaluation.suites.suite_verdict import holm
from bixse.report.table import format_difference, format_interval, format_markdown, format_number, format_p_value
from bixse.studies.findings.contrasts import Found, interval_of, key_of, measure

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.significance import Difference
    from bixse.experiments.arms import RunResult
    from bixse.studies.engine.study import Study
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Labels

FILES = {
    "runs": "runs.csv",
    "summary": "summary.csv",
    "claims": "findings.csv",
    "findings": "findings.md",
    "plot": "plot.svg",
    "page": "study.html",
}
"""What a study writes beside its record."""


@dataclass(frozen=True)
class SummaryRow:
    """One combination of labels over its seeds."""

    labels: Labels
    """Label -> value."""
    seeds: int
    """Seeds that finished."""
    figures: Mapping[str, float]
    """Metric -> mean over the seeds."""
    interval: Difference | None
    """The headline metric's interval over seeds and queries; None for a study without queries."""
    spread: float | None
    """Standard deviation over the seeds; None for one."""
    seconds: float
    """Mean wall time of a cell."""
    rows: int | None
    """Training pairs, of the first seed."""


@dataclass(frozen=True)
class StudyOutcome:
    """Everything a study shows, as plain data."""

    study: Study
    """The study."""
    config: StudyConfig
    """What it ran on."""
    results: Sequence[RunResult]
    """A result per run."""
    summary: Sequence[SummaryRow]
    """A row a combination of labels."""
    claims: Sequence[Found]
    """The claims with their figures."""
    command: str = ""
    """The command line."""
    models: Sequence[str] = ()
    """Folders of the models that were kept."""

    @property
    def failed(self) -> list[RunResult]:
        """The runs that did not finish."""
        return [found for found in self.results if found.status != "finished"]

    def verdict(self) -> str:
        """One sentence: how many claims are reproduced."""
        if not self.claims:
            return "No claim is tested: the table is the finding."
        count = {word: sum(found.finding == word for found in self.claims) for word in
                 ("reproduced", "not shown", "contradicted", "no figures")}  # fmt: skip
        said = [f"{number} {word}" for word, number in count.items() if number]
        return f"Of {len(self.claims)} claims: {', '.join(said)}."

    def markdown(self) -> str:
        """The findings as Markdown: what ran, the paper's claim, the verdict, both tables."""
        study = self.study
        command = [f"`{self.command}`", ""] if self.command else []
        lines = [
            f"# {study.title}",
            "",
            *command,
            "\n\n".join(self.about()),
            "",
            f"The paper: {study.paper}.",
            "",
            self.verdict(),
            "",
        ]
        if self.claims:
            lines += [format_markdown(self.claim_rows(), CLAIM_HEADERS), ""]
        lines += [format_markdown(self.summary_rows(), self.summary_headers()), ""]
        lines += [*study.notes, ""] if study.notes else []
        lines += [f"{len(self.failed)} runs failed: {self.failed[0].reason}", ""] if self.failed else []
        return "\n".join(lines)

    def about(self) -> list[str]:
        """What ran on what, in lines."""
        config, study = self.config, self.study
        lines = []
        if study.needs_data:
            queries = next((found.interval.queries for found in self.summary if found.interval), 0)
            collection = ", ".join(folder.name for folder in config.data.test) or _last(config.data.collection)
            lines.append(
                f"Encoder {config.model}, collection {collection}, {queries} test queries, "
                f"{len(config.seeds)} seed{'s' if len(config.seeds) != 1 else ''}."
            )
        computed = sorted({found.precision for found in self.results if found.precision})
        if computed:
            lines.append(f"Computed in {' and '.join(computed)}.")
        if config.note:
            lines.append(config.note)
        return lines

    def claim_rows(self) -> list[list[str | int | float | None]]:
        """Rows of the table of claims."""
        rows: list[list[str | int | float | None]] = []
        for found in self.claims:
            gap = found.difference
            if gap is None:
                rows.append([found.claim, "–", "–", "–", found.finding])
                continue
            interval = format_interval(gap.low, gap.high, signed=True)
            p_value = format_p_value(found.adjusted)
            rows.append([found.claim, format_difference(gap.mean), interval, p_value, found.finding])
        return rows

    def summary_headers(self) -> list[str]:
        """Headers of the table of cells."""
        labels = [label.replace("_", " ") for label in self.summary[0].labels] if self.summary else []
        if not self.study.needs_data:
            return [*labels, "extra MiB", "seconds per pass"]
        return [*labels, "nDCG@10", "95 % interval", "± over seeds", "recall@100", "MRR@10", "pairs", "seconds"]

    def summary_rows(self) -> list[list[str | int | float | None]]:
        """Rows of the table of cells."""
        rows: list[list[str | int | float | None]] = []
        for row in self.summary:
            labels = [value if isinstance(value, str) else f"{value:g}" for value in row.labels.values()]
            figures = row.figures
            if not self.study.needs_data:
                extra, seconds = figures.get("extra_mib"), figures.get("pass_seconds")
                rows.append([*labels, format_number(extra, 0), format_number(seconds, 2)])
                continue
            ends = (row.interval.low, row.interval.high) if row.interval else (None, None)
            shown = [format_number(figures.get(metric)) for metric in ("recall@100", "mrr@10")]
            rows.append(
                [*labels, format_number(figures.get("ndcg@10")), format_interval(*ends), format_number(row.spread),
                 *shown, "" if row.rows is None else row.rows, f"{row.seconds:.0f}"]
            )  # fmt: skip
        return rows


CLAIM_HEADERS = ("claim", "difference", "95 % interval", "p (Holm)", "finding")
"""Headers of the table of claims."""


def outcome_of(
    study: Study,
    config: StudyConfig,
    values: Mapping[str, Any],
    results: Sequence[RunResult],
    command: str,
    models: Sequence[str] = (),
    seedless: Collection[Any] = (),
) -> StudyOutcome:
    """Means, intervals and tested claims of a study's results.

    Args:
        study: the study.
        config: its configuration.
        values: what it went through.
        results: a result per run, in the order of the study.
        command: the command line, for the page.
        models: folders of the models that were kept.
        seedless: keys of the systems without training.
    """
    finished: dict[Any, list[RunResult]] = {}
    for found in results:
        finished.setdefault(key_of(found.labels), [])
        if found.status == "finished":
            finished[key_of(found.labels)].append(found)
    figures = {key: {found.seed: found.per_query for found in group if found.per_query}
               for key, group in finished.items()}  # fmt: skip
    summary = [_summary(study, group, figures[key]) for key, group in finished.items() if group]
    claims = [measure(contrast, figures, seedless) for contrast in study.contrasts(values)]
    corrected = holm([1.0 if found.difference is None else found.difference.p_value for found in claims])
    claims = [replace(found, adjusted=p_value) for found, p_value in zip(claims, corrected, strict=True)]
    return StudyOutcome(study, config, list(results), summary, claims, command, models)


def _summary(study: Study, group: Sequence[RunResult], figures: Mapping[int, Mapping[str, float]]) -> SummaryRow:
    metrics = list(group[0].metrics)
    means = {metric: statistics.fmean(found.metrics[metric] for found in group) for metric in metrics}
    headline = [found.metrics[study.metric] for found in group]
    return SummaryRow(
        labels=group[0].labels,
        seeds=len(group),
        figures=means,
        interval=interval_of(figures) if figures else None,
        spread=statistics.stdev(headline) if len(headline) > 1 else None,
        seconds=statistics.fmean(found.seconds for found in group),
        rows=group[0].rows,
    )


def write_outcome(outcome: StudyOutcome, out: Path) -> dict[str, str]:
    """Write tables, plot, findings and page; gives name -> file."""
    from bixse.report.study_page import write_study_page
    from bixse.studies.findings.plot import plot_of
    from bixse.studies.findings.tables import claims_csv, runs_csv, summary_csv

    write_atomically(out / FILES["runs"], runs_csv(outcome))
    write_atomically(out / FILES["summary"], summary_csv(outcome))
    write_atomically(out / FILES["claims"], claims_csv(outcome))
    write_atomically(out / FILES["findings"], outcome.markdown())
    plot = plot_of(outcome)
    write_atomically(out / FILES["plot"], plot + "\n")
    write_study_page(page_content(outcome, plot), out / FILES["page"])
    return {name: str(out / file) for name, file in FILES.items()}


def page_content(outcome: StudyOutcome, plot: str) -> dict[str, Any]:
    """What the page shows, as plain data."""
    tables = []
    if outcome.claims:
        tables.append({"title": "Claims", "headers": CLAIM_HEADERS, "rows": outcome.claim_rows()})
    tables.append({"title": "Arms", "headers": outcome.summary_headers(), "rows": outcome.summary_rows()})
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


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
