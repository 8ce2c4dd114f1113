"""`export_index`: write an index into a vector database; an export that was stopped goes on."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.encoders.encode import encode_texts
from bixse.files.files import alone_in
from bixse.scale.index.index_files import open_files
from bixse.scale.index.index_settings import RECALL_TARGET
from bixse.scale.index.search import open_index
from bixse.scale.stores.opening import connect
from bixse.scale.stores.recall import Rescored, measure_recall, recall_questions, warn_of_recall

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.scale.index.manifest import Manifest
    from bixse.scale.stores.vector_store import VectorStore

UNKNOWN_BEFORE: dict[str, Any] = {"embeddings": (), "texts": None, "ann": None, "recall": None}
"""What a manifest in a database does not take over from the local index."""


@dataclass(frozen=True)
class ExportReport:
    """What `export_index` did."""

    manifest: Manifest
    written: int
    """Documents written now; the others were there."""
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

    What is there stays: an export that was stopped goes on, and one that is finished does nothing.

    Args:
        index: folder that `bixse index` made.
        to: "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION".
        model: the model of the index, where that has moved or is loaded; None loads it from where it was.
        recall_target: warn where fewer of the exact 10 or 100 best are found.
        recall_queries: file of queries to measure that on; None: titles of documents.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: no index, no such database, no answer from its server, or its package is not installed.
        OutputExistsError: the table or collection holds another index, or something else.
        StorageError: the disk is full.

    Example:
        ::

            export_index("runs/index", "lancedb:runs/lance/documents")
            with open_index("lancedb:runs/lance/documents") as index:
                index.search("copy a folder", top=3)
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
    fix = "`bixse search --exact`, which scores every document"
    warnings = tuple(warn_of_recall(found.recall, recall_target, fix))
    return ExportReport(found, wanted.documents - first, time.perf_counter() - started, warnings)


def check_target(store: VectorStore, wanted: Manifest) -> None:
    """Refuse a table or collection that holds another index; one that does not exist yet is fine."""
    if store.exists():
        store.manifest.check_same(wanted, store.address, "choose another name, or delete it", corpus=True)
