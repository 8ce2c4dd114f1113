"""An index as a system to evaluate."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.encoders.instructions import prompt_for, prompts_hash
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.systems import HASH_DIGITS, System, without_self
from bixse.scale.index.search import open_index
from bixse.scale.index.vector_store import is_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.tasks import Task
    from bixse.relevance import Ranking
    from bixse.scale.index.search import SearchIndex


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
    """Return the index or vector database of a name, or None."""
    return IndexSystem(name, task, exact, model_at) if is_stored(name) else None
