"""`bixse grade` and its verbs: audit, calibrate and rank."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bixse.audit.audit_settings import AuditSettings, GradeMapSettings
from bixse.cli.verb import FINISHED_BEFORE, CommandResult, ComputingOptions, Options, Output, Verb, waits
from bixse.judging.open_judge import DEFAULT_RUBRIC, GradeConfig, RankConfig
from bixse.judging.rubrics import load_rubric
from bixse.progress import progress_bar
from bixse.rendering.table import format_table


def run_grade(config: GradeConfig, options: ComputingOptions) -> CommandResult:
    """Open the judge, then grade or estimate, and return a summary."""
    from bixse.judging.grade import estimate, grade_into, read_pairs, spending_of

    pairs = read_pairs(config)
    makes_no_folder = options.dry_run and not options.folder.exists()  # then the known questions are not booked
    judge = config.open(None if makes_no_folder else spending_of(options.folder, config.ledger, config.prices))
    doubts: Sequence[str] = () if "--json" in options.words else judge.doubts  # logged already
    with closing(judge):
        if options.dry_run:
            plan = estimate(config, judge, options.folder, pairs)
        else:
            result = grade_into(config, judge, options.folder, pairs, progress_bar)
    warnings = [warning for warning in judge.warnings if warning not in doubts]
    if options.dry_run:
        return CommandResult(plan.text(judge.name), asdict(plan), warnings=warnings)
    text, metrics, artifacts = result.summary.text(judge.name), asdict(result.summary), dict(result.artifacts)
    if "pairs" in artifacts:
        text += "\n" + _next_commands(config, options.folder, artifacts)
    warnings += result.summary.warnings(judge.name, config.prices)
    if result.waiting:
        waiting = waits(result.waiting, warnings, **metrics)
        return replace(waiting, text=f"{waiting.text}\n\n{text}", artifacts=artifacts)
    summary, most = result.summary, config.max_pairs
    as_asked = most is not None and summary.asked == most * config.questions_per_pair
    done = result.complete or (as_asked and summary.graded == summary.pairs)
    return CommandResult(text, metrics, artifacts, warnings, exit_code=0 if done else 3)


def _next_commands(config: GradeConfig, out: Path, artifacts: Mapping[str, str]) -> str:
    """Say how to check the judge, by labels on a page, before its grades are trained on."""
    scale = (config.asked_rubric or load_rubric(DEFAULT_RUBRIC)).scale
    audit = ["--judge", artifacts["judgements"], "--human", out / "labels.jsonl", "--scale"]
    commands = (
        ["bixse", "ui", out, "--pairs", config.pairs],
        ["bixse", "grade", "audit", *audit, f"{scale.minimum:g}", f"{scale.maximum:g}"],
        ["bixse", "train", "--pairs", artifacts["pairs"]],
    )
    page, *others = (shlex.join(map(str, words)) for words in commands)
    return "\n      ".join([f"next: {page}  # label about 60 pairs: is the judge worth training on?", *others])


GRADE = Verb(
    GradeConfig,
    ComputingOptions,
    run_grade,
    out=Output("Folder for pairs.parquet, judgements.parquet, the ledger and run.json.", "runs/grade"),
    dry_run="Print the number of questions, tokens, dollars and hours. No question about your pairs is asked.",
    report=True,
    first=("pairs", "rubric", "judge.name", "judge.model", "prices.max_usd"),
)


def run_audit(settings: AuditSettings, options: Options) -> CommandResult:
    """Read, join and measure the grades, and write the page."""
    from bixse.audit.audit import audit_judges

    result = audit_judges(settings, options.folder)
    text = f"{result.report.text()}\n\npage: {result.artifacts['page']}"
    code = 3 if result.report.impossible else 0
    return CommandResult(text, result.report.figures(), result.artifacts, result.warnings, exit_code=code)


AUDIT = Verb(
    AuditSettings, Options, run_audit, out=Output("Folder for audit.json, audit.html and run.json.", "runs/audit")
)


def run_calibrate(settings: GradeMapSettings, options: Options) -> CommandResult:
    """Fit a map and measure it on held-out queries. Keep the map only if it helps there."""
    from bixse.audit.calibrate_grades import calibrate_grades

    result = calibrate_grades(settings, options.folder)
    text = result.text()
    metrics: dict[str, Any] = {
        **result.map.model_dump()["held_out"],
        "labels": result.map.labels,
        "saved": bool(result.artifacts),
    }
    if not result.artifacts:
        harm = "its Brier score is not below that of the grades as they are and that of a constant"
        reason = f"it cannot be told whether the map helps ({result.map.few})" if result.map.few else harm
        why = (
            f"refused, nothing is written: on held-out queries {reason}; fix: train on the grades as they are, or "
            "label more pairs"
        )
        return CommandResult(text, metrics, warnings=result.warnings, errors=[why], exit_code=1)
    written = "\n".join(f"{name}: {path}" for name, path in result.artifacts.items())
    code = 3 if result.impossible else 0
    return CommandResult(f"{text}\n\n{written}", metrics, result.artifacts, result.warnings, exit_code=code)


CALIBRATE = Verb(
    GradeMapSettings, Options, run_calibrate, out=Output("Folder for map.json and run.json.", "runs/grade-map")
)


def run_rank(config: RankConfig, options: ComputingOptions) -> CommandResult:
    """Rank the candidates by a judge's grades, and return the metrics of their order."""
    from bixse.evaluation.collection_task import collection_task
    from bixse.evaluation.evaluate_files import evaluate
    from bixse.judging.grade import spending_of
    from bixse.lab.rank import GRADES, JudgeSystem

    task = collection_task(config.collection, config.split, min_relevant_grade=config.min_relevant_grade)
    judge = config.open(spending_of(options.folder / GRADES, None, config.prices))
    system = JudgeSystem(config, judge, options.folder, progress_bar)
    with closing(judge):
        result = evaluate(system, task, options.folder, verbose=False)
    summary = system.summary
    computed = f", {result.precision}" if result.precision else ""
    run = options.folder / "run.trec"
    lines = [
        f"{judge.name} ranks {config.collection} ({config.split}, {result.queries}{computed})",
        "",
        format_table([[name, value] for name, value in result.metrics.items()], ["metric", judge.name]),
        f"{summary.asked} questions asked, {summary.reused} from the ledger{summary.cost}",
        f"next: bixse evaluate bm25 {run} --collection {config.collection} --split {config.split}",
    ]
    metrics = {**result.metrics, "usd": summary.usd, "precision": result.precision}
    artifacts = {"run": str(run), "record": str(options.folder / "run.json")}
    warnings = [*judge.warnings, *system.warnings(), *result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    code = 0 if summary.graded == summary.pairs else 3
    return CommandResult("\n".join(lines), metrics, artifacts, warnings, [], code)


RANK = Verb(
    RankConfig, ComputingOptions, run_rank, out=Output("Folder for the ranking, the ledger and run.json.", "runs/rank")
)
