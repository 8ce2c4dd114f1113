"""Write an index into a vector database and measure its recall; a stopped export continues."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bixse.encoders.encode import encode_texts
from bixse.files.files import alone_in
from bixse.scale.index.index_files import Recall, open_files
from bixse.scale.index.index_settings import RECALL_TARGET
from bixse.scale.index.search import open_index
from bixse.scale.index.vector_store import Rescored, connect
from bixse.search.search_collection import read_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.scale.index.index_files import IndexFiles, Manifest
    from bixse.scale.index.vector_store import VectorStore

T = TypeVar("T")
UNKNOWN_BEFORE: dict[str, Any] = {"embeddings": (), "texts": None, "ann": None, "recall": None}
"""Fields of a manifest that a database does not take over from the local index."""
RECALL_QUERIES = 200
"""Maximum number of queries for recall; drawn with a fixed seed."""
WORDS_OF_TEXT = 12
"""Number of first words that replace a missing title."""
SAME_SCORE = 1e-6
"""Difference of scores that rounding alone can make."""


@dataclass(frozen=True)
class ExportReport:
    """The outcome of `export_index`."""

    manifest: Manifest
    written: int
    """Number of documents written now; the others existed."""
    seconds: float
    warnings: tuple[str, ...] = ()


def export_index(
    index: str | Path,
    to: str,
    model: str | Path | SentenceTransformer | None = None,
    recall_target: float = RECALL_TARGET,
    recall_queries: str | Path | None = None,
    progress: ProgressBars | None = None,
) -> ExportReport:
    """Write the embeddings, ids, titles and texts of an index into a vector database, and measure its recall.

    Existing documents stay: a stopped export continues, and a finished one does nothing. `to` is
    "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION"; `model` is the model of the index if that has moved or is loaded.
    Titles of documents measure recall if there is no file of queries. InputError: the database cannot be used.
    OutputExistsError: the database holds something else.
    """
    started, folder = time.perf_counter(), Path(index)
    with closing(open_files(folder)) as files, closing(connect(to)) as store, alone_in(folder):
        wanted = files.manifest.model_copy(update=UNKNOWN_BEFORE)
        check_target(store, wanted)
        if not store.exists():
            store.create(wanted)
        first = store.written()
        step = progress(f"write to {to}", wanted.documents - first) if progress is not None else None
        for start in range(first, wanted.documents, store.together):
            rows = np.arange(start, min(start + store.together, wanted.documents))
            store.write(start, files.documents(rows.tolist()), files.embeddings(rows))
            if step is not None:
                step(len(rows))
        store.check()
        found, ann = store.manifest, store.build()
        if found.ann != ann:
            asked, source = recall_questions(files, recall_queries)
            with open_index(folder, model, exact=True) as opened:
                queries = encode_texts(opened.model, asked, "query")
            recall = measure_recall(Rescored(files, store.nearest), queries, source)
            found = found.model_copy(update={"ann": ann, "recall": recall})
            store.keep(found)
    warnings = tuple(warn_of_recall(found.recall, recall_target))
    return ExportReport(found, wanted.documents - first, time.perf_counter() - started, warnings)


def check_target(store: VectorStore, wanted: Manifest) -> None:
    """Refuse a table or collection that holds another index; a missing one is fine."""
    if store.exists():
        store.manifest.check_same(wanted, store.address, "choose another name, or delete it", corpus=True)


def measure_recall(search: Rescored, queries: npt.NDArray[np.float32], source: str) -> Recall:
    """Return the share of the best 10 and 100 documents that is found for (Q, D) queries."""
    shares = []
    for depth in (10, 100):
        exact_scores, _ = search.files.exact(queries, depth)
        scores, _ = search.search(queries, depth)
        # A score as high as the last exact one counts: it does not matter which copy of a text is found
        # (as in ann-benchmarks, Aumüller et al. 2017, arXiv:1807.05614).
        shares.append(float((scores >= exact_scores[:, -1:] - SAME_SCORE).mean()))
    return Recall(at_10=shares[0], at_100=shares[1], queries=len(queries), source=source)


def recall_questions(files: IndexFiles, queries: str | Path | None) -> tuple[list[str], str]:
    """Return texts to measure recall on, and their description: queries of a file, or titles of documents."""
    if queries is not None:
        return _drawn(list(read_queries(Path(queries)).values())), f"queries of {Path(queries).name}"
    found = files.documents(_drawn(range(files.manifest.documents)))
    texts = [document.title.strip() or " ".join(document.text.split()[:WORDS_OF_TEXT]) for _, document in found]
    return [text for text in texts if text], "titles or first words of documents"


def warn_of_recall(recall: Recall | None, target: float) -> list[str]:
    """Return one warning if recall at 10 or at 100 is below `target`, else none."""
    if recall is None or min(recall.at_10, recall.at_100) >= target:
        return []
    return [
        f"recall against exact search: got {recall.at_10:.3f} at 10 and {recall.at_100:.3f} at 100; expected "
        f"{target:g} of both; fix: `bixse search --exact`, which scores every document"
    ]


def _drawn(items: Sequence[T]) -> list[T]:
    """Draw the same items every time, in their order."""
    return [items[place] for place in np.sort(np.random.default_rng(0).permutation(len(items))[:RECALL_QUERIES])]
