"""An index as a system that is evaluated."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.encoders.instructions import prompt_for, prompts_hash
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.systems import HASH_DIGITS, System, without_self
from bixse.scale.index.manifest import is_index
from bixse.scale.index.search import open_index
from bixse.scale.stores.vector_store import is_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.tasks import Task
    from bixse.relevance import Ranking
    from bixse.scale.index.search import SearchIndex


class IndexSystem(System):
    """An index, or a vector database it was written to: it answers on the corpus it was made of and on no other.

    Args:
        index: folder of the index, "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION".
        task: task whose instruction stands before the queries; None: that of the index.
        exact: score every document of a vector database too.
        model_at: its model, where that has moved or is loaded.

    Example:
        What an approximate search costs in quality::

            evaluate(IndexSystem("lancedb:runs/lance/documents"), "my-collection").metrics
            evaluate(IndexSystem("lancedb:runs/lance/documents", exact=True), "my-collection").metrics
    """

    def __init__(
        self,
        index: str | Path,
        task: str | None = None,
        exact: bool = False,
        model_at: str | SentenceTransformer | None = None,
    ) -> None:
        self.label = str(index)
        self.task, self.exact, self.model_at = task, exact, model_at
        self._opened: SearchIndex | None = None

    @property
    def opened(self) -> SearchIndex:
        if self._opened is None:
            self._opened = open_index(self.label, self.model_at, self.task, self.exact)
        return self._opened

    @cached_property
    def inputs(self) -> dict[str, str]:
        manifest = self.opened.manifest
        ann = "" if self.exact or manifest.ann is None else f"{manifest.ann.factory} {manifest.ann.parameters}"
        return {
            "weights": manifest.encoder.weights,
            "prompts": manifest.encoder.prompts,
            "corpus": manifest.corpus,
            "stored": f"{manifest.dtype} {manifest.precision} {ann}".strip(),
        }

    @property
    def name(self) -> str:
        """The last part of its folder or address, and the beginning of a hash of encoder, corpus and kind of search."""
        digest = hashlib.sha256(repr(sorted(self.inputs.items())).encode()).hexdigest()
        return f"{'-'.join(Path(self.label).name.split())}-{digest[:HASH_DIGITS]}"

    @property
    def precision(self) -> str:
        return resolve_precision()

    @property
    def settings(self) -> dict[str, Any]:
        return {"model": self.label, "instructions": self.task, "exact": self.exact, "precision": self.precision}

    def check(self, instructions: Sequence[str]) -> None:
        """Only the task that the index was made with, or one with the same document instruction, can be asked for."""
        prompt_for(self.opened.model, "query")

    def search(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> dict[str, Ranking]:
        """Raises InputError for a task of another corpus, or of a part of it."""
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
        """It is opened again when it is needed."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None


def open_index_system(
    name: str | Path, task: str | None = None, exact: bool = False, model_at: str | None = None
) -> IndexSystem | None:
    """Return the index or vector database of a name, or None for the name of something else."""
    if is_store(str(name)) or is_index(Path(name)):
        return IndexSystem(name, task, exact, model_at)
    return None
