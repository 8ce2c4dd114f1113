"""`bixse evaluate`: score models and BM25 on a collection or on a suite."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from bixse.cli.verb import CommandResult, Folder, Options, Verb, waits
from bixse.data.collection import MissingDocuments
from bixse.errors import InputError
from bixse.lab.suites.known_suites import LOCAL, SUITES
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.scale.index.index_settings import ShardedEncodingSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task


OF_FEW_LABELS = ("grades", "human", "scale")
OF_A_COLLECTION = ("collection", "split", "min_relevant_grade", "exclude_self", "missing_documents", *OF_FEW_LABELS)
OF_A_SUITE = ("data", "tasks", "download", "protocol")


class EvaluateSettings(ShardedEncodingSettings):
    """Settings of `bixse evaluate`.

    Example:
        >>> EvaluateSettings(model="bm25", collection="data").split
        'test'
    """

    model: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="MODEL", positional=True)]
    """Model folder, Hugging Face name, demo (the small model of bixse[demo]) or bm25; several are compared. Or an index
    of the collection: its folder, lancedb:PATH/TABLE or qdrant:URL/COLLECTION. Or a run file (.trec, .run)."""
    suite: str = Field(
        default=LOCAL, description=f"What is evaluated: {LOCAL} (one collection), or a suite: {', '.join(SUITES)}"
    )
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Suite local: folder with corpus.jsonl, queries.jsonl and qrels."""
    split: str = "test"
    """Score against qrels/NAME.tsv."""
    min_relevant_grade: Annotated[float, Flag(metavar="GRADE")] = MIN_RELEVANT_GRADE
    """Lowest grade that is relevant for recall, MRR and MAP; with few labels for precision."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Read only the first TOKENS of a text."""
    exclude_self: bool = False
    """Leave the document that has the query's own id out of its answers, for collections whose queries are also
    documents (ArguAna, Quora)."""
    missing_documents: MissingDocuments = "refuse"
    """Judgements that name a document which the corpus lacks: stop, or leave them out and count them."""
    grades: Annotated[Path | None, Flag(metavar="FILE")] = None
    """With --human, instead of qrels: a judge's grades of all pairs (pairs.parquet, judgements.parquet or qrels)."""
    human: Annotated[Path | None, Flag(metavar="FILE")] = None
    """With --grades: people's labels of a sample of these pairs (a table with a column probability, or qrels)."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """With --human: lowest and highest grade of the labels; null: the lowest to the highest label found."""
    data: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Other suites: folder with a collection folder for each task, or TREC's official files."""
    tasks: Annotated[tuple[str, ...] | None, Flag(metavar="TASK")] = None
    """Other suites: run only these tasks (TREC: years)."""
    download: bool = False
    """Other suites: fetch from the hub what is missing."""
    exact: bool = False
    """Of an index: score every document, whatever its type."""
    model_at: str | None = None
    """Of an index: its model, where that has moved."""
    protocol: Literal["judged", "full"] = "judged"
    """Suite trec-dl: search the judged passages or the full corpora."""

    @property
    def encodes_in_shards(self) -> bool:
        """True if an engine encodes the corpus before the search."""
        return self.engine != "local" or self.shards is not None

    @model_validator(mode="after")
    def _shards_of_a_collection(self) -> Self:
        if self.encodes_in_shards and (self.suite != LOCAL or self.grades is not None):
            raise ValueError("got engine or shards with a suite or grades; expected them with a collection alone; fix: "
                             "evaluate the collection by itself, and with grades its run")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _of_the_suite(self) -> Self:
        if self.task is not None and self.model == ("bm25",):
            raise ValueError("got a task for bm25, which takes no instructions; expected none; fix: leave the task out")
        if self.suite == LOCAL:
            self._refuse(OF_A_SUITE, "collection alone", "leave it out, or name a suite")
            if (self.grades is None) != (self.human is None) or (self.scale and self.human is None):
                given = [f"--{name}" for name in OF_FEW_LABELS if getattr(self, name) is not None]
                raise ValueError(f"got {', '.join(given)} alone; expected --grades and --human; fix: give both")
            if self.collection is None and self.grades is None:
                raise ValueError("got no collection; expected its folder, or another suite; fix: name one of the two")
        else:
            self._refuse(OF_A_COLLECTION, "data alone: the tasks of a suite have their own", "leave it out")
            if self.suite != "trec-dl":
                self._refuse(("protocol",), "it for trec-dl alone", "leave it out")
        return self

    def _refuse(self, names: tuple[str, ...], expected: str, fix: str) -> None:
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"got {', '.join(given)} for suite {self.suite}; expected {expected}; fix: {fix}")


class EvaluateOptions(Options):
    """Options of `bixse evaluate`."""

    out: Folder | None = None
    """Write records, runs and values of every query here; the same command then goes on where it was stopped."""


def run(settings: EvaluateSettings, options: EvaluateOptions) -> CommandResult:
    """Search, score, and return tables."""
    from bixse.evaluation.systems import open_system
    from bixse.scale.index.index_system import IndexSystem

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
    from bixse.evaluation.tasks import collection_task
    from bixse.progress import progress_bar
    from bixse.scale.index.index_system import encoded_in_shards

    assert settings.collection is not None
    chosen = settings.model_dump(include={"split", "exclude_self", "min_relevant_grade", "missing_documents"})
    task = collection_task(settings.collection, **chosen)
    if not settings.encodes_in_shards:
        return _on_task(settings, systems, task, out)
    if out is None:
        raise InputError("--engine or --shards: got no --out; expected a folder that all machines share; fix: name it")
    with encoded_in_shards(systems, task, out, settings, progress_bar) as (sharded, waiting):
        return waits(waiting) if waiting else _on_task(settings, sharded, task, out)


def _on_task(settings: EvaluateSettings, systems: Sequence[System], task: Task, out: Path | None) -> CommandResult:
    from bixse.lab.suites.suite_run import compare_on_task
    from bixse.progress import progress_bar

    result = compare_on_task(systems, task, out, progress_bar)
    heading = f"{settings.collection} ({settings.split}, {len(task.query_sets[0].queries)} queries"
    metrics, names = result.plain(), {"results": "results.json"}
    if len(systems) == 1:
        precision = {"precision": result.precision} if result.precision else {}
        heading = f"{systems[0].label} on {heading}{''.join(f', {name}' for name in precision.values())}"
        metrics = {**result.scores[systems[0].label][task.name].metrics, **precision}
        names = {"run": "run.trec", "record": "run.json"}
    artifacts = {name: str(out / file) for name, file in names.items()} if out else {}
    return CommandResult(f"{heading})\n\n{result.collection_text()}", metrics, artifacts, list(task.warnings))


def _from_few_labels(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.evaluation.evaluate import evaluate
    from bixse.evaluation.systems import RunFileSystem, check_distinct
    from bixse.evaluation.tasks import graded_task
    from bixse.files.files import write_atomically
    from bixse.judging.audit.few_labels import evaluate_few_labels
    from bixse.judging.audit.labels import impossible_lines, read_labels
    from bixse.progress import progress_bar
    from bixse.relevance import GradeScale

    assert settings.grades is not None and settings.human is not None
    searched = [system.label for system in systems if not isinstance(system, RunFileSystem)]
    if settings.collection is None and searched:
        raise InputError(
            f"{searched[0]}: got no collection to search; expected --collection DIR, or run files alone; fix: add it"
        )
    check_distinct(systems)
    human = read_labels(settings.human, GradeScale(*settings.scale) if settings.scale else None)
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
        write_atomically(out / "few_labels.json", json.dumps(asdict(found), indent=1) + "\n")
    low, high = human.scale.minimum, human.scale.maximum
    warnings = [] if settings.scale else [f"the scale {low:g} to {high:g} is that of the labels found; state --scale"]
    wrong = (*human.impossible, *judge.impossible)
    text = "\n".join([found.text(), *impossible_lines(wrong)])
    return CommandResult(text, asdict(found), artifacts, warnings, exit_code=3 if wrong else 0)


def _on_suite(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.lab.suites.suite_run import OUT_FOLDER, evaluate_suite
    from bixse.progress import progress_bar

    chosen = settings.model_dump(include={"suite", "data", "tasks", "download", "protocol"})
    result = evaluate_suite(systems, out=out, progress=progress_bar, **chosen)
    kept = out or (OUT_FOLDER / settings.suite if SUITES[settings.suite].engine == "mteb" else None)
    artifacts = {"results": str(kept / "results.json"), "record": str(kept / "run.json")} if kept else {}
    code = 3 if result.failures else 0
    return CommandResult(result.text(), result.plain(), artifacts, list(result.notes), exit_code=code)


VERB = Verb(EvaluateSettings, EvaluateOptions, run)
