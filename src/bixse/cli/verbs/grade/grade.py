"""`bixse grade`: grade pairs by a judge."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.verb import CommandResult, ComputingOptions, Folder, Verb, waits
from bixse.errors import InputError
from bixse.judging.grade_settings import Prices
from bixse.judging.open_judge import GradeConfig
from bixse.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.judging.grade import GradeResult
    from bixse.judging.judge import Judge


class GradeOptions(ComputingOptions):
    """Where everything goes, and whether anything is asked."""

    dry_run: bool = False
    """Say how many questions, tokens, dollars and hours it would take."""
    out: Folder = Path("runs/grade")
    """Write pairs.parquet, judgements.parquet, the ledger and run.json here."""


def run(config: GradeConfig, options: GradeOptions) -> CommandResult:
    """Open the judge, then grade or estimate, and print a summary."""
    if not config.in_shards:
        config.chosen_engine(here=True)  # refuses several processes that would all do the same
    judge = config.open()
    doubts: Sequence[str] = () if "--json" in options.words else getattr(judge, "doubts", ())  # logged before it asks
    try:
        if options.dry_run:
            text, metrics = _estimated(config, judge, options.out)
        else:
            result = _graded(config, judge, options.out)
    finally:
        judge.close()
    warnings = [warning for warning in judge.warnings if warning not in doubts]
    if options.dry_run:
        return CommandResult(text, metrics, warnings=warnings)
    shown = _shown(result, judge, config.of(config.model or judge.name) != Prices(), warnings)
    if not result.waiting:
        return shown
    waiting = waits(result.waiting, **shown.metrics)
    return replace(shown, text=f"{waiting.text}\n\n{shown.text}", metrics=waiting.metrics, exit_code=0)


def _graded(config: GradeConfig, judge: Judge, out: Path) -> GradeResult:
    from bixse.judging.ask import Budget
    from bixse.judging.grade import grade
    from bixse.judging.grade_shards import grade_shards

    if config.in_shards:
        return grade_shards(config, out, judge, progress_bar)
    pairs, common = _pairs(config.pairs, judge), _common(config, judge)
    most = None if config.max_pairs is None else config.max_pairs * common["settings"].questions_per_pair
    budget = Budget(config.max_usd, most)
    return grade(pairs, judge, out, budget=budget, retry_failed=config.retry_failed, progress=progress_bar, **common)


def _estimated(config: GradeConfig, judge: Judge, out: Path) -> tuple[str, dict[str, Any]]:
    from bixse.judging.estimate import estimate
    from bixse.judging.grade_shards import estimate_shards

    if config.in_shards:
        found, times = estimate_shards(config, out, judge)
        text = f"the first shard alone; all rows are {times:.1f} times as many\n{found.text(judge.name)}"
        return text, {**asdict(found), "times_as_many_rows": times}
    pairs, common = _pairs(config.pairs, judge), _common(config, judge)
    found = estimate(pairs, judge, out, pilot=config.pilot, max_usd=config.max_usd, **common)
    return found.text(judge.name), asdict(found)


def _common(config: GradeConfig, judge: Judge) -> dict[str, Any]:
    """Arguments of `grade` and `estimate`."""
    from bixse.files.files import file_hash

    return {
        "settings": config.model_copy(update={"rubric": config.asked_rubric()}),
        "ledger": config.ledger,
        "prices": config.of(config.model or judge.name),
        "inputs": {} if config.pairs is None else {"pairs": file_hash(config.pairs)},
        "strict": config.strict,
    }


def _pairs(path: Path | None, judge: Judge) -> list[Pair]:
    """The pairs of the file, or those that a replayed file holds."""
    from bixse.data.pairs_files import load_pairs

    if path is not None:
        return load_pairs(path)
    own = getattr(judge, "pairs", None)
    if own is None:
        raise InputError("--pairs: got none; expected a file with query and document; fix: name it")
    return list(own())


def _shown(result: GradeResult, judge: Judge, priced: bool, warnings: Sequence[str]) -> CommandResult:
    lines = _lines(result.summary, judge.name)
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if "pairs" in result.artifacts:
        lines += [
            f"next: bixse grade audit --judge {result.artifacts['judgements']} --human QRELS",
            f"      bixse train --pairs {result.artifacts['pairs']}",
        ]
    warnings = [*warnings, *_warnings(result.summary, judge.name, priced)]
    code = 0 if result.complete else 3
    return CommandResult("\n".join(lines), dict(result.summary), dict(result.artifacts), warnings, [], code)


def _lines(summary: Mapping[str, Any], name: str) -> list[str]:
    """Counts, spread and costs of a run of grading; `name` is the judge's."""
    from bixse.report.table import format_histogram, format_table

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


def _warnings(summary: Mapping[str, Any], name: str, priced: bool) -> list[str]:
    """The doubts about the grades: missing ones, little probability on the options, wide bounds, other models."""
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


VERB = Verb(GradeConfig, GradeOptions, run, first=("judge", "pairs", "rubric", "model", "max_usd"))
