"""Indexes as systems to evaluate: an existing index, or one that an engine makes of an encoder's embeddings."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.encoders.instructions import prompt_for, prompts_hash
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.evaluate import open_evaluation
from bixse.evaluation.systems import HASH_DIGITS, EncoderSystem, System, check_distinct, without_self
from bixse.files.files import alone_in
from bixse.scale.index.index_settings import IndexSettings, ShardedEncodingSettings
from bixse.scale.index.make_index import make_index
from bixse.scale.index.search import open_index
from bixse.scale.index.vector_store import is_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.tasks import Task
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.scale.index.search import SearchIndex

INDEX_FOLDER = ".index"


class IndexSystem(System):
    """An index, or its vector database, which answers on its own corpus alone; arguments as in `open_index`."""

    def __init__(
        self,
        index: str | Path,
        task: str | None = None,
        exact: bool = False,
        model_at: str | SentenceTransformer | None = None,
    ) -> None:
        self.label = str(index)
        self.task, self.exact, self.model_at = task, exact, model_at

    @cached_property
    def opened(self) -> SearchIndex:
        return open_index(self.label, self.model_at, self.task, self.exact)

    @cached_property
    def inputs(self) -> dict[str, str]:
        manifest = self.opened.manifest
        return {
            "weights": manifest.encoder.weights,
            "prompts": manifest.encoder.prompts,
            "corpus": manifest.corpus,
            "stored": f"{manifest.precision} {self.opened.approximate}".strip(),
        }

    @property
    def name(self) -> str:
        """Return the last part of folder or address, and digits of a hash of encoder, corpus and kind of search."""
        digest = hashlib.sha256(repr(sorted(self.inputs.items())).encode()).hexdigest()
        return f"{'-'.join(Path(self.label).name.split())}-{digest[:HASH_DIGITS]}"

    @property
    def precision(self) -> str:
        return resolve_precision()

    @property
    def settings(self) -> dict[str, Any]:
        return {"model": self.label, "instructions": self.task, "exact": self.exact, "precision": self.precision}

    def check(self, instructions: Sequence[str]) -> None:
        """Accept the task of the index, or a task with the same document instruction; no other."""
        prompt_for(self.opened.model, "query")

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> dict[str, Ranking]:
        """Search the index; raise InputError for a task of another corpus, or of a part of it."""
        manifest, corpus = self.opened.manifest, task.inputs.get("corpus.jsonl")
        if corpus != manifest.corpus or any(own.left_out or own.candidates is not None for own in task.query_sets):
            raise InputError(
                f"{self.label}: got the task {task.name}, of another corpus or a part of one; expected the collection "
                "that the index was made of; fix: `bixse evaluate INDEX --collection DIR` with that collection, or "
                f"evaluate the model itself ({manifest.encoder.name})"
            )
        self.prompts_hash = prompts_hash(self.opened.model)
        runs: dict[str, Ranking] = {}
        for own in task.query_sets:
            run = self.opened.search_run(own.queries, depth + task.exclude_self)
            runs[own.name] = without_self(run, depth) if task.exclude_self else run
        if progress is not None:
            progress(task.count)
        return runs

    def release(self) -> None:
        """Close the index; the next use opens it again."""
        if "opened" in vars(self):
            self.opened.close()
            del self.opened


def open_index_system(
    name: str | Path, task: str | None = None, exact: bool = False, model_at: str | None = None
) -> IndexSystem | None:
    """Return the index or vector database of a name, or None for any other name."""
    return IndexSystem(name, task, exact, model_at) if is_stored(name) else None


class ShardedSystem(EncoderSystem):
    """An encoder that searches an index of the evaluated corpus; an engine makes the index in a folder."""

    def __init__(self, system: EncoderSystem, folder: Path) -> None:
        super().__init__(system.label, system.max_length, system.task, system.trust_remote_code, system.cache)
        self.index = folder / self.name

    def make(self, task: Task, where: ShardedEncodingSettings, progress: ProgressBars | None) -> int:
        """Make the index; return the number of pending shards of other ranks."""
        cache = self.cache_for(task)
        settings = IndexSettings(
            **where.model_dump(include=set(ShardedEncodingSettings.model_fields) - {"task", "cache"}),
            model=self.label,
            collection=task.settings["collection"],
            max_length=self.max_length,
            task=self.task,
            cache=None if cache is None else str(cache),
        )
        return make_index(settings, self.index, progress).waiting

    def find(
        self, task: Task, depth: int, partial: Path | None, progress: Callable[[int], None] | None
    ) -> dict[str, Ranking]:
        system = IndexSystem(self.index, self.task, model_at=self.encoder)
        try:
            return system.search(task, depth, partial, progress)
        finally:
            system.release()


@contextmanager
def encoded_in_shards(
    systems: Sequence[System],
    task: Task,
    out: Path,
    where: ShardedEncodingSettings,
    progress: ProgressBars | None = None,
) -> Iterator[tuple[list[System], int]]:
    """Make an index for each unfinished encoder of `systems`, which searches it inside the block.

    Yield the systems to evaluate and the number of pending shards of other ranks; with pending shards there is nothing
    to evaluate. Indexes are in `out`, and deleted if the block ends without an error.
    """
    check_distinct(systems)
    folder, waiting = out / INDEX_FOLDER, 0
    sharded = [ShardedSystem(own, folder) if isinstance(own, EncoderSystem) else own for own in systems]
    for system in sharded:
        results = out / system.name if len(sharded) > 1 else out
        if isinstance(system, ShardedSystem) and open_evaluation(system, task, results).status != "finished":
            waiting += system.make(task, where, progress)
    if waiting:
        yield sharded, waiting
        return
    with alone_in(folder, wait=True):
        yield sharded, 0
        shutil.rmtree(folder, ignore_errors=True)
