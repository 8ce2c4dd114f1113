"""Open a system by what a user has: the name of a model, an index, a run file, or an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bixse.data.joined import DROP_MISSING, Unjoined, check_joined, doubt_ranks, unanswered
from bixse.data.trec import read_run
from bixse.encoders.loading.kinds import is_encoder
from bixse.errors import InputError, shorten
from bixse.evaluation.systems import HASH_DIGITS, Bm25System, EncoderSystem, FunctionSystem, System
from bixse.extensions import extension
from bixse.files.files import file_hash, json_hash
from bixse.relevance import ranked
from bixse.search.bm25 import BM25_NAME
from bixse.search.tasks import best_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.relevance import Ranking
    from bixse.search.tasks import CountStep, RunBlocks, Task

SystemSource: TypeAlias = "str | Path | SentenceTransformer | Ranking | Callable[[str], Any] | System"
RUN_NAME = "run.trec"
RUN_SUFFIXES = (".trec", ".run")


class RunFileSystem(System):
    """An existing ranking from a TREC run file, or query id -> document id -> score; nothing is searched."""

    def __init__(self, run: str | Path | Ranking) -> None:
        self.held = None if isinstance(run, str | Path) else run
        self.label = str(run) if self.held is None else "run"
        self.path = Path(self.label)

    @cached_property
    def inputs(self) -> dict[str, str]:
        return {"run": file_hash(self.path) if self.held is None else json_hash(self.held)}

    @cached_property
    def _read(self) -> tuple[Ranking, list[str]]:
        """The run, and its queries whose ranks contradict their scores."""
        contradicted: list[str] = []
        return self.held or read_run(self.path, contradicted), contradicted

    def check_answers(self, task: Task, refuse: bool) -> list[str]:
        """Join the run with the queries, judgements and documents of a task."""
        run, contradicted = self._read
        warnings = doubt_ranks(self.path, contradicted, run)
        answers = {query for part in task.query_sets for query in part.queries if query in run}
        if not answers:
            return warnings  # `search` names a query of both sides
        named = dict.fromkeys(name for query in answers for name in run[query])
        known = task.known(named.keys())
        documents = Unjoined.of("documents of the run that the corpus lacks", named, known)
        queries = [unanswered(part.queries, run) for part in task.query_sets]
        fix = f"name the run of this collection and split (to score it anyway: {DROP_MISSING})"
        allowed = not refuse or task.settings.get("missing_documents") != "refuse"  # suites have no such setting
        check_joined(self.path, queries, fix, allowed)
        if task.is_part and known:
            return warnings
        return warnings + check_joined(self.path, [documents], fix, allowed)

    @property
    def name(self) -> str:
        """The name of the file, and the first digits of its hash."""
        return f"{'-'.join(self.path.stem.split())}-{self.inputs['run'][:HASH_DIGITS]}"

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        run, _ = self._read
        for query_set in task.query_sets:
            if run and not any(query in run for query in query_set.queries):
                raise InputError(
                    f"{self.path}: got queries such as {next(iter(run))!r}; expected queries of {query_set.name}, such "
                    f"as {next(iter(query_set.queries))!r}; fix: use the run and the judgements of one collection and "
                    "split"
                )
            answered = {query: run[query] for query in query_set.queries if query in run}
            best = {query: {name: hits[name] for name in ranked(hits)} for query, hits in answered.items()}
            yield query_set.name, best_of(best, depth, frozenset(), task.exclude_self)
        if progress is not None:
            progress(task.count)

    def release(self) -> None:
        """Forget the run, which is read again on demand."""
        vars(self).pop("_read", None)


def open_system(model: SystemSource, exact: bool = False, **options: Any) -> System:
    """Return a system by its user-given name, or a loaded model, a run in memory or a function as a system.

    `exact` is an argument of an index, `options` are those of `EncoderSystem`. Raise InputError for other objects.
    """
    if isinstance(model, System):
        return model
    if isinstance(model, Mapping) and model and all(isinstance(scores, Mapping) for scores in model.values()):
        return RunFileSystem(model)
    if model == BM25_NAME:
        return Bm25System()
    # a model of torch can be called too
    if callable(model) and not isinstance(model, type) and not hasattr(model, "state_dict"):
        return FunctionSystem(model)
    if not (isinstance(model, str | Path) or is_encoder(model)):
        raise InputError(
            f"system: got {shorten(model if isinstance(model, dict) else type(model).__name__)}; expected a model "
            "(name, folder, SentenceTransformer), bm25, a run {query: {document: score}}, a function of a query's text "
            "or a System; fix: pass one"
        )
    if isinstance(model, (str, Path)):
        if path := run_file(Path(model)):
            return RunFileSystem(path)
        indexed: System | None = extension("index")(model, options.get("task"), exact)
        if indexed is not None:
            return indexed
    return EncoderSystem(model, **options)


def run_file(path: Path) -> Path | None:
    """Return the TREC run at a path with one of `RUN_SUFFIXES` or in a folder of `bixse evaluate`; else None."""
    file = path / RUN_NAME if path.is_dir() else path
    return file if file.suffix in RUN_SUFFIXES and file.is_file() else None
