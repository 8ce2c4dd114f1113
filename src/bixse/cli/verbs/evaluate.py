"""`bixse evaluate`: score models and BM25 on a collection or on a whole suite."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult
from bixse.cli.verb import Folder, Options, Verb
from bixse.errors import InputError
from bixse.evaluation.evaluate_settings import EvaluateSettings
from bixse.evaluation.suites.known_suites import LOCAL, SUITES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.evaluation.systems import System


class EvaluateOptions(Options):
    """Where results go."""

    out: Folder | None = None
    """Write records, runs and values of every query here; the same command then goes on where it was stopped."""


def run(settings: EvaluateSettings, options: EvaluateOptions) -> CommandResult:
    """Search, score, print tables."""
    from bixse.evaluation.systems import IndexSystem, open_system

    devices, warnings = settings.chosen_devices()
    shared = settings.model_dump(include={"max_length", "task", "cache", "exact", "model_at"})
    systems = [open_system(model, devices=devices, **shared) for model in settings.model]
    if (settings.exact or settings.model_at) and not any(isinstance(system, IndexSystem) for system in systems):
        raise InputError(
            f"--exact or --model-at: got it for {', '.join(settings.model)}; expected an index among them; fix: leave "
            "it out"
        )
    work = _on_collection if settings.suite == LOCAL else _on_suite
    result = work(settings, systems, options.out)
    return replace(result, warnings=[*warnings, *result.warnings])


def _on_collection(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.evaluation.evaluate import evaluate
    from bixse.evaluation.suites.suite_result import collection_text, metrics_text
    from bixse.evaluation.suites.suite_run import compare_on_task
    from bixse.evaluation.tasks import collection_task
    from bixse.progress import progress_bar

    assert settings.collection is not None
    chosen = settings.model_dump(include={"split", "exclude_self", "min_relevant_grade", "missing_documents"})
    task = collection_task(settings.collection, **chosen)
    where = f"{settings.collection} ({settings.split}, {len(task.query_sets[0].queries)} queries"
    if len(systems) > 1:
        result = compare_on_task(systems, task, out, progress_bar)
        artifacts = {"results": str(out / "results.json")} if out else {}
        text = f"{where})\n\n{collection_text(result)}"
        return CommandResult(text, result.plain(), artifacts, list(task.warnings))
    found = evaluate(systems[0], task, out, progress_bar)
    precision = {"precision": found.precision} if found.precision else {}
    artifacts = {"run": str(out / "run.trec"), "record": str(out / "run.json")} if out else {}
    heading = f"{systems[0].label} on {where}{''.join(f', {name}' for name in precision.values())})"
    text = f"{heading}\n\n{metrics_text(found)}"
    return CommandResult(text, {**found.metrics, **precision}, artifacts, list(task.warnings))


def _on_suite(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.evaluation.suites.suite_result import suite_text
    from bixse.evaluation.suites.suite_run import OUT_FOLDER, evaluate_suite
    from bixse.progress import progress_bar

    chosen = settings.model_dump(include={"suite", "data", "tasks", "download", "protocol"})
    result = evaluate_suite(systems, out=out, progress=progress_bar, **chosen)
    kept = out or (OUT_FOLDER / settings.suite if SUITES[settings.suite].engine == "mteb" else None)
    artifacts = {"results": str(kept / "results.json"), "record": str(kept / "run.json")} if kept else {}
    code = 3 if result.failures else 0
    return CommandResult(suite_text(result), result.plain(), artifacts, list(result.notes), exit_code=code)


VERB = Verb(EvaluateSettings, EvaluateOptions, run)
