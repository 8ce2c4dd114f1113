"""Search a task with an encoder: the corpus is read once, in blocks, and the best documents so far are arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from bixse.encoders.encode import encode_and_count
from bixse.errors import InputError
from bixse.files.files import atomic_file
from bixse.search import tasks
from bixse.search.exact import DOCUMENTS_PER_BLOCK, TopK, search_device
from bixse.search.tasks import best_of, query_blocks

if TYPE_CHECKING:
    from bixse.relevance import Ranking
    from bixse.search.store import EmbeddingStore
    from bixse.search.tasks import QuerySet, Task

SAVE_SECONDS = 60.0
"""Minimum seconds between two writes of the partial result; a write follows a block."""


class _Search:
    def __init__(self, query_set: QuerySet, embeddings: NDArray[np.float32], depth: int, documents: int) -> None:
        self.query_set = query_set
        self.best = TopK(embeddings, depth, search_device(len(embeddings), documents))
        self.positions = np.empty(0, np.int64)
        """(S,) positions, ascending, of the documents that are among the best of a query, and of recent documents."""
        self.names = np.empty(0, object)
        """(S,) ids of these documents."""
        self.most = 0

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        """Add a block; at equal scores the earlier document stays ahead."""
        rows = [row for row, name in enumerate(ids) if name not in self.query_set.left_out]
        start = self.best.seen
        self.best.add(documents if len(rows) == len(ids) else documents[rows])
        self.positions = np.concatenate([self.positions, np.arange(start, self.best.seen)])
        self.names = np.concatenate([self.names, np.array(ids, object)[rows]])
        if len(self.names) > self.most:
            self._forget()
            # A look at the 100 best documents of 200,000 queries takes 0.4 s: not after every block.
            self.most = 2 * len(self.names) + 8 * DOCUMENTS_PER_BLOCK

    def _forget(self) -> None:
        """Forget the documents that are among the best of no query."""
        is_best = np.zeros(self.best.seen, bool)
        for _, best in self._results():
            is_best[best] = True
        still = is_best[self.positions]
        self.positions, self.names = self.positions[still], self.names[still]

    def runs(self) -> Iterator[dict[str, dict[str, float]]]:
        for queries, (scores, positions) in zip(query_blocks(self.query_set.queries), self._results(), strict=True):
            names = self.names[np.searchsorted(self.positions, positions)].tolist()
            hits = zip(queries, names, scores.tolist(), strict=True)
            yield {query: dict(zip(row, values, strict=True)) for query, row, values in hits}

    def _results(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield scores and positions per block of queries: those of all queries at once would double the memory."""
        for start in range(0, len(self.best.queries), tasks.QUERIES_PER_BLOCK):
            yield self.best.result(slice(start, start + tasks.QUERIES_PER_BLOCK))

    def state(self) -> dict[str, Any]:
        self._forget()
        names = np.frombuffer(json.dumps(self.names.tolist()).encode(), np.uint8)
        return {"keys": self.best.keys.cpu().numpy(), "seen": self.best.seen, "at": self.positions, "names": names}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        keys = torch.from_numpy(state["keys"]).to(self.best.keys.device)
        self.best.keys = keys.reshape(len(self.query_set.queries), -1)
        self.best.seen, self.positions = int(state["seen"]), state["at"]
        self.names = np.array(json.loads(state["names"].tobytes()), object)


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

    def runs(self) -> Iterator[dict[str, dict[str, float]]]:
        yield self.scores


def search_blocks(
    store: EmbeddingStore,
    task: Task,
    depth: int,
    partial: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[str, Ranking]]:
    """Yield the name of a query set and the run of a block of its queries, when the corpus has been read once.

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
            _save(partial, searches, done)
            saved = time.monotonic()
    for state in states:
        for run in state.runs():
            yield state.query_set.name, best_of(run, depth, frozenset(), True) if task.exclude_self else run


def _save(path: Path, searches: list[_Search], done: int) -> None:
    states = {f"{key} {n}": part for n, search in enumerate(searches) for key, part in search.state().items()}
    with atomic_file(path) as file:
        np.savez(file, done=done, **states)


def _restore(path: Path, searches: list[_Search]) -> int:
    if not path.is_file():
        return 0
    try:
        with np.load(path) as content:
            for n, search in enumerate(searches):
                search.restore({key: content[f"{key} {n}"] for key in ("keys", "seen", "at", "names")})
            return int(content["done"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{path}: got a damaged file ({type(error).__name__}: {error}); expected the best documents so far, as "
            "bixse wrote them; fix: delete the file"
        ) from error
