"""`search_collection`: search a collection folder without an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.data.collection_files import load_corpus, warn_of_empty
from bixse.encoders.encode import encode_on, encode_texts
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder
from bixse.retrieval.exact import exact_search
from bixse.retrieval.hits import Hit, check_queries, check_top, chosen_threshold, hits_of
from bixse.retrieval.store import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.progress import ProgressBars


@dataclass(frozen=True)
class CollectionAnswer:
    """What `search_collection` found."""

    hits: list[Hit]
    """The highest cosine first; of equal cosines the first document of the corpus."""
    warnings: list[str]
    """What the user should know."""


def search_collection(
    model: str | Path,
    collection: str | Path,
    query: str,
    top: int = 10,
    threshold: float | None = None,
    at_precision: float | None = None,
    task: str | None = None,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
    cache: str | Path | None = None,
) -> CollectionAnswer:
    """The best documents of a collection for a query; its texts are encoded once, see `EmbeddingStore`.

    The settings are those of `SearchSettings`, `devices` those of `encode_on`; `progress` makes a progress callback
    from a title and a total.

    Raises:
        InputError: collection, query, `top`, threshold or task cannot be used.
        ModelError: the model cannot be loaded.

    Example:
        ::

            for hit in search_collection("demo", "my-collection", "copy a folder", top=3).hits:
                hit.document_id, hit.cosine, hit.title
    """
    check_queries([query])
    check_top(top)
    corpus = load_corpus(collection)
    encoder = build_encoder(model)
    use_task(encoder, task)
    least = chosen_threshold(encoder.head, str(model), threshold, at_precision)
    with encode_on(encoder, devices):
        documents = encode_corpus(encoder, corpus, progress, cache)
        queries = encode_texts(encoder, [query], "query")
    scores, rows = exact_search(queries, documents, top)
    items = list(corpus.items())
    hits = hits_of((items[row] for row in rows[0].tolist()), scores[0].tolist(), encoder.head, least)
    empty = [name for name, document in items if not document.content]
    return CollectionAnswer(hits, warn_of_empty(empty, len(corpus)))
