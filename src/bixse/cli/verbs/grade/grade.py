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
    from bixse.judging.estimate import grade_lines, grade_warnings

    lines = grade_lines(result.summary, judge.name)
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if "pairs" in result.artifacts:
        lines += [
            f"next: bixse grade audit --judge {result.artifacts['judgements']} --human QRELS",
            f"      bixse train --pairs {result.artifacts['pairs']}",
        ]
    warnings = [*warnings, *grade_warnings(result.summary, judge.name, priced)]
    code = 0 if result.complete else 3
    return CommandResult("\n".join(lines), dict(result.summary), dict(result.artifacts), warnings, [], code)


VERB = Verb(GradeConfig, GradeOptions, run, first=("judge", "pairs", "rubric", "model", "max_usd"))
