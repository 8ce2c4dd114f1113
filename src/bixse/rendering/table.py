"""Tables for the terminal, for notebooks and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bixse.errors import printable

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None
"""Floats get three decimals; None is an empty cell."""


def format_number(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals, one more where it would read as zero; a dash for None; never "-0.000"."""
    return "–" if value is None else f"{value:z.{finer(value, digits)}f}"


def finer(value: float, digits: int) -> int:
    """Return the number of decimals of a value: one more where it would read as zero."""
    return digits + (round(value, digits) == 0 and round(value, digits + 1) != 0)


def format_table(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    """A plain-text table: texts left aligned, numbers right aligned, columns two blanks apart.

    Example:
        >>> print(format_table([["BM25", 0.41], ["tuned", 0.5]], ["system", "ndcg@10"]))
        system      ndcg@10
        --------  ---------
        BM25          0.410
        tuned         0.500
    """
    return _tabulated(headers, rows, "simple")


class Table:
    """The base of results that print as a table, and show as one in a notebook."""

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        """Return the names of the columns, and the rows."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Table.__repr__  # type: ignore[method-assign]  # a dataclass leaves the one that its class has

    def __str__(self) -> str:
        return _tabulated(*self.cells(), "simple")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _tabulated(*self.cells(), "html")

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        headers, rows = self.cells()
        return pandas.DataFrame([list(row) for row in rows], columns=list(headers))

    def to_markdown(self) -> str:
        return _tabulated(*self.cells(), "pipe", _markdown)

    def to_latex(self) -> str:
        return _tabulated(*self.cells(), "latex")


def format_markdown(rows: Sequence[Sequence[Cell]], headers: Sequence[str]) -> str:
    """The table of `format_table` in GitHub's Markdown; Markdown and HTML signs in the data are escaped."""
    return _tabulated(headers, rows, "pipe", _markdown)


def _tabulated(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], layout: str, escape: Callable[[str], str] = str
) -> str:
    from tabulate import tabulate  # here: its import takes as long as all else of the help of a verb

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
