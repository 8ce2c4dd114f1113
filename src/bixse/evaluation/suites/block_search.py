"""Search a corpus of any length block by block: encode, keep the best, forget; a killed search goes on where it was."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.io.files import read_text, write_atomically
from bixse.encoders.encode import encode_texts
from bixse.errors import InputError
from bixse.retrieval.exact import exact_search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.suites.prepared import JudgedQueries, PreparedTask

DOCUMENTS_PER_BLOCK = 65_536
"""Documents encoded before the best are kept; at 1,024 dimensions their embeddings take 270 MB."""
SAVE_SECONDS = 60.0
"""The best so far are written after a block when this much time went by since they last were."""


class Best:
    """The best documents of each query of a set, over the blocks seen so far.

    Args:
        judged: the set of queries.
        embeddings: (Q, D), L2-normalised, in the order of its queries.
        depth: documents kept for each query.
    """

    def __init__(self, judged: JudgedQueries, embeddings: NDArray[np.float32], depth: int) -> None:
        self.judged = judged
        self.embeddings = embeddings
        self.depth = depth
        self.scores: NDArray[np.float32] = np.empty((len(judged.queries), 0), dtype=np.float32)
        self.ids: NDArray[Any] = np.empty((len(judged.queries), 0), dtype=object)

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        """Let a block of documents (n, D) compete; at equal scores the earlier block stays ahead."""
        rows = [row for row, document_id in enumerate(ids) if document_id not in self.judged.left_out]
        if not rows:
            return
        searched = documents if len(rows) == len(ids) else documents[rows]
        names = np.array([ids[row] for row in rows], dtype=object)
        scores, positions = exact_search(self.embeddings, searched, self.depth)
        scores = np.concatenate([self.scores, scores], axis=1)
        names = np.concatenate([self.ids, names[positions]], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.depth]
        self.scores, self.ids = np.take_along_axis(scores, order, axis=1), np.take_along_axis(names, order, axis=1)

    def run(self) -> dict[str, dict[str, float]]:
        """The run of the set, best first."""
        rows = zip(self.judged.queries, self.ids.tolist(), self.scores.tolist(), strict=True)
        return {query_id: dict(zip(ids, scores, strict=True)) for query_id, ids, scores in rows}


class Ordered:
    """The candidates of each query of a set, scored.

    Args:
        judged: the set of queries, with candidates.
        embeddings: (Q, D), L2-normalised.
    """

    def __init__(self, judged: JudgedQueries, embeddings: NDArray[np.float32]) -> None:
        self.judged = judged
        self.embeddings = embeddings
        self.found: dict[str, dict[str, float]] = {query_id: {} for query_id in judged.queries}

    def add(self, ids: list[str], documents: NDArray[np.float32]) -> None:
        """Score the candidates that a block of documents holds."""
        row_of = {document_id: row for row, document_id in enumerate(ids)}
        for query_id, query in zip(self.judged.queries, self.embeddings, strict=True):
            here = [name for name in (self.judged.candidates or {}).get(query_id, ()) if name in row_of]
            if here:
                scores = documents[[row_of[name] for name in here]] @ query
                self.found[query_id].update(zip(here, scores.tolist(), strict=True))

    def run(self) -> dict[str, dict[str, float]]:
        """The run of the set."""
        return self.found


def search_blocks(
    model: SentenceTransformer,
    task: PreparedTask,
    depth: int,
    partial: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """The answers to every set of queries of a task, each document encoded once.

    Memory is bounded by one block of documents. The best so far are kept in a file; called again with the same
    task, model and file, a killed search goes on after the last block it wrote, with the same result.

    Args:
        model: the encoder.
        task: corpus and queries.
        depth: documents of a query that are retrieved.
        partial: file for the best so far, removed by the caller when it has the answers; None keeps none.
        progress: called with the number of documents done since the last call.

    Returns:
        Set name -> run; the document with the query's own id is left out where the task says so.

    Raises:
        StorageError: `partial` cannot be written.
        InputError: `partial` is damaged.
    """
    states: list[Best | Ordered] = []
    for judged in task.sets:
        embeddings = encode_texts(model, list(judged.queries.values()), "query")
        kept = depth + task.exclude_self
        states.append(Ordered(judged, embeddings) if judged.candidates else Best(judged, embeddings, kept))
    searches = [state for state in states if isinstance(state, Best)]
    if len(searches) < len(states):
        partial = None  # lists of candidates are short
    done = _restore(partial, searches) if partial is not None else 0
    documents = islice(task.documents(), done, None)
    if progress is not None and done:
        progress(done)
    saved = time.monotonic()
    for block in _blocks(documents):
        ids = [document_id for document_id, _ in block]
        embedded = encode_texts(model, [text for _, text in block], "document", progress=progress)
        for state in states:
            state.add(ids, embedded)
        done += len(block)
        if partial is not None and done < task.count and time.monotonic() - saved >= SAVE_SECONDS:
            _save(partial, searches, done)
            saved = time.monotonic()
    return {state.judged.name: _own_left_out(state.run(), depth, task.exclude_self) for state in states}


def _blocks(documents: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Documents in lists of `DOCUMENTS_PER_BLOCK`."""
    while block := list(islice(documents, DOCUMENTS_PER_BLOCK)):
        yield block


def _own_left_out(run: dict[str, dict[str, float]], depth: int, exclude_self: bool) -> dict[str, dict[str, float]]:
    if not exclude_self:
        return run
    return {
        query_id: dict(islice(((name, score) for name, score in found.items() if name != query_id), depth))
        for query_id, found in run.items()
    }


def _save(path: Path, searches: list[Best], done: int) -> None:
    best = [{"scores": search.scores.tolist(), "ids": search.ids.tolist()} for search in searches]
    write_atomically(path, json.dumps({"done": done, "best": best}))


def _restore(path: Path, searches: list[Best]) -> int:
    """Take up the best so far; returns the number of documents they come from."""
    if not path.is_file():
        return 0
    try:
        content = json.loads(read_text(path))
        for search, best in zip(searches, content["best"], strict=True):
            search.scores = np.array(best["scores"], dtype=np.float32).reshape(len(search.judged.queries), -1)
            search.ids = np.array(best["ids"], dtype=object).reshape(search.scores.shape)
        return int(content["done"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: got a damaged file ({type(error).__name__}: {error}); expected the best documents so far, as "
            "bixse wrote them; fix: delete the file"
        ) from error
