"""The renderer of all HTML pages, and `write_report` for `ReportData`.

Jinja escapes every text from the data. Only plots, which this package draws itself, are inserted as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bixse.files.files import write_atomically
from bixse.rendering import plots, table, wording
from bixse.results import VERDICT_WORDS, Difference

if TYPE_CHECKING:
    from bixse.rendering.schema import ReportData

CHANGES_LISTED = 10


def render_page(template: str, **content: Any) -> str:
    """Fill a template of `rendering/templates`."""
    return page_environment().get_template(template).render(content)


def render_report(data: ReportData) -> str:
    """Return the page of a report; the same data give the same page."""
    decisive = [c for c in data.comparisons if c.metric == data.primary_metric]
    changes = sorted(data.per_query, key=lambda change: (-change.change, change.query_id))  # ties by id
    gains = [change for change in changes if change.change > 0][:CHANGES_LISTED]
    losses = [change for change in reversed(changes) if change.change < 0][:CHANGES_LISTED]
    return render_page(
        "report.html.j2",
        title=data.title,
        data=data,
        decisive=decisive,
        best=_best_scores(data),
        training=plots.training_plots(data.training, data.label),
        merges={
            f"{data.label(curve.system)}: change by weight of the tuned model": plots.merge_plot(curve, data.label)
            for curve in data.merges
        },
        shown=[change for change in (*gains, *losses) if any(change.rankings)],
        diagrams={
            name: plots.reliability_diagram(report, name) for name, report in data.calibrations.items() if report.curve
        },
        gains=plots.gains_and_losses_plot(changes, wording.metric_title(data.primary_metric)) if changes else None,
        largest_gains=gains,
        largest_losses=losses,
    )


def write_report(data: ReportData, path: Path | str) -> None:
    """Write the page of a report; the file appears complete or not at all."""
    write_atomically(Path(path), render_report(data))


@cache
def page_environment(package: str = "bixse.rendering") -> Environment:
    """Return the Jinja environment of a package's templates and ours; it escapes every text from data."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("bixse.rendering")]),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelled name is an error, not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        headings=re.compile(r'<h2 id="(\w+)">(.*?)</h2>').findall,
        metric=wording.metric_title,
        number=table.format_number,
        difference=wording.format_difference,
        seconds=wording.format_seconds,
        p_value=wording.format_p_value,
        percent=lambda share: "–" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%",
        moment=_moment,
        with_code=lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
    )
    environment.globals.update(
        interval=wording.format_interval,
        verdict_words=VERDICT_WORDS,
        verdict_text=wording.format_verdict,
        evidence=_evidence,
    )
    return environment


def _moment(created: str) -> str:
    if len(created) <= 10:  # a date without a time
        return created
    moment = datetime.fromisoformat(created)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _evidence(difference: Difference) -> str:
    """The interval, p-value and queries of a difference, or why it has none; no-break spaces keep the p-value whole."""
    if difference.low is None:
        return difference.few or f"{difference.queries} queries, all without a difference"
    p_value = wording.format_p_value(difference.p_value)
    p_value = f"p {p_value if p_value.startswith('<') else f'= {p_value}'}, ".replace(" ", "\N{NO-BREAK SPACE}", 2)
    p_value = "" if difference.p_value is None else p_value  # older records have none
    interval = wording.format_interval(difference.low, difference.high, signed=True)
    queries = f"{difference.queries} {'query' if difference.queries == 1 else 'queries'}"
    return f"{100 * difference.confidence:g}% interval {interval}, {p_value}{queries}"


def _best_scores(data: ReportData) -> Mapping[str, str]:
    """Metric -> best mean as printed: systems that are equal in print are marked alike. Empty for a single system."""
    if len(data.systems) < 2:
        return {}
    return {
        metric: table.format_number(max(s.metrics[metric] for s in data.systems if metric in s.metrics))
        for metric in data.metrics
    }
