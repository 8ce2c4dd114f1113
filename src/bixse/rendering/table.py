"""Tables for the terminal and for Markdown, and the number formats of the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from bixse.errors import printable
from bixse.progress import duration
from bixse.results import VERDICT_WORDS, Difference

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None
"""Floats get three decimals; None is an empty cell."""


def metric_title(metric: str) -> str:
    """The name of a metric for readers: nDCG@10 for ndcg@10."""
    name, at, cutoff = metric.partition("@")
    return {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}.get(name, name) + at + cutoff


def format_verdict(difference: Difference, few: str | None = None) -> str:
    """A verdict with its sign, and the reason if there is none; `few` is the reason that was stored, "" for none.

    Example:
        >>> from bixse.results import Difference
        >>> format_verdict(Difference(0.1, None, None, None, queries=12))
        '? cannot tell (12 queries; at least 40)'
    """
    few = difference.few if few is None else few
    return f"{VERDICT_WORDS['cannot tell']} ({few})" if few else VERDICT_WORDS[difference.verdict]


def format_number(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals, one more where it would read as zero; a dash for None; never "-0.000"."""
    return "–" if value is None else f"{value:z.{_finer(value, digits)}f}"


def _finer(value: float, digits: int) -> int:
    return digits + (round(value, digits) == 0 and round(value, digits + 1) != 0)


def format_difference(value: float, digits: int = 3) -> str:
    """A signed difference with a true minus sign, and the decimals of `format_number`.

    Example:
        >>> format_difference(0.0531), format_difference(-0.02), format_difference(-0.0001), format_difference(0.0)
        ('+0.053', '−0.020', '−0.0001', '0.000')
    """
    text = f"{value:+z.{_finer(value, digits)}f}".replace("-", "−")
    return text if text.strip("+0.") else text[1:]


def format_interval(low: float | None, high: float | None, signed: bool = False, digits: int = 3) -> str:
    """An interval such as "[−0.010, +0.090]", or an empty text if a bound is unknown."""
    if low is None or high is None:
        return ""
    write = format_difference if signed else format_number
    return f"[{write(low, digits)}, {write(high, digits)}]"


def format_p_value(value: float | None) -> str:
    """A p-value; values below 0.001 become "< 0.001"."""
    return "< 0.001" if value is not None and value < 0.001 else format_number(value)


def format_seconds(seconds: float | None) -> str:
    """A duration such as "1 min 23 s", or a dash for None."""
    return "–" if seconds is None else duration(seconds)


def format_table(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    """A plain-text table: texts left aligned, numbers right aligned, columns two blanks apart.

    Example:
        >>> print(format_table([["BM25", 0.41], ["tuned", 0.5]], ["system", "ndcg@10"]))
        system      ndcg@10
        --------  ---------
        BM25          0.410
        tuned         0.500
    """
    return _tabulated(rows, headers, "simple")


class Table:
    """The base of results that print as a table, and show as one in a notebook."""

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        """Return the names of the columns, and the rows."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Table.__repr__  # type: ignore[method-assign]  # a dataclass leaves the one that its class has

    def __str__(self) -> str:
        headers, rows = self.cells()
        return format_table(rows, headers)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        headers, rows = self.cells()
        return _tabulated(rows, headers, "html")

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        headers, rows = self.cells()
        return pandas.DataFrame([list(row) for row in rows], columns=list(headers))

    def to_markdown(self) -> str:
        headers, rows = self.cells()
        return format_markdown(rows, headers)

    def to_latex(self) -> str:
        headers, rows = self.cells()
        return _tabulated(rows, headers, "latex")


def format_histogram(counts: Sequence[int], width: int = 40) -> list[str]:
    """Bars of text, one per equal part of the relevance range [0, 1].

    Example:
        >>> format_histogram([3, 6], width=4)
        ['  relevance 0.0 to 0.5 | ## 3', '  relevance 0.5 to 1.0 | #### 6']
    """
    most, size = max([*counts, 1]), len(counts)
    bars = ["#" * -(-count * width // most) + " " * bool(count) for count in counts]
    return [
        f"  relevance {position / size:.1f} to {(position + 1) / size:.1f} | {bar}{counts[position]}"
        for position, bar in enumerate(bars)
    ]


def format_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """A table as CSV text with the columns of the first row; empty for no rows."""
    text, rows = io.StringIO(), list(rows)
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def format_markdown(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    """The table of `format_table` in GitHub's Markdown; Markdown and HTML signs in the data are escaped."""
    return _tabulated(rows, headers, "pipe", _markdown)


def _tabulated(
    rows: Sequence[Sequence[Cell]], headers: Sequence[str], layout: str, escape: Callable[[str], str] = str
) -> str:
    texts = [[_text(entry) for entry in row] for row in rows]
    columns = zip(*texts, strict=True) if texts else [()] * len(headers)
    return tabulate(
        [[escape(text) for text in row] for row in texts],
        [escape(_text(header)) for header in headers],
        tablefmt=layout,
        colalign=["right" if _is_number_column(column) else "left" for column in columns] if texts else None,
        disable_numparse=True,  # tabulate would reformat texts that look like numbers
    )


def _text(entry: Cell) -> str:
    if isinstance(entry, float):
        return format_number(entry)
    return "" if entry is None else printable(" ".join(str(entry).split()))  # data must not control the terminal


def _is_number_column(texts: Sequence[str]) -> bool:
    filled = [text for text in texts if text not in ("", "–")]
    return bool(filled) and all(text.lstrip("+-−< ")[:1].isdigit() for text in filled)  # "+0.053" too


def _markdown(text: str) -> str:
    for sign in "\\`*_[]|~":
        text = text.replace(sign, "\\" + sign)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
