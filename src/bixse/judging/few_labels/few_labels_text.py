"""Estimates from few labels for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.report.table import VERDICT_WORDS, format_difference, format_interval, format_number, format_table

if TYPE_CHECKING:
    from bixse.judging.few_labels.evaluate_few_labels import FewLabels, FewLabelsEstimate
    from bixse.report.table import Cell

HEADERS = ("metric", "system", "judge alone", "estimate", "these queries", "queries like these", "labels worth")
_WORDS = {"above": "better", "below": "worse", "across": "no difference"}


def few_labels_text(found: FewLabels) -> str:
    """A table, what each difference comes to, and what was left out."""
    lines = [
        f"{found.labelled} labels of {found.labelled_queries} queries ({found.drawn} were drawn); {found.pairs} graded "
        f"pairs of {found.pool_queries} queries",
        "",
        format_table([_row(own) for own in found.estimates], HEADERS),
        "",
        *(_verdict(own) for own in found.estimates if own.baseline is not None),
    ]
    if any(own.approximate for own in found.estimates):
        lines.append("~: the ideal ranking is estimated, which biases nDCG; label whole queries to be free of that")
    if found.left_out is not None:
        lines.append(f"left out: {found.left_out}")
    if found.outside:
        lines.append(f"{found.outside} labels are of pairs without a grade: left out")
    lines += [
        f"{name}: {count} documents it shows have no grade: they count as irrelevant"
        for name, count in found.ungraded.items()
        if count
    ]
    return "\n".join(lines)


def _row(own: FewLabelsEstimate) -> list[Cell]:
    signed = own.baseline is not None
    write = format_difference if signed else format_number
    return [
        own.metric + ("~" if own.approximate else ""),
        own.system if own.baseline is None else f"{own.system} - {own.baseline}",
        write(own.judge),
        write(own.queries.value or 0.0),
        format_interval(own.labels.low, own.labels.high, signed) or "too few labels",
        format_interval(own.queries.low, own.queries.high, signed),
        own.labels_worth,
    ]


def _verdict(own: FewLabelsEstimate) -> str:
    verdict = VERDICT_WORDS[_WORDS[own.queries.side]]  # type: ignore[index]
    more = ""
    if own.labels_to_decide is not None:
        more = f"; about {own.labels_to_decide} more labels would show it, if it is as large as it looks"
    elif own.queries_to_decide is not None:
        more = f"; labels of these queries cannot show it: about {own.queries_to_decide} queries could"
    return f"{own.metric}, {own.system} against {own.baseline}: {verdict}{more}"
