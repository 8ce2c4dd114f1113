"""The figures of a measurement as text: differences, intervals, thresholds, verdicts, histograms and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bixse.rendering.table import finer, format_number
from bixse.results import VERDICT_WORDS, Difference


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


def format_difference(value: float, digits: int = 3) -> str:
    """A signed difference with a true minus sign, and the decimals of `format_number`.

    Example:
        >>> format_difference(0.0531), format_difference(-0.02), format_difference(-0.0001), format_difference(0.0)
        ('+0.053', '−0.020', '−0.0001', '0.000')
    """
    text = f"{value:+z.{finer(value, digits)}f}".replace("-", "−")
    return text if text.strip("+0.") else text[1:]


def format_interval(low: float | None, high: float | None, signed: bool = False, digits: int = 3) -> str:
    """An interval such as "[−0.010, +0.090]", or an empty text if a bound is unknown."""
    if low is None or high is None:
        return ""
    write = format_difference if signed else format_number
    return f"[{write(low, digits)}, {write(high, digits)}]"


def format_threshold(point: Any, head: Any = None) -> str:
    """An `OperatingPoint` with its precision and recall; with the `RelevanceHead` of scores, the cut is a score."""

    def share(value: float, interval: tuple[float, float] | None) -> str:
        return f"{value:.3f} {format_interval(*interval or (None, None))}".rstrip()

    reached = "from" if point.is_reached else "not reachable; best is"
    cut = f"probability {point.threshold:.4g}"
    if head is not None and 0 < point.threshold < 1:
        cut = f"score {head.cosine_at(point.threshold):.4f}"
    line = f"precision {point.wanted:g}: {reached} {cut}{' on' * point.is_reached}"
    if point.claimed is None:
        figures = f"precision {share(point.precision, point.interval)}"
        return f"{line} ({figures}, recall {point.recall:.3f}, {point.pairs} pairs of {point.queries} queries)"
    return (
        f"{line}; of search results of held-out queries above it {share(point.precision, point.interval)} is relevant, "
        f"expected {share(point.claimed, point.claimed_interval)} from the other queries; "
        f"recall {point.recall:.3f}, {point.pairs} results of {point.queries} queries"
    )


def format_p_value(value: float | None) -> str:
    """A p-value; values below 0.001 become "< 0.001"."""
    return "< 0.001" if value is not None and value < 0.001 else format_number(value)


def format_seconds(seconds: float | None) -> str:
    """A duration with its units, or a dash for None.

    Example:
        >>> format_seconds(0.04), format_seconds(12.3), format_seconds(75), format_seconds(7384)
        ('< 0.1 s', '12.3 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds is None:
        return "–"
    if seconds < 0.1:
        return "< 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


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
