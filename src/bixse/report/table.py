"""Aligned tables for the terminal and for Markdown, and how the report writes its numbers."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from bixse.errors import printable
from bixse.progress import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.report.schema import Comparison, ReportData, Verdict

Cell = str | int | float | None
"""A table cell; numbers are right aligned, None is an empty cell."""

VERDICT_WORDS: dict[Verdict, str] = {
    "better": "▲ better",
    "no difference": "● no difference shown",
    "worse": "▼ worse",
}
"""How a verdict is written wherever there is no room for a sentence: a sign and words, never colour alone."""


def format_number(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals, or a dash for None.

    Example:
        >>> format_number(0.45678), format_number(None)
        ('0.457', '–')
    """
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def format_difference(value: float, digits: int = 3) -> str:
    """A signed difference with a true minus sign; a difference that rounds to zero has no sign.

    Example:
        >>> format_difference(0.0531), format_difference(-0.02), format_difference(-0.0001)
        ('+0.053', '−0.020', '0.000')
    """
    text = format_number(abs(value), digits)
    if not text.strip("0."):
        return text
    return ("+" if value > 0 else "−") + text


def format_interval(low: float | None, high: float | None, signed: bool = False) -> str:
    """An interval, or an empty text when it is not known.

    Example:
        >>> format_interval(-0.01, 0.09, signed=True)
        '[−0.010, +0.090]'
    """
    if low is None or high is None:
        return ""
    write = format_difference if signed else format_number
    return f"[{write(low)}, {write(high)}]"


def format_p_value(value: float | None) -> str:
    """A p-value; below one in a thousand only that is said.

    Example:
        >>> format_p_value(0.0312), format_p_value(0.00004)
        ('0.031', '< 0.001')
    """
    return "< 0.001" if value is not None and value < 0.001 else format_number(value)


def format_seconds(seconds: float | None) -> str:
    """A duration as `bixse.progress.duration` writes it, or a dash for None.

    Example:
        >>> format_seconds(83.2), format_seconds(None)
        ('1 min 23 s', '–')
    """
    return "–" if seconds is None else duration(seconds)


def format_table(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    """A plain-text table: texts left aligned, numbers right aligned, columns two blanks apart.

    A column whose cells all begin like a number (sign, digit or dash) counts as numbers, so that ready-made
    "+0.053" cells align too. Wide characters count as two columns; control characters are replaced, so
    that no text from data can steer the terminal.

    Raises:
        ValueError: if a row's length differs from the headers'.

    Example:
        >>> print(format_table([["BM25", 0.41], ["tuned", 0.5]], ["system", "ndcg@10"]))
        system  ndcg@10
        ------  -------
        BM25      0.410
        tuned     0.500
    """
    cells = [[_cell_text(cell) for cell in row] for row in _checked(rows, headers)]
    head = [_printable(header) for header in headers]
    right = [_is_number_column([row[j] for row in cells]) for j in range(len(head))]
    widths = [max(_width(text) for text in column) for column in zip(head, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        return "  ".join(map(_padded, texts, widths, right)).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, cells)])


def format_markdown(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    r"""The same table in Markdown (GitHub's dialect), with Markdown and HTML signs in the data escaped.

    Raises:
        ValueError: if a row's length differs from the headers'.

    Example:
        >>> print(format_markdown([["a|b", 0.41]], ["system", "ndcg@10"]))
        | system | ndcg@10 |
        | :-- | --: |
        | a\|b | 0.410 |
    """
    cells = [[_cell_text(cell) for cell in row] for row in _checked(rows, headers)]
    rule = ["--:" if _is_number_column([row[j] for row in cells]) else ":--" for j in range(len(headers))]

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    body = [line([_markdown(text) for text in row]) for row in cells]
    return "\n".join([line([_markdown(_printable(header)) for header in headers]), line(rule), *body])


def results_text(data: ReportData) -> str:
    """The main table for the terminal: systems by metrics, and the primary metric's difference to each baseline."""
    return format_table(*_results(data))


def results_markdown(data: ReportData) -> str:
    """The main table in Markdown."""
    return format_markdown(*_results(data))


def baselines_of(data: ReportData) -> list[str]:
    """Names of the baselines the primary metric is compared with, in order of appearance."""
    return list(dict.fromkeys(c.baseline for c in data.comparisons if c.metric == data.primary_metric))


def find_comparison(data: ReportData, system: str, baseline: str) -> Comparison | None:
    """The comparison of two systems on the primary metric, or None."""
    wanted = (system, baseline, data.primary_metric)
    return next((c for c in data.comparisons if (c.system, c.baseline, c.metric) == wanted), None)


def _results(data: ReportData) -> tuple[list[list[Cell]], list[str]]:
    """Rows and headers of the main table."""
    baselines = baselines_of(data)
    timed = any(system.seconds is not None for system in data.systems)
    headers = ["system", *data.metrics, *(f"{data.primary_metric} − {data.label(name)}" for name in baselines)]
    rows: list[list[Cell]] = []
    for system in data.systems:
        row: list[Cell] = [system.label, *(format_number(system.metrics.get(metric)) for metric in data.metrics)]
        row += [_difference_text(find_comparison(data, system.name, baseline)) for baseline in baselines]
        rows.append([*row, format_seconds(system.seconds)] if timed else row)
    return rows, [*headers, "time"] if timed else headers


def _difference_text(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    interval = format_interval(comparison.low, comparison.high, signed=True)
    return f"{format_difference(comparison.mean)} {interval} {VERDICT_WORDS[comparison.verdict]}"


def _checked(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> Sequence[Sequence[Cell]]:
    for number, row in enumerate(rows, start=1):
        if len(row) != len(headers):
            raise ValueError(f"row {number}: got {len(row)} cells; expected {len(headers)}, one for each header")
    return rows


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, float):
        return format_number(cell)
    return "" if cell is None else _printable(str(cell))


def _printable(text: str) -> str:
    """One line without control characters or direction marks."""
    return printable(" ".join(text.split()))


def _width(text: str) -> int:
    """Columns a terminal needs: 2 for a wide character, 0 for a combining one."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _is_number_column(texts: Sequence[str]) -> bool:
    filled = [text for text in texts if text not in ("", "–")]
    return bool(filled) and all(text.lstrip("+-−< ")[:1].isdigit() for text in filled)


def _markdown(text: str) -> str:
    for sign in "\\`*_[]|~":
        text = text.replace(sign, "\\" + sign)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
