"""Search a task with an encoder: its texts are read once, in blocks, and the ids of the hits at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING
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
    from bixse.search.store import EmbeddingStore
    from bixse.search.tasks import CountStep, QuerySet, RunBlocks, Task

SAVE_SECONDS = 60.0
"""Minimum seconds between two writes of the partial result; a write follows a block."""


class _Search:
    def __init__(self, query_set: QuerySet, embeddings: NDArray[np.float32], depth: int, documents: int) -> None:
        self.query_set = query_set
        self.best = TopK(embeddings, depth, search_device(len(embeddings), documents))
        self.names: list[str] = []
        """Ids of the hits, in the order of the corpus, when all documents are searched."""

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        """Add a block; at equal scores the earlier document stays ahead."""
        rows = [row for row, name in enumerate(ids) if name not in self.query_set.left_out]
        self.best.add(documents if len(rows) == len(ids) else documents[rows])

    def mark_hits(self) -> None:
        """Find the documents that are among the best of any query; `add_names` then gives their ids."""
        self.is_hit, self.named = np.zeros(self.best.seen, bool), 0
        for _, positions in self._results():
            self.is_hit[positions] = True

    def add_names(self, ids: list[str]) -> None:
        """Keep the ids of hits in the next block of all documents."""
        searched = [name for name in ids if name not in self.query_set.left_out]
        self.names += compress(searched, self.is_hit[self.named : self.named + len(searched)])
        self.named += len(searched)

    def runs(self) -> Iterator[dict[str, dict[str, float]]]:
        """Yield the run per block of queries."""
        row_of, hit_names = np.cumsum(self.is_hit, dtype=np.int32) - 1, np.array(self.names, object)
        for queries, (scores, positions) in zip(query_blocks(self.query_set.queries), self._results(), strict=True):
            hits = zip(queries, hit_names[row_of[positions]].tolist(), scores.tolist(), strict=True)
            yield {query: dict(zip(row, values, strict=True)) for query, row, values in hits}

    def _results(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield scores and positions per block of queries: those of all queries at once would double the memory."""
        for start in range(0, len(self.best.queries), tasks.QUERIES_PER_BLOCK):
            yield self.best.result(slice(start, start + tasks.QUERIES_PER_BLOCK))


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
    store: EmbeddingStore, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None
) -> RunBlocks:
    """Yield the name of a query set and the run of a block of its queries, when all texts are encoded.

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
    for search in searches:
        search.mark_hits()
    names = (name for name, _ in (task.documents() if searches else ()))
    while ids := list(islice(names, DOCUMENTS_PER_BLOCK)):
        for search in searches:
            search.add_names(ids)
    for state in states:
        for run in state.runs():
            yield state.query_set.name, best_of(run, depth, frozenset(), True) if task.exclude_self else run


def _save(path: Path, searches: list[_Search], done: int) -> None:
    states = {"done": np.array(done)}
    for n, search in enumerate(searches):
        states |= {f"keys {n}": search.best.keys.cpu().numpy(), f"seen {n}": np.array(search.best.seen)}
    with atomic_file(path) as file:
        np.savez(file, **states)  # type: ignore[arg-type]  # its stub takes every keyword for `allow_pickle`


def _restore(path: Path, searches: list[_Search]) -> int:
    if not path.is_file():
        return 0
    try:
        with np.load(path) as content:
            for n, best in enumerate(search.best for search in searches):
                keys = torch.from_numpy(content[f"keys {n}"]).to(best.keys.device)
                best.keys, best.seen = keys.reshape(len(best.queries), -1), int(content[f"seen {n}"])
            return int(content["done"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{path}: got a damaged file ({type(error).__name__}: {error}); expected the best documents so far, as "
            "bixse wrote them; fix: delete the file"
        ) from error
