"""Approximate search of a vector database: what it finds is scored exactly, and its recall is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bixse.scale.index.manifest import Recall
from bixse.search.search_collection import read_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    import numpy.typing as npt

    from bixse.scale.index.index_files import IndexFiles
    from bixse.scale.stores.vector_store import VectorStore

    T = TypeVar("T")
Nearest: TypeAlias = "Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.int64]]"
RECALL_QUERIES = 200
"""Queries that recall is measured on, at most; drawn with a fixed seed."""
WORDS_OF_TEXT = 12
"""Words of a document without a title that stand for one."""
SAME_SCORE = 1e-6
"""Scores that rounding alone tells apart."""


class Rescored:
    """Search through any approximate index; the documents it finds are scored exactly.

    Args:
        files: holds the embeddings.
        nearest: (Q, D) queries and a number k -> rows (Q, k) of documents in any order, -1 where fewer were found.
    """

    def __init__(self, files: IndexFiles | VectorStore, nearest: Nearest) -> None:
        self.files, self.nearest = files, nearest

    def search(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and rows, each (Q, k), of most of the best documents of (Q, D) queries; never fewer than there are.

        Ordered as by `exact_search`: the highest score first, of equal ones the lower row.
        """
        top = min(top, self.files.manifest.documents)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = score_rows(queries, self.nearest(queries, top), self.files)
        unfilled = np.flatnonzero((rows < 0).any(axis=1))
        if len(unfilled):
            scores[unfilled], rows[unfilled] = self.files.exact(queries[unfilled], top)
        return scores, rows


def score_rows(
    queries: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], files: IndexFiles | VectorStore
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Inner products of (Q, D) queries with the documents of (Q, k) rows, and the rows, both ordered as by `search`."""
    embeddings = files.embeddings(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
    scores = np.einsum("qd,qkd->qk", queries, embeddings)
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def measure_recall(search: Rescored, queries: npt.NDArray[np.float32], source: str) -> Recall:
    """How many of the best 10 and 100 documents of (Q, D) queries are found.

    A document counts as found when it scores as high as the last of the exact best ones: which of several copies of a
    text is found does not matter (so does ann-benchmarks, Aumüller et al. 2017, arXiv:1807.05614).
    """
    shares = []
    for depth in (10, 100):
        exact_scores, _ = search.files.exact(queries, depth)
        scores, _ = search.search(queries, depth)
        shares.append(float((scores >= exact_scores[:, -1:] - SAME_SCORE).mean()))
    return Recall(at_10=shares[0], at_100=shares[1], queries=len(queries), source=source)


def recall_questions(files: IndexFiles, queries: str | Path | None) -> tuple[list[str], str]:
    """What recall is measured on, and in words what that is: some of a file of queries; None: of titles of documents.

    First words stand for the title of a document that has none.
    """
    if queries is not None:
        return _drawn(list(read_queries(Path(queries)).values())), f"queries of {Path(queries).name}"
    found = files.documents(_drawn(range(files.manifest.documents)))
    texts = [document.title.strip() or " ".join(document.text.split()[:WORDS_OF_TEXT]) for _, document in found]
    return [text for text in texts if text], "titles or first words of documents"


def warn_of_recall(recall: Recall | None, target: float, fix: str) -> list[str]:
    """One line where fewer than the `target` share of the best 10 or 100 are found, or none."""
    if recall is None or min(recall.at_10, recall.at_100) >= target:
        return []
    return [
        f"recall against exact search: got {recall.at_10:.3f} at 10 and {recall.at_100:.3f} at 100; expected "
        f"{target:g} of both; fix: {fix}"
    ]


def _drawn(items: Sequence[T]) -> list[T]:
    """The same ones every time, in their order."""
    return [items[place] for place in np.sort(np.random.default_rng(0).permutation(len(items))[:RECALL_QUERIES])]
