"""A run of grading as text: how many pairs were graded, how grades spread, what it took, what makes them doubtful."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.report.table import format_histogram, format_table

if TYPE_CHECKING:
    from collections.abc import Mapping


def grade_lines(summary: Mapping[str, Any], name: str) -> list[str]:
    """Counts, spread and costs from the summary of a `bixse.judging.grade.GradeResult`; `name` is the judge's."""
    graded = summary["statuses"].get("graded", 0)
    computed = f" in {summary['precision']}" if summary["precision"] else ""
    rows: list[list[str | float]] = [[status, str(count)] for status, count in summary["statuses"].items()]
    if summary["not_asked"]:
        rows.append(["not asked yet", str(summary["not_asked"])])
    lines = [f"{graded} of {summary['pairs'] + summary['not_asked']} pairs graded by {name}{computed}", ""]
    lines += [format_table(rows, ["status", "pairs"]), ""]
    if graded:
        lines += [*format_histogram(summary["relevance_tenths"]), ""]
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} answers from the ledger; "
        f"{summary['prompt_tokens']:,} tokens read ({summary['cached_tokens']:,} from the server's cache), "
        f"{summary['completion_tokens']:,} written, {summary['usd']:.4f} US dollars "
        f"({summary['usd_of_this_run']:.4f} in this run)"
    )
    if summary["repeats"]:
        lines.append(
            f"{summary['repeats']} pairs were asked twice: relevance changed by "
            f"{summary['mean_change_of_repeats']:.4f} on average"
        )
    return lines


def grade_warnings(summary: Mapping[str, Any], name: str, priced: bool) -> list[str]:
    """What makes grades doubtful: missing ones, little probability on the options, wide bounds, other models."""
    graded = summary["statuses"].get("graded", 0)
    warnings = []
    for dtype, count in summary["answered_in_other_precision"].items():
        warnings.append(
            f"{count} answers of this judge in {dtype} are in the ledger and were not reused: this run computes in "
            f"{summary['precision']}, which gives other probabilities; fix: --dtype {dtype} takes them"
        )
    if (unusable := summary["pairs"] - graded) > 0:
        warnings.append(
            f"{unusable} pairs have a status and no relevance: see judgements.parquet; --retry-failed asks them again"
        )
    if summary["low_mass"]:
        warnings.append(
            f"{summary['low_mass']} of {graded} graded pairs have less than half of the answer's probability on the "
            "options: the judge would rather say something else, and its grades mean less"
        )
    if summary["wide_bounds"]:
        warnings.append(
            f"{summary['wide_bounds']} of {graded} relevances may be off by more than 0.05, since the server did not "
            "return all options: relevance_low and relevance_high hold the bounds"
        )
    warnings += [
        f"{count} answers came from {other}, not from {name}: they are graded all the same, and the column judge names "
        "the model; --strict refuses them"
        for other, count in summary["other_models"].items()
    ]
    if summary["usage_unknown"] and priced:
        warnings.append(
            f"{summary['usage_unknown']} answers came without a usable number of tokens: the dollars lack their price "
            "(--max-usd counts a guess)"
        )
    if graded > 1 and max(summary["relevance_tenths"]) == graded:
        warnings.append("all relevances lie in one tenth of the scale: there is little to learn from them")
    return warnings
