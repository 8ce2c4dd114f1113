"""`render_audit`: one self-contained HTML page from the content of audit.json.

As the page of a study: no network, no JavaScript, every text from data escaped by Jinja. Only the style sheet, the
plots and the interval strips, which this package draws from numbers alone, go in as markup.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from bixse.data.io.files import write_atomically
from bixse.report import plots, table
from bixse.report.schema import Calibration, CalibrationBin

if TYPE_CHECKING:
    from collections.abc import Mapping

EXCERPT_LENGTH = 320
"""Characters shown of a document."""
QUERIES_SHOWN = 10
"""Queries listed by disagreement; audit.json holds all."""
LABELS_SHOWN = 50
"""Impossible labels listed; audit.json holds all."""
STRIP_WIDTH = 120
"""Width of an interval strip in SVG units."""


def render_audit(audit: Mapping[str, Any]) -> str:
    """The whole page as text; the same content gives the same page.

    Args:
        audit: the content of audit.json: the plain audit with title, created, findings, comparison, warnings, texts.

    Raises:
        jinja2.UndefinedError: a part of the content is missing.
    """
    judges = [{**judge, "diagram": Markup(plots.reliability_diagram(_calibration(judge)))} for judge in audit["judges"]]
    impossible = [*audit["human_impossible"], *(label for judge in audit["judges"] for label in judge["impossible"])]
    return _template().render(
        audit=audit,
        judges=judges,
        impossible=impossible,
        css=Markup(files("bixse.report").joinpath("report.css").read_text(encoding="utf-8")),
        created=f"{datetime.fromisoformat(audit['created']):%Y-%m-%d %H:%M}",
        measures=audit["measure_names"],
        against_constant=_against_constant,
        query_text=audit["texts"]["queries"].get,
        document_text=lambda identifier: excerpt(audit["texts"]["documents"].get(identifier, "")),
        queries_shown=QUERIES_SHOWN,
        labels_shown=LABELS_SHOWN,
    )


def write_audit(audit: Mapping[str, Any], path: Path | str) -> None:
    """Write the page so that it appears whole or not at all.

    Raises:
        StorageError: the folder cannot be made or written, or the disk is full.
    """
    write_atomically(Path(path), render_audit(audit))


def interval_strip(value: float | None, low: float | None, high: float | None, start: float = 0.0) -> Markup:
    """A value with its interval on a line from `start` to 1, as a small picture; empty where it is not known.

    Example:
        >>> 'cx="60.0"' in interval_strip(0.5, 0.25, 0.75), interval_strip(None, None, None)
        (True, Markup(''))
    """
    if value is None or low is None or high is None:
        return Markup("")
    at, left, right, zero = (
        STRIP_WIDTH * (min(max(x, start), 1.0) - start) / (1.0 - start) for x in (value, low, high, 0.0)
    )
    label = f"{value:.3f}, interval {low:.3f} to {high:.3f}"
    return Markup(
        f'<svg class="strip" viewBox="-4 0 {STRIP_WIDTH + 8} 14" width="{STRIP_WIDTH + 8}" height="14" role="img" '
        f'aria-label="{label}"><path d="M0 7H{STRIP_WIDTH}" class="axis"/><path d="M{zero:.1f} 3V11" class="axis"/>'
        f'<path d="M{STRIP_WIDTH} 3V11" class="axis"/><path d="M{left:.1f} 7H{right:.1f}" class="range"/>'
        f'<circle cx="{at:.1f}" cy="7" r="3.5"/></svg>'
    )


def excerpt(text: str) -> str:
    """The start of a text on one line, cut at a blank where there is one near.

    Example:
        >>> excerpt("one  two"), len(excerpt("word " * 500)) <= EXCERPT_LENGTH + 1
        ('one two', True)
    """
    line = " ".join(text[: 4 * EXCERPT_LENGTH].split())
    if len(line) <= EXCERPT_LENGTH:
        return line
    cut = line[: EXCERPT_LENGTH - 1]
    return (cut if " " not in cut[-40:] else cut[: cut.rindex(" ")]) + " …"


def _calibration(judge: Mapping[str, Any]) -> Calibration:
    found = judge["calibration"]
    return Calibration(
        name=judge["name"],
        pairs=found["pairs"],
        queries=found["queries"],
        brier=found["brier"],
        ece=found["ece"],
        constant_brier=found["base_rate_brier"],
        curve=[CalibrationBin(**point) for point in found["curve"]],
    )


def _against_constant(judge: Mapping[str, Any]) -> tuple[str, str]:
    """Style and words for the Brier score against the constant's."""
    low, high = judge["against_constant"]["low"], judge["against_constant"]["high"]
    if high is not None and high < 0:
        return "better", "▲ lower"
    return ("worse", "▼ higher") if low is not None and low > 0 else ("no-difference", "● not shown")


def _with_code(text: str) -> Markup:
    """A sentence with its `commands` set as code; everything in it is escaped first."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def _shade(count: int, row: list[int]) -> str:
    """How dark a cell of the table of counts is: its share of the row, as a percentage of full colour."""
    return f"{55 * count / max(1, sum(row)):.0f}%"


@cache
def _template() -> Template:
    """The compiled page template; autoescape is on for every text, and an unknown name is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=table.format_number, difference=table.format_difference, percent=_percent, with_code=_with_code
    )
    environment.globals.update(interval=table.format_interval, strip=interval_strip, shade=_shade)
    return environment.from_string(files("bixse.report").joinpath("audit.html.j2").read_text(encoding="utf-8"))
