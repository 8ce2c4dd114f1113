"""The systems that can be evaluated: encoders, BM25 and functions. Each checkpoint has a distinct name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.encoders.instructions import prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder, demo_model_path, model_hashes
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, shorten
from bixse.files.run_folder import in_run
from bixse.relevance import ranked
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.tasks import best_of, query_blocks

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.relevance import Ranking
    from bixse.search.tasks import CountStep, RunBlocks, Task

HASH_DIGITS = 8
MOST_CACHED = 1_000_000
"""Maximum number of documents whose embeddings are cached in the default cache folder."""


class System:
    """The base of systems that answer queries: a subclass needs a `label` and `answers`."""

    label: str
    prompts_hash: str | None = None
    """A hash of the prompts of the last search, or None."""
    why_unanswered: str = ""
    """The usual reason for queries without an answer."""
    notes: Sequence[str] = ()
    """Warnings of the last search."""

    @property
    def complete(self) -> bool:
        """False if the same search again may find more."""
        return True

    @property
    def name(self) -> str:
        """A word for folder names, different per checkpoint."""
        return self.label

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings for the record of a run; "model" may be a path."""
        return {"model": self.label}

    @property
    def inputs(self) -> Mapping[str, str]:
        """Name of an input file -> hash."""
        return {}

    @property
    def digest(self) -> str:
        """The first digits of a hash of all inputs, for names."""
        return hashlib.sha256(repr(sorted(self.inputs.items())).encode()).hexdigest()[:HASH_DIGITS]

    @property
    def precision(self) -> str | None:
        """The dtype that a model computes in; None without a model."""
        return None

    def check(self, instructions: Sequence[str]) -> None:
        """Raise InputError, before any other work, if a task with these instruction names cannot be run."""

    def check_answers(self, task: Task, refuse: bool) -> list[str]:
        """Return doubts about answers that were there before; raise InputError, if `refuse`, for those of others."""
        return []

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None
    ) -> dict[str, Ranking]:
        """Return name of each query set -> run, all of `answers` in memory."""
        runs: dict[str, dict[str, Mapping[str, float]]] = {part.name: {} for part in task.query_sets}
        for name, run in self.answers(task, depth, partial, progress):
            runs[name].update(run)
        return dict(runs)

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        """Yield query set and run of one block of queries after the other; arguments as for `search_blocks`."""
        raise NotImplementedError

    def release(self) -> None:
        """Free memory that can be filled again."""


class EncoderSystem(System):
    """A checkpoint, loaded on first use, or a model in memory.

    Args:
        model: model folder, hub name, "demo", or a loaded model.
        max_length: number of tokens read per text. None keeps the model's own value. It does not change a loaded model.
        task: task of the model's table whose instructions precede all texts; None selects by the evaluated task.
        trust_remote_code: run code that comes with the model.
        cache: cache folder for document embeddings, or "none"; None: see `bixse.files.files.cache_folder` (corpora of
            more than a million documents are then not cached).
        dimensions: number of dimensions that embeddings are cut to. None keeps all.

    Example:
        The first 64 tokens of each text::

            system = EncoderSystem("runs/quickstart/bixse/model", max_length=64)
            evaluate(system, "runs/quickstart/collection").metrics
    """

    def __init__(
        self,
        model: str | Path | SentenceTransformer,
        max_length: int | None = None,
        task: str | None = None,
        trust_remote_code: bool = False,
        cache: str | Path | None = None,
        dimensions: int | None = None,
    ) -> None:
        self.source = in_run(str(model), "model") if isinstance(model, (str, Path)) else "model"
        self.label = self.source if dimensions is None else f"{self.source} at {dimensions}"
        self.dimensions = dimensions
        self.max_length = max_length
        self.task = task
        self.trust_remote_code = trust_remote_code
        self.cache = cache
        self._given = None if isinstance(model, (str, Path)) else model
        self._loaded: SentenceTransformer | None = None

    @property
    def encoder(self) -> SentenceTransformer:
        if self._loaded is None:
            self._loaded = self._given
            if self._loaded is None:
                self._loaded = build_encoder(
                    self.source,
                    self.max_length,
                    trust_remote_code=self.trust_remote_code,
                    dimensions=self.dimensions,
                )
        return self._loaded

    @cached_property
    def weights(self) -> str:
        """The hash of everything except the texts that embeddings depend on: weights, tokenizer, prompts, lengths."""
        from bixse.encoders.encode import embeddings_key

        content = f"{embeddings_key(self.encoder)} {prompts_hash(self.encoder)}"
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The file hashes of a model folder; for a hub name or a loaded model, the hash of the loaded model."""
        files = {}
        if self._given is None:
            files = model_hashes(demo_model_path() if self.source == "demo" else self.source)
        return files or {"weights": self.weights}

    @property
    def name(self) -> str:
        """The last part of path or hub name, and the first digits of the checkpoint's hash."""
        return f"{'-'.join((Path(self.label).name or 'model').split())}-{self.digest}"

    @property
    def precision(self) -> str:
        return resolve_precision(device=None if self._given is None else self._given.device)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": self.source,
            "max_length": self.max_length,
            "instructions": self.task,
            "precision": self.precision,
            **({} if self.dimensions is None else {"dimensions": self.dimensions}),
        }

    def check(self, instructions: Sequence[str]) -> None:
        with self._instructed(instructions):
            prompt_for(self.encoder, "query")

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        from bixse.search.block_search import search_blocks  # not at the top: BM25 and run files need no torch
        from bixse.search.store import EmbeddingStore

        with self._instructed(task.instructions):
            self.prompts_hash = prompts_hash(self.encoder)
            cache = "none" if self.cache is None and task.count > MOST_CACHED else self.cache
            store = EmbeddingStore(self.encoder, cache)
            yield from search_blocks(store, task, depth, partial, progress)
            self.notes = [f"{self.label}: {warning}" for warning in store.warnings()]

    def release(self) -> None:
        """Unload the checkpoint, which is loaded again on demand."""
        self._loaded = None

    @contextmanager
    def _instructed(self, instructions: Sequence[str]) -> Iterator[None]:
        with instructions_of(self.encoder, (self.task,) if self.task else instructions, must=bool(self.task)):
            yield


class Bm25System(System):
    """The word-matching baseline; it holds the corpus in memory and takes no instructions."""

    label = BM25_NAME
    why_unanswered = "no document shares a word with them (words end at white space and signs, as in English)"

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        corpus = dict(task.documents())
        indexes: dict[frozenset[str], BM25] = {}
        for query_set in task.query_sets:
            if query_set.left_out not in indexes:
                names = [name for name in corpus if name not in query_set.left_out]
                indexes[query_set.left_out] = BM25(names, [corpus[name] for name in names])
            index, candidates = indexes[query_set.left_out], query_set.candidates
            for queries in query_blocks(query_set.queries):
                if candidates is None:
                    run = index.search(queries, depth + task.exclude_self)
                    yield query_set.name, best_of(run, depth, frozenset(), task.exclude_self)
                    continue
                scores = index.search(queries, len(index.document_ids))
                yield query_set.name, {q: {d: scores[q].get(d, 0.0) for d in candidates.get(q, ())} for q in queries}
        if progress is not None:
            progress(task.count)


class FunctionSystem(System):
    """A function that answers the text of a query with document ids, best first, or (id, score) pairs in any order."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self.function = function
        self.label = getattr(function, "__name__", type(function).__name__)

    @property
    def inputs(self) -> dict[str, str]:
        """Return the name of the function, which counts as its content."""
        return {"function": self.label}

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        """Ask the function once per query; raise InputError for other answers, and for ids that the corpus lacks."""
        for query_set in task.query_sets:
            for queries in query_blocks(query_set.queries):
                run = {query: self._hits(text) for query, text in queries.items()}
                task.check_known(self.label, run)
                yield query_set.name, best_of(run, depth, query_set.left_out, task.exclude_self)
        if progress is not None:
            progress(task.count)

    def _hits(self, text: str) -> dict[str, float]:
        given = self.function(text)
        several = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [None]
        hits: dict[str, float] = {}
        for rank, each in enumerate(several):
            name, score = each if isinstance(each, tuple | list) and len(each) == 2 else (each, -rank)
            if not isinstance(name, str) or not isinstance(score, Real) or score != score or name in hits:
                raise InputError(
                    f"{self.label}: got {shorten(given)} for the query {shorten(text)}; expected a list of document "
                    "ids, best first, or of (id, score) pairs, each id once; fix: return [('d1', 0.8), ('d2', 0.5)]"
                )
            hits[name] = float(score)
        return {name: hits[name] for name in ranked(hits)}


@contextmanager
def instructions_of(encoder: SentenceTransformer, names: Sequence[str], must: bool = False) -> Iterator[str | None]:
    """Encode with the instructions of the first name in the model's table; restore the prompts afterwards.

    Yield the name, or None for the model's default. Names match in any case. With `must`, the case counts, and a table
    without the first name is refused.
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
