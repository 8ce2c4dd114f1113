"""What is evaluated: encoders, indexes and BM25, each with a name that says which checkpoint it is."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.trec import ranked, read_run
from bixse.encoders.encode import encode_on
from bixse.encoders.identity import embeddings_key, model_hashes
from bixse.encoders.instructions import prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder, demo_model_path
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.block_search import search_blocks
from bixse.extensions import extension
from bixse.files.files import file_hash
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.tasks import Task
    from bixse.relevance import Ranking

HASH_DIGITS = 8
RUN_NAME = "run.trec"
"""The run in an output folder of `bixse evaluate`."""
RUN_SUFFIXES = (".trec", ".run")
"""Files that are read as runs."""
MOST_KEPT = 1_000_000
"""The embeddings of a larger corpus are kept only in a cache folder that was named."""


class System:
    """Something that answers queries: a subclass with a `label` and a `search` can be evaluated."""

    label: str
    prompts_hash: str | None = None
    """Of the prompts of the last search; None where there are none."""

    @property
    def name(self) -> str:
        """A word for folders, another one for each checkpoint."""
        return self.label

    @property
    def settings(self) -> Mapping[str, Any]:
        """For the record of a run; "model" may be a path."""
        return {"model": self.label}

    @property
    def inputs(self) -> Mapping[str, str]:
        """File -> hash of its content."""
        return {}

    @property
    def precision(self) -> str | None:
        """What a model computes in; None without one."""
        return None

    def check(self, instructions: Sequence[str]) -> None:
        """Raise InputError, before any other work, where a task with these names of instructions cannot be run."""

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> Mapping[str, Ranking]:
        """Name of each query set -> run; arguments as for `bixse.evaluation.block_search.search_blocks`."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the memory that can be filled again."""


class EncoderSystem(System):
    """A checkpoint, loaded when it is first needed, or a model in memory.

    Args:
        model: model folder, hub name, "demo", or a loaded model.
        max_length: tokens of a text that are read; None keeps the model's own. Of a loaded model it is not changed.
        task: task of the model's table whose instructions stand before all texts; None chooses by the evaluated task.
        trust_remote_code: run code that comes with the model.
        devices: one device, or one per process, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"]; None: here.
        cache: folder in which document embeddings are kept, or "none"; None: see `bixse.files.cache.cache_folder`
            (corpora of more than a million documents are then not kept).

    Example:
        The first 64 tokens, on two processes::

            system = EncoderSystem("runs/quickstart/bixse/model", max_length=64, devices=["cpu", "cpu"])
            evaluate(system, "runs/quickstart/collection").metrics
    """

    def __init__(
        self,
        model: str | Path | SentenceTransformer,
        max_length: int | None = None,
        task: str | None = None,
        trust_remote_code: bool = False,
        devices: Sequence[str] | None = None,
        cache: str | Path | None = None,
    ) -> None:
        self.label = str(model) if isinstance(model, (str, Path)) else "model"
        self.max_length = max_length
        self.task = task
        self.trust_remote_code = trust_remote_code
        self.devices = devices
        self.cache = cache
        self._placed = ExitStack()
        self._given = None if isinstance(model, (str, Path)) else model
        self._loaded: SentenceTransformer | None = None

    @property
    def encoder(self) -> SentenceTransformer:
        if self._loaded is None:
            self._loaded = self._given
            if self._loaded is None:
                self._loaded = build_encoder(self.label, self.max_length, trust_remote_code=self.trust_remote_code)
            self._placed.enter_context(encode_on(self._loaded, self.devices))
        return self._loaded

    @cached_property
    def weights(self) -> str:
        """Hash of everything that embeddings depend on except the texts: weights, tokenizer, prompts, lengths."""
        content = f"{embeddings_key(self.encoder)} {prompts_hash(self.encoder)}"
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Of a hub name or a loaded model the hash of what is loaded."""
        files = {}
        if self._given is None:
            files = model_hashes(demo_model_path() if self.label == "demo" else self.label)
        return files or {"weights": self.weights}

    @property
    def name(self) -> str:
        """The last part of path or hub name, and the beginning of the checkpoint's hash."""
        digest = hashlib.sha256(repr(sorted(self.inputs.items())).encode()).hexdigest()
        words = "-".join((Path(self.label).name or "model").split())
        return f"{words}-{digest[:HASH_DIGITS]}"

    @property
    def precision(self) -> str:
        here = None if self._given is None else self._given.device
        return resolve_precision(device=self.devices[0] if self.devices else here)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": self.label,
            "max_length": self.max_length,
            "instructions": self.task,
            "precision": self.precision,
        }

    def check(self, instructions: Sequence[str]) -> None:
        with self._instructed(instructions):
            prompt_for(self.encoder, "query")

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> dict[str, Ranking]:
        with self._instructed(task.instructions):
            self.prompts_hash = prompts_hash(self.encoder)
            return self.find(task, depth, partial, progress)

    def find(
        self, task: Task, depth: int, partial: Path | None, progress: Callable[[int], None] | None
    ) -> dict[str, Ranking]:
        """Search as `search` does, once the instructions of the task are in place; a subclass may search elsewhere."""
        return search_blocks(EmbeddingStore(self.encoder, self.cache_for(task)), task, depth, partial, progress)

    def cache_for(self, task: Task) -> str | Path | None:
        """Folder in which the embeddings of a task's documents are kept, or "none"; None: the usual one."""
        return "none" if self.cache is None and task.count > MOST_KEPT else self.cache

    def release(self) -> None:
        """A checkpoint is loaded again when it is needed."""
        self._placed.close()
        self._loaded = None

    @contextmanager
    def _instructed(self, instructions: Sequence[str]) -> Iterator[None]:
        with instructions_of(self.encoder, (self.task,) if self.task else instructions, must=bool(self.task)):
            yield


class Bm25System(System):
    """The word-matching baseline: it holds the corpus in memory and takes no instructions."""

    label = BM25_NAME

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> dict[str, Ranking]:
        """Sets that search the same documents share an index."""
        corpus = dict(task.documents())
        indexes: dict[frozenset[str], BM25] = {}
        runs: dict[str, Ranking] = {}
        for own in task.query_sets:
            if own.left_out not in indexes:
                kept = {name: text for name, text in corpus.items() if name not in own.left_out}
                indexes[own.left_out] = BM25(list(kept), list(kept.values()))
            index = indexes[own.left_out]
            if own.candidates is None:
                runs[own.name] = index.search(own.queries, depth, task.exclude_self)
                continue
            scores = index.search(own.queries, len(index.document_ids))
            runs[own.name] = {
                query: {name: scores[query].get(name, 0.0) for name in own.candidates.get(query, ())}
                for query in own.queries
            }
        if progress is not None:
            progress(task.count)
        return runs


class RunFileSystem(System):
    """A ranking that exists already, as a TREC run file: nothing is searched."""

    def __init__(self, path: str | Path) -> None:
        self.label, self.path = str(path), Path(path)

    @cached_property
    def inputs(self) -> dict[str, str]:
        return {"run": file_hash(self.path)}

    @property
    def name(self) -> str:
        """The file's own name, and the beginning of its hash."""
        return f"{'-'.join(self.path.stem.split())}-{self.inputs['run'][:HASH_DIGITS]}"

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> dict[str, Ranking]:
        """The best documents of the task's queries.

        Raises:
            InputError: the run answers none of them.
        """
        run = read_run(self.path)
        runs: dict[str, Ranking] = {}
        for own in task.query_sets:
            if run and not any(query in run for query in own.queries):
                raise InputError(
                    f"{self.path}: got queries such as {next(iter(run))!r}; expected those of {own.name}, such as "
                    f"{next(iter(own.queries))!r}; fix: use the run and the judgements of one collection and split"
                )
            runs[own.name] = {
                query: {name: run[query][name] for name in self._best(run, query, depth, task.exclude_self)}
                for query in own.queries
                if query in run
            }
        if progress is not None:
            progress(task.count)
        return runs

    @staticmethod
    def _best(run: Ranking, query: str, depth: int, exclude_self: bool) -> list[str]:
        return [name for name in ranked(run[query]) if not (exclude_self and name == query)][:depth]


def open_system(
    model: str | Path | SentenceTransformer | System, exact: bool = False, model_at: str | None = None, **options: Any
) -> System:
    """A system by the name that a user gives, or of a loaded model.

    `exact` and `model_at` are those of `IndexSystem`, `options` those of `EncoderSystem`.
    """
    if isinstance(model, System):
        return model
    if isinstance(model, (str, Path)):
        indexed: System | None = extension("index")(model, options.get("task"), exact, model_at)
        if indexed is not None:
            return indexed
        if path := run_file(Path(model)):
            return RunFileSystem(path)
    return Bm25System() if model == BM25_NAME else EncoderSystem(model, **options)


def run_file(path: Path) -> Path | None:
    """The TREC run of a file with one of `RUN_SUFFIXES` or of an output folder of `bixse evaluate`; else None."""
    found = path / RUN_NAME if path.is_dir() else path
    return found if found.suffix in RUN_SUFFIXES and found.is_file() else None


@contextmanager
def instructions_of(encoder: SentenceTransformer, names: Sequence[str], must: bool = False) -> Iterator[str | None]:
    """Encode with the instructions of the first name that the model's table holds; afterwards as before.

    Gives that name, or None for the model's default. Case does not matter, unless `must`: then a table without the
    first name is refused.
    """
    table = getattr(encoder, "instructions", None)
    known = {name.casefold(): name for name in (table.tasks if table is not None else ())}
    chosen = names[0] if must else next((known[name.casefold()] for name in names if name.casefold() in known), None)
    prompts, task = encoder.prompts, getattr(encoder, "task", None)
    use_task(encoder, chosen)
    try:
        yield chosen
    finally:
        if chosen is not None:
            encoder.prompts, encoder.task = prompts, task  # type: ignore[assignment]


def check_distinct(systems: Sequence[System]) -> None:
    """Raise InputError for one checkpoint twice."""
    seen: dict[str, str] = {}
    for system in systems:
        if system.name in seen:
            raise InputError(
                f"models: got {seen[system.name]!r} and {system.label!r}, which are the same checkpoint; expected each "
                "once; fix: leave one out"
            )
        seen[system.name] = system.label
