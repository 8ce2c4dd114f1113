"""`bixse grade`: grade pairs by a judge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from bixse.cli.result import CommandResult
from bixse.cli.verb import ComputingOptions, Folder, Verb
from bixse.errors import InputError
from bixse.grading.grade_settings import GradeSettings
from bixse.grading.open_judge import REPLAY, JudgeConfig
from bixse.grading.prices import Prices
from bixse.progress import duration, progress_bar
from bixse.settings import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from bixse.data.graded_pairs import Pair
    from bixse.grading.estimate import Estimate
    from bixse.grading.grade import GradeResult
    from bixse.grading.judge import Judge


class GradeConfig(JudgeConfig, GradeSettings):
    """Settings of `bixse grade`."""

    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Pairs with the columns query and document: .parquet, .jsonl, .csv or .tsv, as `bixse mine` writes them (a
    replayed file may bring its own)."""
    ledger: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of answers to share between runs (default: ledger.sqlite in the --out folder)."""
    retry_failed: bool = False
    """Ask again those pairs, and only those, whose answer has no grade."""
    pilot: int | None = Field(default=None, ge=0)
    """Questions that --dry-run asks to see tokens and time; their answers are kept, 0 for none (default: a tenth of
    those left, at least 16, at most three times what the judge takes at once)."""
    max_pairs: int | None = Field(default=None, ge=0)
    """Stop when N pairs were asked."""

    @model_validator(mode="after")
    def _read_by_the_judge(self) -> Self:
        for flag, given in (("--regrade", self.regrade), ("--document-characters", self.document_characters)):
            if given and self.judge[0].startswith(REPLAY):
                raise ValueError(f"{flag}: got it with judgements that exist already; expected a judge that reads; "
                                 "fix: leave it out")  # fmt: skip
        return self


class GradeOptions(ComputingOptions):
    """Where everything goes, and whether anything is asked."""

    dry_run: bool = False
    """Say how many questions, tokens, dollars and hours it would take."""
    out: Folder = Path("runs/grade")
    """Write pairs.parquet, judgements.parquet, ledger.sqlite and run.json here."""


def run(config: GradeConfig, options: GradeOptions) -> CommandResult:
    """Open the judge, then grade or estimate, and print a summary."""
    from bixse.data.io.files import file_hash
    from bixse.grading.ask import Budget
    from bixse.grading.estimate import estimate
    from bixse.grading.grade import grade

    rubric = config.asked_rubric()
    settings = config.model_copy(update={"rubric": rubric})
    variants = len(rubric.variants) if rubric is not None else 1
    budget = Budget(config.max_usd, None if config.max_pairs is None else config.max_pairs * variants)
    inputs = {"pairs": file_hash(config.pairs)} if config.pairs is not None and config.pairs.is_file() else {}
    judge = config.open()
    told = (
        () if "--json" in options.words else tuple(getattr(judge, "doubts", ()))
    )  # before the first question, see `grade`
    try:
        pairs = _pairs(config.pairs, judge)
        prices = config.of(config.model or judge.name)
        common: dict[str, Any] = {"settings": settings, "ledger": config.ledger, "prices": prices, "inputs": inputs}
        common["strict"] = config.strict
        if options.dry_run:
            found = estimate(pairs, judge, options.out, pilot=config.pilot, max_usd=config.max_usd, **common)
            left = [warning for warning in judge.warnings if warning not in told]
            return CommandResult(_estimate_text(found, judge.name), asdict(found), warnings=left)
        result = grade(
            pairs, judge, options.out, budget=budget, retry_failed=config.retry_failed, progress=progress_bar, **common
        )
    finally:
        judge.close()
    return _result(result, judge, prices != Prices(), told)


def _pairs(path: Path | None, judge: Judge) -> list[Pair]:
    """The pairs of the file, or those that a replayed file holds."""
    from bixse.data.pairs_files import load_pairs

    if path is not None:
        return load_pairs(path)
    own = getattr(judge, "pairs", None)
    if own is None:
        raise InputError("--pairs: got none; expected a file with query and document; fix: name it")
    return list(own())


def _result(result: GradeResult, judge: Judge, priced: bool, told: Sequence[str]) -> CommandResult:
    """What a person reads: how many, how they spread, what it took, what to doubt."""
    from bixse.report.table import format_histogram, format_table

    summary = result.summary
    graded = summary["statuses"].get("graded", 0)
    computed = f" in {summary['precision']}" if summary["precision"] else ""
    rows: list[list[str | float]] = [[status, str(count)] for status, count in summary["statuses"].items()]
    if summary["not_asked"]:
        rows.append(["not asked yet", str(summary["not_asked"])])
    lines = [f"{graded} of {summary['pairs'] + summary['not_asked']} pairs graded by {judge.name}{computed}", ""]
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
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if graded:
        lines += [
            f"next: bixse grade audit --judge {result.artifacts['judgements']} --human QRELS",
            f"      bixse train --pairs {result.artifacts['pairs']}",
        ]
    exit_code = 0 if result.complete else 3
    left = [warning for warning in judge.warnings if warning not in told]
    warnings = [*left, *_warnings(summary, judge.name, priced)]
    return CommandResult("\n".join(lines), dict(summary), dict(result.artifacts), warnings, [], exit_code)


def _warnings(summary: Mapping[str, Any], name: str, priced: bool) -> list[str]:
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


def _estimate_text(found: Estimate, name: str) -> str:
    counted = {
        "tokenizer": "counted by the judge's tokenizer",
        "answers": "from the usage of answers so far",
        "characters": "a guess at four characters per token",
    }[found.counted_by]
    left = found.questions - found.answered
    lines = [
        f"{found.pairs} pairs, {found.questions} questions to {name}: {found.answered} answered, {left} to ask",
        f"tokens to read     {found.prompt_tokens:,} ({counted})",
        f"tokens to write    {found.completion_tokens:,}",
        f"price              {found.usd:.4f} US dollars (nothing taken off for cached prompts)",
    ]
    if found.seconds is not None:
        lines.append(f"time               {duration(found.seconds)} at {found.at_once} at once, as timed in the pilot")
    if found.pilot:
        lines.append(f"the pilot asked {found.pilot} questions for {found.pilot_usd:.4f} US dollars; they are kept")
    return "\n".join(lines)


VERB = Verb(GradeConfig, GradeOptions, run)
