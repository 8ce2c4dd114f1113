"""`bixse grade`: grade pairs by a judge."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult, waits
from bixse.cli.verb import ComputingOptions, Folder, Verb
from bixse.errors import InputError
from bixse.judging.grade_settings import Prices
from bixse.judging.open_judge import GradeConfig
from bixse.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    from bixse.files.files import file_hash
    from bixse.judging.ask import Budget
    from bixse.judging.estimate import estimate
    from bixse.judging.grade import grade

    if config.in_shards:
        return _run_shards(config, options)
    config.chosen_engine(here=True)  # refuses several processes that would all do the same
    rubric = config.asked_rubric()
    settings = config.model_copy(update={"rubric": rubric})
    variants = len(rubric.variants) if rubric is not None else 1
    budget = Budget(config.max_usd, None if config.max_pairs is None else config.max_pairs * variants)
    inputs = {"pairs": file_hash(config.pairs)} if config.pairs is not None and config.pairs.exists() else {}
    judge = config.open()
    told = _told(judge, options)
    try:
        pairs = _pairs(config.pairs, judge)
        prices = config.of(config.model or judge.name)
        common: dict[str, Any] = {"settings": settings, "ledger": config.ledger, "prices": prices, "inputs": inputs}
        common["strict"] = config.strict
        if options.dry_run:
            found = estimate(pairs, judge, options.out, pilot=config.pilot, max_usd=config.max_usd, **common)
            left = [warning for warning in judge.warnings if warning not in told]
            return CommandResult(found.text(judge.name), asdict(found), warnings=left)
        result = grade(
            pairs, judge, options.out, budget=budget, retry_failed=config.retry_failed, progress=progress_bar, **common
        )
    finally:
        judge.close()
    return _result(result, judge, prices != Prices(), told)


def _run_shards(config: GradeConfig, options: GradeOptions) -> CommandResult:
    """The same of pairs that are graded shard by shard."""
    from bixse.judging.grade_shards import estimate_shards, grade_shards

    judge = config.open()
    told = _told(judge, options)
    try:
        if options.dry_run:
            found, times = estimate_shards(config, options.out, judge)
            text = f"the first shard alone; all rows are {times:.1f} times as many\n{found.text(judge.name)}"
            left = [warning for warning in judge.warnings if warning not in told]
            return CommandResult(text, {**asdict(found), "times_as_many_rows": times}, warnings=left)
        result = grade_shards(config, options.out, judge, progress_bar)
    finally:
        judge.close()
    shown = _result(result, judge, config.of(config.model or judge.name) != Prices(), told)
    if not result.waiting:
        return shown
    waiting = waits(result.waiting, **shown.metrics)
    return replace(shown, text=f"{waiting.text}\n\n{shown.text}", metrics=waiting.metrics, exit_code=0)


def _told(judge: Judge, options: GradeOptions) -> Sequence[str]:
    """Doubts about the judge that are logged before the first question."""
    doubts: Sequence[str] = () if "--json" in options.words else getattr(judge, "doubts", ())
    return doubts


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
    from bixse.report.grade_summary import grade_lines, grade_warnings

    lines = grade_lines(result.summary, judge.name)
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if "pairs" in result.artifacts:
        lines += [
            f"next: bixse grade audit --judge {result.artifacts['judgements']} --human QRELS",
            f"      bixse train --pairs {result.artifacts['pairs']}",
        ]
    warnings = [warning for warning in judge.warnings if warning not in told]
    warnings += grade_warnings(result.summary, judge.name, priced)
    code = 0 if result.complete else 3
    return CommandResult("\n".join(lines), dict(result.summary), dict(result.artifacts), warnings, [], code)


VERB = Verb(GradeConfig, GradeOptions, run)
