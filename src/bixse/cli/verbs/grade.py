"""`bixse grade` and its verbs: audit, calibrate and rank."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.verb import CommandResult, ComputingOptions, Folder, Options, Verb, waits
from bixse.errors import InputError
from bixse.judging.audit.audit_settings import AuditSettings, GradeMapSettings
from bixse.judging.grade_settings import Prices
from bixse.judging.open_judge import GradeConfig, RankConfig
from bixse.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.judging.grade import GradeResult
    from bixse.judging.judge import Judge


class GradeOptions(ComputingOptions):
    """The output folder, and the switch of the dry run."""

    dry_run: bool = False
    """Say how many questions, tokens, dollars and hours it would take."""
    out: Folder = Path("runs/grade")
    """Write pairs.parquet, judgements.parquet, the ledger and run.json here."""


def run_grade(config: GradeConfig, options: GradeOptions) -> CommandResult:
    """Open the judge, then grade or estimate, and return a summary."""
    if not config.in_shards:
        config.chosen_engine(here=True)  # refuses several processes that would repeat the same work
    judge = config.open()
    doubts: Sequence[str] = () if "--json" in options.words else getattr(judge, "doubts", ())  # logged already
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
    pairs, common = _pairs(config.pairs), _common(config, judge)
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
    pairs, common = _pairs(config.pairs), _common(config, judge)
    found = estimate(pairs, judge, out, pilot=config.pilot, max_usd=config.max_usd, **common)
    return found.text(judge.name), asdict(found)


def _common(config: GradeConfig, judge: Judge) -> dict[str, Any]:
    """Return the shared arguments of `grade` and `estimate`."""
    from bixse.files.files import file_hash

    return {
        "settings": config.model_copy(update={"rubric": config.asked_rubric()}),
        "ledger": config.ledger,
        "prices": config.of(config.model or judge.name),
        "inputs": {} if config.pairs is None else {"pairs": file_hash(config.pairs)},
        "strict": config.strict,
    }


def _pairs(path: Path | None) -> list[Pair]:
    from bixse.data.pairs_files import load_pairs

    if path is None:
        raise InputError("--pairs: got none; expected a file with query and document; fix: name it")
    return load_pairs(path)


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


GRADE = Verb(GradeConfig, GradeOptions, run_grade, first=("judge", "pairs", "rubric", "model", "max_usd"))


class AuditOptions(Options):
    """The output folder."""

    out: Folder = Path("runs/audit")
    """Write audit.json, audit.html and run.json here."""


def run_audit(settings: AuditSettings, options: AuditOptions) -> CommandResult:
    """Read, join and measure the grades, and write the page."""
    from bixse.judging.audit.audit import audit_judges

    result = audit_judges(settings, options.out)
    text = f"{result.report.text()}\n\npage: {result.artifacts['page']}"
    code = 3 if result.report.impossible else 0
    return CommandResult(text, result.report.figures(), result.artifacts, result.warnings, exit_code=code)


AUDIT = Verb(AuditSettings, AuditOptions, run_audit)


class MapOptions(Options):
    """The output folder."""

    out: Folder = Path("runs/grade-map")
    """Write map.json and run.json here."""


def run_calibrate(settings: GradeMapSettings, options: MapOptions) -> CommandResult:
    """Fit a map and measure it on held-out queries. Keep the map only if it helps there."""
    from bixse.judging.audit.calibrate_grades import calibrate_grades

    result = calibrate_grades(settings, options.out)
    text = result.text()
    metrics: dict[str, Any] = {
        **result.map.model_dump()["held_out"],
        "labels": result.map.labels,
        "kept": bool(result.artifacts),
    }
    if not result.artifacts:
        why = (
            "refused, nothing is written: on held-out queries the map does not help (its Brier score is not below "
            "that of the grades as they are and that of a constant); fix: train on the grades as they are, or label "
            "more pairs"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    written = "\n".join(f"{name}: {path}" for name, path in result.artifacts.items())
    return CommandResult(f"{text}\n\n{written}", metrics, result.artifacts, exit_code=3 if result.impossible else 0)


CALIBRATE = Verb(GradeMapSettings, MapOptions, run_calibrate)


class RankOptions(ComputingOptions):
    """The output folder."""

    out: Folder = Path("runs/rank")
    """Write everything here."""


def run_rank(config: RankConfig, options: RankOptions) -> CommandResult:
    """Rank the candidates by a judge's grades, and return the metrics of both orders."""
    from bixse.judging.ask import Budget
    from bixse.judging.rank import rank
    from bixse.progress import progress_bar
    from bixse.report.table import format_difference, format_interval, format_p_value, format_table, format_verdict

    settings = config.model_copy(update={"rubric": config.asked_rubric()})
    judge = config.open()
    try:
        prices = config.of(config.model or judge.name)
        asking = {"prices": prices, "budget": Budget(config.max_usd), "progress": progress_bar, "strict": config.strict}
        result = rank(judge, settings, options.out, **asking)
    finally:
        judge.close()
    before = result.candidate_metrics
    rows: list[list[str | float]] = [
        [name, value, *([before[name]] if before else [])] for name, value in result.metrics.items()
    ]
    headers = ["metric", judge.name, *([f"candidates ({Path(config.candidates).name})"] if before else [])]
    queries = len(next(iter(result.per_query.values())))
    precision = result.summary["precision"]
    computed = f", {precision}" if precision else ""
    lines = [f"{judge.name} ranks {config.collection} ({config.split}, {queries} queries{computed})", ""]
    lines.append(format_table(rows, headers))
    if result.difference is not None:
        found = result.difference
        lines += [
            "",
            f"nDCG@10 {format_difference(found.mean)} {format_interval(found.low, found.high, signed=True)}, "
            f"p {format_p_value(found.p_value)}: {format_verdict(found)}",
        ]
    summary = result.summary
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} from the ledger, {summary['usd']:.4f} US dollars"
    )
    artifacts = {"run": str(options.out / "run.trec"), "record": str(options.out / "run.json")}
    metrics = {**result.metrics, "usd": summary["usd"], "precision": precision}
    warnings = [*judge.warnings, *result.warnings]
    return CommandResult("\n".join(lines), metrics, artifacts, warnings, [], 0 if result.complete else 3)


RANK = Verb(RankConfig, RankOptions, run_rank)
