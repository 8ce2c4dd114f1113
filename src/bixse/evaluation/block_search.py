"""Search a corpus block by block with one encoder: each document is encoded once for all query sets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bixse.encoders.encode import encode_and_count
from bixse.errors import InputError
from bixse.files.files import read_text, write_atomically
from bixse.search.exact import TopK, search_device

if TYPE_CHECKING:
    from bixse.evaluation.tasks import QuerySet, Task
    from bixse.relevance import Ranking
    from bixse.search.store import EmbeddingStore

DOCUMENTS_PER_BLOCK = 16_384
"""Number of documents encoded per block; at 1,024 dimensions their embeddings take 67 MB."""
SAVE_SECONDS = 60.0
"""Minimum seconds between two writes of the partial result; a write follows a block."""


class _Search:
    def __init__(self, query_set: QuerySet, embeddings: NDArray[np.float32], depth: int, documents: int) -> None:
        self.query_set = query_set
        self.best = TopK(embeddings, depth, search_device(len(embeddings), documents))
        self.names: dict[int, str] = {}
        """Position in the corpus -> id, for the best documents."""

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        """Add a block; at equal scores the earlier document stays ahead."""
        rows = [row for row, name in enumerate(ids) if name not in self.query_set.left_out]
        start = self.best.seen
        self.best.add(documents if len(rows) == len(ids) else documents[rows])
        positions = np.unique(self.best.result()[1]).tolist()
        self.names = {n: self.names[n] if n < start else ids[rows[n - start]] for n in positions}

    def run(self) -> dict[str, dict[str, float]]:
        scores, positions = (part.tolist() for part in self.best.result())
        return {
            query_id: {self.names[n]: score for n, score in zip(hits, values, strict=True)}
            for query_id, hits, values in zip(self.query_set.queries, positions, scores, strict=True)
        }

    def state(self) -> dict[str, Any]:
        return {"keys": self.best.keys.tolist(), "seen": self.best.seen, "names": self.names}

    def restore(self, state: dict[str, Any]) -> None:
        keys = torch.tensor(state["keys"], dtype=torch.int64, device=self.best.keys.device)
        self.best.keys = keys.reshape(len(self.query_set.queries), -1)
        self.best.seen = int(state["seen"])
        self.names = {int(n): str(name) for n, name in state["names"].items()}


class _Reranking:
    def __init__(self, query_set: QuerySet, embeddings: NDArray[np.float32]) -> None:
        self.query_set = query_set
        self.embeddings = embeddings
        self.candidates = [(query, (query_set.candidates or {}).get(query, ())) for query in query_set.queries]
        self.scores: dict[str, dict[str, float]] = {query_id: {} for query_id in query_set.queries}

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        row_of = {name: row for row, name in enumerate(ids)}
        for (query_id, candidates), query in zip(self.candidates, self.embeddings, strict=True):
            here = [name for name in candidates if name in row_of]
            scores = documents[[row_of[name] for name in here]] @ query
            self.scores[query_id].update(zip(here, scores.tolist(), strict=True))

    def run(self) -> dict[str, dict[str, float]]:
        return self.scores


def search_blocks(
    store: EmbeddingStore,
    task: Task,
    depth: int,
    partial: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Ranking]:
    """Return name of each query set -> run; each document is encoded once, one block in memory at a time.

    `partial` is a file for the best documents so far: a killed search continues after the last written block, with the
    same result. The caller removes the file at the end. `progress` gets the number of documents since its last call.
    """
    states: list[_Search | _Reranking] = []
    for query_set in task.query_sets:
        embeddings, is_cut = encode_and_count(store.model, list(query_set.queries.values()), "query")
        store.count("queries", is_cut)
        if query_set.candidates is None:
            deeper = depth + task.exclude_self  # the query itself is removed
            states.append(_Search(query_set, embeddings, deeper, task.count))
        else:
            states.append(_Reranking(query_set, embeddings))
    searches = [state for state in states if isinstance(state, _Search)]
    documents: Iterator[tuple[str, str]] = task.documents()
    if not searches:
        wanted = {name for part in task.query_sets for names in (part.candidates or {}).values() for name in names}
        documents = ((name, text) for name, text in documents if name in wanted)
    if len(searches) < len(states):
        partial = None  # reranking is short, and its state is not saved
    done = _restore(partial, searches) if partial is not None else 0
    if done:
        store.count("documents", np.full(done, np.nan, dtype=np.float32))
    if progress is not None and done:
        progress(done)
    saved = time.monotonic()
    rest = islice(documents, done, None)
    while block := dict(islice(rest, DOCUMENTS_PER_BLOCK)):
        embeddings = store.encode(list(block.values()), progress)
        for state in states:
            state.add(list(block), embeddings)
        done += len(block)
        if partial is not None and done < task.count and time.monotonic() - saved >= SAVE_SECONDS:
            write_atomically(partial, json.dumps({"done": done, "sets": [search.state() for search in searches]}))
            saved = time.monotonic()
    runs = {state.query_set.name: state.run() for state in states}
    return {name: without_self(run, depth) for name, run in runs.items()} if task.exclude_self else dict(runs)


def without_self(run: dict[str, dict[str, float]], depth: int) -> dict[str, dict[str, float]]:
    """Return the `depth` best documents per query, without the document that has the query's id."""
    return {
        query_id: dict(islice(((name, score) for name, score in hits.items() if name != query_id), depth))
        for query_id, hits in run.items()
    }


def _restore(path: Path, searches: list[_Search]) -> int:
    if not path.is_file():
        return 0
    try:
        content = json.loads(read_text(path))
        for search, state in zip(searches, content["sets"], strict=True):
            search.restore(state)
        return int(content["done"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"{path}: got a damaged file ({type(error).__name__}: {error}); expected the best documents so far, as "
            "bixse wrote them; fix: delete the file"
        ) from error
