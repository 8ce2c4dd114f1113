"""Evaluate systems on a suite: what lacks is said first, what is finished is read, the rest is run and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run_record import open_run
from bixse.errors import BixseError, InputError
from bixse.evaluation.suites.known_suites import Suite, suite_named
from bixse.evaluation.suites.suite_plan import Plan, make_plan
from bixse.evaluation.suites.suite_result import (
    HEADLINE,
    SuiteResult,
    TaskScore,
    group_means,
    headline_values,
    mean_of,
)
from bixse.evaluation.suites.suite_systems import EncoderSystem, System, check_distinct, make_system, precision_of
from bixse.evaluation.suites.suite_verdict import SuiteDifference, compare_systems
from bixse.evaluation.suites.task_run import run_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.evaluation.trec_dl.protocols import Protocol
    from bixse.progress import ProgressBars

OUT_FOLDER = Path("runs") / "evaluation"
"""Below it a suite that mteb runs is kept when no folder is given: mteb needs one."""
ZERO_SHOT_EXCEPT = "MSMARCO"
"""The task of BEIR that is left out of its zero-shot mean."""


def evaluate_suite(
    models: Sequence[str],
    suite: str,
    data: str | Path | None = None,
    out: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    download: bool = False,
    max_length: int | None = None,
    task: str | None = None,
    protocol: Protocol = "judged",
    trust_remote_code: bool = False,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
) -> SuiteResult:
    """Evaluate models on a suite, with a verdict for every pair of them.

    Before a model is loaded every missing data set is listed with the command that brings it. With `out`, every
    finished task is kept: called again, also with more models, only what is not there is run.

    Args:
        models: model folders, hub names, "demo" or "bm25".
        suite: a name in `bixse.evaluation.suites.known_suites.SUITES`.
        data: folder with a collection folder for each task, or with the official TREC files.
        out: folder for results; None writes nothing (mteb's suites: runs/evaluation/<suite>).
        tasks: run only these; years for TREC.
        download: fetch from the hub what `data` lacks.
        max_length: tokens of a text that are read; None keeps the model's own.
        task: task whose instructions stand before all texts; None: each task's own.
        protocol: what is searched in the suite trec-dl.
        trust_remote_code: run code that comes with a model.
        progress: makes a progress callback from a title and a total.
        devices: where texts are encoded: one device, or one a process, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"].

    Raises:
        InputError: no such suite or task, data that lack or cannot be used, a model twice.
        ModelError: a model cannot be used.
        OutputExistsError: `out` holds another evaluation.
        StorageError: `out` cannot be written.

    Example:
        >>> import tempfile
        >>> from bixse import evaluate_suite
        >>> from bixse.data.collection import Collection, Document
        >>> from bixse.data.collection_files import save_collection
        >>> corpus = {"d1": Document("copy", "copies a file"), "d2": Document("sort", "sorts a list")}
        >>> toy = Collection("SciFact", corpus, {"q1": "copy a file"}, {"test": {"q1": {"d1": 1}}})
        >>> data = Path(tempfile.mkdtemp())
        >>> save_collection(toy, data / "SciFact")
        >>> result = evaluate_suite(["bm25"], "beir", data, tasks=["SciFact"])
        >>> result.means["bm25"]["mean over tasks"]
        1.0

        All of BEIR, a model against BM25::

            result = evaluate_suite(["runs/quickstart/bixse/model", "bm25"], "beir", "data/beir", "runs/beir")
            [(found.a, found.b, found.verdict) for found in result.comparisons]
    """
    chosen = suite_named(suite)
    folder = Path(data) if data is not None else None
    kept = Path(out) if out is not None else (OUT_FOLDER / suite if chosen.engine == "mteb" else None)
    if not models:
        raise InputError("models: got none; expected at least one; fix: name a model folder, a hub name or bm25")
    plan = make_plan(chosen, folder, tasks, download, protocol)
    settings = {"suite": suite, "max_length": max_length, "instructions": task}
    if chosen.engine == "trec-dl":
        settings["protocol"] = protocol
    if kept is not None:
        root = open_run(kept, "evaluate", settings, {})
    systems = [make_system(model, max_length, task, trust_remote_code, devices) for model in models]
    check_distinct(systems)
    _check_systems(chosen, systems, plan)
    if kept is not None:
        root.save("running")
    scores: dict[str, dict[str, TaskScore]] = {}
    failures: dict[str, str] = {}
    for system in systems:
        scores[system.name], failed = _run_system(chosen, system, plan, kept, folder, settings, download, progress)
        failures |= {f"{system.label}: {name}": why for name, why in failed.items()}
        system.release()
    result = _result(chosen, plan, systems, scores, failures, folder, protocol)
    if kept is not None:
        root.results = result.plain()
        result.write(kept)
        root.save("failed" if failures else "finished")
    return result


def _check_systems(suite: Suite, systems: Sequence[System], plan: Plan) -> None:
    """Say what cannot work before the first task is run: wrong models, tasks without instructions."""
    for system in systems:
        if isinstance(system, EncoderSystem):
            for source in plan.sources:
                system.check_instructions(source.instruction_names)
            if plan.tasks:
                from bixse.evaluation.mteb.mteb_model import mteb_prompts

                mteb_prompts(system.encoder, plan.tasks, system.task)
            if len(systems) > 1:  # one model in memory at a time
                system.release()
        elif suite.engine == "mteb":
            from bixse.evaluation.mteb.mteb_tasks import not_retrieval

            others = not_retrieval(plan.tasks)
            if others:
                raise InputError(
                    f"{system.label}: got {len(others)} tasks that are no retrieval, such as {others[0]}; expected an "
                    "encoder for them; fix: leave it out, or name tasks of retrieval with --tasks"
                )


def _run_system(
    suite: Suite,
    system: System,
    plan: Plan,
    out: Path | None,
    data: Path | None,
    settings: Mapping[str, Any],
    download: bool,
    progress: ProgressBars | None,
) -> tuple[dict[str, TaskScore], dict[str, str]]:
    """One system on all tasks: task -> score, and task -> why it failed."""
    if suite.engine == "mteb" and out is not None:
        from bixse.evaluation.mteb.mteb_suite import run_mteb

        step = progress(f"{system.label}: tasks", len(plan.tasks)) if progress is not None else None
        return run_mteb(system, plan.tasks, out, data, settings, download, None if step is None else lambda _: step(1))
    scores = [score for source in plan.sources for score in run_task(system, source, out, settings, progress)]
    return {score.task: score for score in scores}, {}


def _result(
    suite: Suite,
    plan: Plan,
    systems: Sequence[System],
    scores: Mapping[str, Mapping[str, TaskScore]],
    failures: Mapping[str, str],
    data: Path | None,
    protocol: Protocol,
) -> SuiteResult:
    """Means, comparisons and notes."""
    from bixse.evaluation.mteb.mteb_suite import MAIN

    labels = {system.name: system.label for system in systems}
    shown = {name: label if list(labels.values()).count(label) == 1 else name for name, label in labels.items()}
    headline = MAIN if suite.engine == "mteb" else HEADLINE
    named = {shown[name]: found for name, found in scores.items()}
    notes = [suite.note] if suite.note else []
    if plan.years and data is not None:
        from bixse.evaluation.trec_dl.protocols import trec_notes

        notes += trec_notes(data, plan.years, "rerank" if suite.engine == "trec-dl-rerank" else protocol)
    comparisons: list[SuiteDifference] = []
    try:
        comparisons = _compare(named, grouped=suite.engine != "mteb")
    except BixseError as error:
        notes.append(f"systems are not compared: {error}")
    means = {name: _means(suite, found, headline) for name, found in named.items()}
    return SuiteResult(
        suite.name, headline, named, means, tuple(comparisons), tuple(notes), failures, precision_of(systems)
    )


def _means(suite: Suite, scores: Mapping[str, TaskScore], headline: str) -> dict[str, float]:
    """The means of a suite over its tasks."""
    if not scores:
        return {}
    if suite.engine in ("trec-dl", "trec-dl-rerank"):
        from bixse.evaluation.trec_dl.protocols import trec_means

        return trec_means(scores, headline)
    if suite.engine == "mteb":
        over_tasks = mean_of({name: score.metrics[headline] for name, score in scores.items()})
        return {"mean over tasks": over_tasks, "mean over types": mean_of(group_means(scores, headline))}
    groups = group_means(scores, headline)
    means = {"mean over tasks": mean_of(groups)}
    zero_shot = {name: value for name, value in groups.items() if name != ZERO_SHOT_EXCEPT}
    if zero_shot and len(zero_shot) < len(groups):
        means["mean, zero-shot"] = mean_of(zero_shot)
    return means


def _compare(scores: Mapping[str, Mapping[str, TaskScore]], grouped: bool) -> list[SuiteDifference]:
    """Every pair of systems on the tasks that all of them have; groups count as one where the suite's mean does so."""
    from bixse.evaluation.trec_dl.protocols import WITHOUT

    if len(scores) < 2:
        return []
    values = {name: headline_values(found) for name, found in scores.items()}
    common = [
        task
        for task in next(iter(values.values()))
        if all(task in found for found in values.values()) and not task.endswith(WITHOUT)
    ]
    if not common:
        return []
    groups = {task: score.group for task, score in next(iter(scores.values())).items()} if grouped else None
    return compare_systems({name: {task: found[task] for task in common} for name, found in values.items()}, groups)
