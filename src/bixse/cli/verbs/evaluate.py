"""`bixse evaluate`: score models and BM25 on a collection or on a whole suite."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult, waits
from bixse.cli.verb import Folder, Options, Verb
from bixse.errors import InputError
from bixse.evaluation.evaluate_settings import EvaluateSettings
from bixse.evaluation.suites.known_suites import LOCAL, SUITES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task


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
    work = _on_suite if settings.suite != LOCAL else _from_few_labels if settings.grades else _on_collection
    result = work(settings, systems, options.out)
    return replace(result, warnings=[*warnings, *result.warnings])


def _on_collection(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.evaluation.encode_in_shards import encoded_in_shards
    from bixse.evaluation.tasks import collection_task
    from bixse.progress import progress_bar

    assert settings.collection is not None
    chosen = settings.model_dump(include={"split", "exclude_self", "min_relevant_grade", "missing_documents"})
    task = collection_task(settings.collection, **chosen)
    if not settings.encodes_in_shards:
        return _on_task(settings, systems, task, out)
    if out is None:
        raise InputError("--engine or --shards: got no --out; expected a folder that all machines share; fix: name it")
    places = {out / system.name if len(systems) > 1 else out: system for system in systems}
    with encoded_in_shards(places, task, out, settings, progress_bar) as waiting:
        return waits(waiting) if waiting else _on_task(settings, systems, task, out)


def _on_task(settings: EvaluateSettings, systems: Sequence[System], task: Task, out: Path | None) -> CommandResult:
    from bixse.evaluation.evaluate import evaluate
    from bixse.evaluation.suites.suite_result import collection_text, metrics_text
    from bixse.evaluation.suites.suite_run import compare_on_task
    from bixse.progress import progress_bar

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


def _from_few_labels(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.data.io.files import write_atomically
    from bixse.evaluation.evaluate import evaluate
    from bixse.evaluation.few_labels.evaluate_few_labels import evaluate_few_labels
    from bixse.evaluation.few_labels.few_labels_text import few_labels_text
    from bixse.evaluation.systems import RunFileSystem, check_distinct
    from bixse.evaluation.tasks import graded_task
    from bixse.grading.audit.labels import impossible_lines, read_labels
    from bixse.progress import progress_bar
    from bixse.relevance import GradeScale

    assert settings.grades is not None and settings.human is not None
    searched = [system.label for system in systems if not isinstance(system, RunFileSystem)]
    if settings.collection is None and searched:
        raise InputError(
            f"{searched[0]}: got no collection to search; expected --collection DIR, or run files alone; fix: add it"
        )
    check_distinct(systems)
    human = read_labels(settings.human, GradeScale(*settings.scale) if settings.scale else None, sampled=True)
    judge = read_labels(settings.grades, otherwise=human.scale)
    qrels: dict[str, dict[str, float]] = {}
    for (query, document), relevance in judge.relevance.items():
        qrels.setdefault(query, {})[document] = relevance
    task = graded_task(qrels, settings.grades, settings.collection, settings.exclude_self)
    runs = {own.label: evaluate(own, task, out / own.name if out else None, progress_bar).run for own in systems}
    found = evaluate_few_labels(
        runs,
        judge.relevance,
        human.relevance,
        human.probability,
        relevant_from=human.scale.to_relevance(settings.min_relevant_grade),
    )
    artifacts = {"results": str(out / "few_labels.json")} if out else {}
    if out:
        write_atomically(out / "few_labels.json", json.dumps(found.plain(), indent=1) + "\n")
    low, high = human.scale.minimum, human.scale.maximum
    warnings = [] if settings.scale else [f"the scale {low:g} to {high:g} is that of the labels found; state --scale"]
    wrong = (*human.impossible, *judge.impossible)
    text = "\n".join([few_labels_text(found), *impossible_lines(wrong)])
    return CommandResult(text, found.plain(), artifacts, warnings, exit_code=3 if wrong else 0)


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
