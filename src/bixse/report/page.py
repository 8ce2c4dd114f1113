"""`render_report`: one self-contained HTML page from `ReportData`.

The page needs no network and no JavaScript, reads on a phone, and takes every text from the data as text: Jinja
escapes all of it, and only the plots and the style sheet, which this package makes itself, go in as markup.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from bixse.data.io.files import write_atomically
from bixse.report import plots, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.report.schema import Calibration, Comparison, QueryChange, RankedDocument, ReportData

EXCERPT_LENGTH = 320
"""Characters shown of a document."""
CHANGES_LISTED = 10
"""How many of the largest gains and of the largest losses are listed by name."""

_CALIBRATION_WORDS = {
    "better": "▲ below the constant's",
    "no difference": "● no difference from the constant shown",
    "worse": "▼ above the constant's",
}


def render_report(data: ReportData) -> str:
    """The whole page as text; the same data give the same page.

    Example:
        >>> from bixse.report.schema import ReportData, SystemScores
        >>> data = ReportData(title="a < b", created="2026-01-31T12:00:00+00:00", primary_metric="ndcg@10",
        ...                   systems=[SystemScores(name="base", label="Base", metrics={"ndcg@10": 0.4})])
        >>> "<h1>a &lt; b</h1>" in render_report(data)
        True
    """
    decisive = [c for c in data.comparisons if c.metric == data.primary_metric]
    changes = sorted(data.per_query, key=lambda change: (-change.change, change.query_id))
    return _template().render(
        data=data,
        css=Markup(_resource("report.css")),
        created=_moment(data.created),
        decisive=decisive,
        evidence=lambda comparison: _evidence(data, comparison),
        best=_best_scores(data),
        baselines=table.baselines_of(data),
        comparison_of=lambda system, baseline: table.find_comparison(data, system, baseline),
        timed=any(system.seconds is not None for system in data.systems),
        forest=Markup(plots.forest_plot(decisive, data.label)) if decisive else None,
        training={title: Markup(svg) for title, svg in plots.training_plots(data.training, data.label).items()},
        merges={
            f"{data.label(curve.system)}: dev and guard against the weight of the tuned model": Markup(
                plots.merge_plot(curve, data.label)
            )
            for curve in data.merges
        },
        calibrations=[
            (calibration, _calibration_verdict(calibration), _diagram(calibration)) for calibration in data.calibrations
        ],
        gains=Markup(plots.gains_and_losses_plot(changes, data.primary_metric)) if changes else None,
        kinds=_by_kind(changes),
        largest_gains=[change for change in changes if change.change > 0][:CHANGES_LISTED],
        largest_losses=[change for change in reversed(changes) if change.change < 0][:CHANGES_LISTED],
        rank_in=lambda ranking: {document.document_id: document.rank for document in ranking},
        document_text=_document_text,
    )


def write_report(data: ReportData, path: Path | str) -> None:
    """Write the page so that it appears whole or not at all.

    Raises:
        StorageError: if the folder cannot be made or written, or the disk is full.
    """
    write_atomically(Path(path), render_report(data))


@cache
def _template() -> Template:
    """The compiled page template; autoescape is on for every text, and an unknown name is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=table.format_number,
        difference=table.format_difference,
        seconds=table.format_seconds,
        p_value=table.format_p_value,
    )
    environment.globals.update(interval=table.format_interval, verdict_words=table.VERDICT_WORDS)
    return environment.from_string(_resource("report.html.j2"))


def _resource(name: str) -> str:
    return files("bixse.report").joinpath(name).read_text(encoding="utf-8")


def _moment(created: str) -> str:
    """A date as it is; a time to the minute, with its zone where one was given."""
    if len(created) <= 10:
        return created
    moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _evidence(data: ReportData, comparison: Comparison) -> str:
    """What stands behind one comparison; blanks that must not break are no-break spaces."""
    p_value = table.format_p_value(comparison.p_value)
    p_value = p_value if p_value.startswith("<") else f"= {p_value}"
    parts = [
        f"{100 * data.confidence:g}% interval {table.format_interval(comparison.low, comparison.high, signed=True)}",
        f"p {p_value}".replace(" ", "\N{NO-BREAK SPACE}") if comparison.p_value is not None else "",
        f"{comparison.queries} {'query' if comparison.queries == 1 else 'queries'}",
    ]
    return ", ".join(filter(None, parts))


def _best_scores(data: ReportData) -> Mapping[str, str]:
    """Metric -> best mean as written, so that systems equal in print are marked alike; none for a single system."""
    if len(data.systems) < 2:
        return {}
    return {
        metric: table.format_number(max(s.metrics[metric] for s in data.systems if metric in s.metrics))
        for metric in data.metrics
    }


def _calibration_verdict(calibration: Calibration) -> tuple[str, str] | None:
    """Verdict and words for the Brier score against the constant's; None without an interval."""
    if calibration.brier_low is None or calibration.brier_high is None:
        return None
    if calibration.brier_high < calibration.constant_brier:
        verdict = "better"
    elif calibration.brier_low > calibration.constant_brier:
        verdict = "worse"
    else:
        verdict = "no difference"
    return verdict, _CALIBRATION_WORDS[verdict]


def _diagram(calibration: Calibration) -> Markup | None:
    return Markup(plots.reliability_diagram(calibration)) if calibration.curve else None


def _by_kind(changes: list[QueryChange]) -> list[tuple[str, int, float, float]]:
    """Kind, queries, mean baseline and mean system score; empty when no query has a kind."""
    kinds: dict[str, list[QueryChange]] = {}
    for change in changes:
        kinds.setdefault(change.kind or "(no kind)", []).append(change)
    if all(change.kind is None for change in changes):
        return []
    return [
        (kind, len(group), fmean(c.baseline_score for c in group), fmean(c.system_score for c in group))
        for kind, group in sorted(kinds.items())
    ]


def _document_text(document: RankedDocument) -> str:
    """The start of a document on one line, cut at a blank where there is one near."""
    text = " ".join(document.text[: 4 * EXCERPT_LENGTH].split())
    if len(text) <= EXCERPT_LENGTH:
        return text
    cut = text[: EXCERPT_LENGTH - 1]
    return (cut if " " not in cut[-40:] else cut[: cut.rindex(" ")]) + " …"
