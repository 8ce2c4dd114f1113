"""Search a collection without an index: `search_collection` for one query, `EncodedCollection` for many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bixse.data.collection import Collection, Document, load_corpus, warn_of_empty
from bixse.data.collection import read_queries as queries_of_table
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import kind_of, text_lines
from bixse.relevance import DEPTH

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead
    from bixse.progress import ProgressBars
    from bixse.search.store import EmbeddingStore


@dataclass(frozen=True)
class Hit:
    """A search result."""

    document_id: str
    cosine: float
    probability: float | None
    """Probability of relevance, 0 to 1; None for a model without a relevance head."""
    title: str
    text: str


Match: TypeAlias = "tuple[str, float, Document]"
"""The id of a retrieved document, its cosine, and its texts."""


def hits_of(matches: Iterable[Match], head: RelevanceHead | None, least: float | None) -> list[Hit]:
    """Make hits of retrieved documents, without documents less probable than `least`."""
    return [
        Hit(name, cosine, None if head is None else head.probability(cosine), *document)
        for name, cosine, document in matches
        if probable(cosine, head, least)
    ]


def matches_in(items: Sequence[tuple[str, Document]], rows: NDArray[Any], scores: NDArray[Any]) -> list[list[Match]]:
    """Return the documents of (Q, k) positions in a corpus, with their cosines."""
    return [
        [(items[row][0], cosine, items[row][1]) for row, cosine in zip(*line, strict=True)]
        for line in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def probable(cosine: float, head: RelevanceHead | None, least: float | None) -> bool:
    """Return True if the probability reaches `least`, or if `least` is None."""
    return least is None or (head is not None and head.probability(cosine) >= least)


def check_queries(texts: Sequence[str]) -> None:
    """Refuse, by an InputError, queries that are no text, empty or not UTF-8."""
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"search: got {shorten(text)} as a query; expected a text; fix: give one string per query")
        if not text.strip() or not is_unicode(text):
            fault = "an empty query" if not text.strip() else f"{shorten(text)}, which is not UTF-8"
            raise InputError(f"search: got {fault}; expected a text; fix: write some words, in UTF-8")


def checked_limits(
    head: RelevanceHead | None,
    name: str,
    queries: Sequence[str],
    top: int,
    threshold: float | None,
    at_precision: float | None,
) -> float | None:
    """Return the lowest probability of a hit, `threshold` or that of a precision; an InputError refuses wrong input."""
    check_queries(queries)
    if top < 1:
        raise InputError(f"--top: got {top}; expected at least 1; fix: leave it out for 10")
    if threshold is not None and at_precision is not None:
        raise InputError(
            f"--at-precision: got {at_precision} together with --threshold; expected one of the two; fix: leave one out"
        )
    if threshold is not None and not 0 <= threshold <= 1:
        raise InputError(f"--threshold: got {threshold}; expected 0 to 1; fix: 0.5 is a start")
    if threshold is None and at_precision is None:
        return None
    if head is None:
        flag = "--threshold" if at_precision is None else "--at-precision"
        raise InputError(
            f"{flag}: got model {name!r} without a relevance head; expected a model with probabilities; "
            f"fix: run `bixse calibrate` on it, or leave {flag} out"
        )
    return threshold if at_precision is None else head.threshold_for(at_precision)


def read_queries(path: Path) -> dict[str, str]:
    """Read queries, id -> text, in file order; raises InputError for none, InvalidFileError for invalid lines.

    The file has the columns _id and text (.jsonl, .csv, .tsv, .parquet), or one query per line with ids q1, q2, ...
    """
    if kind_of(path) in (".jsonl", ".csv", ".tsv", ".parquet"):
        return queries_of_table(path)
    errors = InvalidFileError(path)
    queries: dict[str, str] = {}
    for number, line, _ in text_lines(path, errors):
        queries[f"q{number}"] = line
        if not line.strip():
            errors.add(number, "text", "an empty query", "a text", "fill it in or drop the line")
    errors.raise_any()
    if not queries:
        raise InputError(f"{path}: got no queries; expected at least one; fix: write one per line")
    return queries


def plain_hits(hits: Iterable[Hit]) -> list[dict[str, Any]]:
    """Return hits as plain data, ranked from 1."""
    return [
        {"rank": rank, "document_id": hit.document_id, "cosine": round(hit.cosine, 4),
         "probability": None if hit.probability is None else round(hit.probability, 4),
         "title": hit.title, "text": hit.text}
        for rank, hit in enumerate(hits, start=1)
    ]  # fmt: skip


def hit_lines(hits: Iterable[Hit]) -> list[str]:
    """Format hits for a terminal: rank, probability (or cosine), id, title, and the start of the text."""
    lines = []
    for rank, hit in enumerate(hits, start=1):
        figure = f"cos={hit.cosine:.2f}" if hit.probability is None else f"p={hit.probability:.2f}"
        heading = f"{hit.document_id}  {' '.join(hit.title.split())}".rstrip()
        text = " ".join(hit.text.split())
        lines.append(f"{rank:>3}. {figure}  {heading}\n     {text if len(text) <= 100 else text[:97] + '...'}")
    return lines or ["no document reaches the threshold"]


@dataclass(frozen=True)
class CollectionAnswer:
    """The result of `search_collection`."""

    hits: list[Hit]
    """Highest cosine first; equal cosines are in the order of the corpus."""
    warnings: list[str]


def search_collection(
    model: str | Path,
    collection: str | Path,
    query: str,
    top: int = 10,
    threshold: float | None = None,
    at_precision: float | None = None,
    task: str | None = None,
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> CollectionAnswer:
    """Return the best documents of a collection for a query. Texts are encoded once, see `EmbeddingStore`.

    `SearchSettings` describes the settings; `progress` makes a callback from a title and a total. Raises InputError for
    unusable input and ModelError if the model cannot be loaded.

    Example:
        ::

            for hit in search_collection("demo", "my-collection", "copy a folder", top=3).hits:
                hit.document_id, hit.cosine, hit.title
    """
    from bixse.encoders.encode import encode_texts  # here and below: a wrong query or path needs no torch
    from bixse.search.exact import exact_search
    from bixse.search.store import EmbeddingStore

    corpus = load_corpus(collection)
    encoder = build_encoder(model)
    use_task(encoder, task)
    least = checked_limits(encoder.head, str(model), [query], top, threshold, at_precision)
    store = EmbeddingStore(encoder, cache)
    documents = encode_corpus(store, corpus, progress)
    scores, rows = exact_search(encode_texts(encoder, [query], "query"), documents, top)
    items = list(corpus.items())
    hits = hits_of(matches_in(items, rows, scores)[0], encoder.head, least)
    empty = [name for name, document in items if not document.content]
    return CollectionAnswer(hits, [*warn_of_empty(empty, len(corpus)), *store.warnings()])


def encode_corpus(
    store: EmbeddingStore, corpus: Mapping[str, Document], progress: ProgressBars | None = None
) -> NDArray[np.float32]:
    """Return the (N, D) embeddings of a corpus, in its order; see `EmbeddingStore`."""
    step = progress("encode documents", len(corpus)) if progress is not None else None
    return store.encode([document.content for document in corpus.values()], step)


@dataclass(frozen=True)
class EncodedCollection:
    """A corpus and queries of one encoder in memory: encoded once, searched and compared as often as needed."""

    document_ids: Sequence[str]
    documents: NDArray[np.float32]
    """(N, D), L2-normalised."""
    query_ids: Sequence[str]
    queries: NDArray[np.float32]
    """(Q, D), L2-normalised."""

    def search(self, query_ids: Sequence[str], depth: int = DEPTH) -> dict[str, dict[str, float]]:
        """Return a run of the `depth` documents of highest cosine per query."""
        from bixse.search.exact import exact_search, to_run

        rows = self._rows(self.query_ids, query_ids)
        return to_run(
            list(query_ids), list(self.document_ids), *exact_search(self.queries[rows], self.documents, depth)
        )

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the cosine of each (query id, document id) pair, (M,) in [-1, 1]."""
        queries = self.queries[self._rows(self.query_ids, [query for query, _ in pairs])]
        documents = self.documents[self._rows(self.document_ids, [document for _, document in pairs])]
        cosines: NDArray[np.float64] = np.einsum("md,md->m", queries.astype(np.float64), documents.astype(np.float64))
        return cosines

    @staticmethod
    def _rows(ids: Sequence[str], wanted: Sequence[str]) -> list[int]:
        row_of = {identifier: row for row, identifier in enumerate(ids)}
        return [row_of[identifier] for identifier in wanted]


def encode_collection(
    model: SentenceTransformer,
    collection: Collection,
    query_ids: Sequence[str],
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> EncodedCollection:
    """Embed every document of a collection (see `encode_corpus`) and the named queries."""
    from bixse.encoders.encode import encode_texts
    from bixse.search.store import EmbeddingStore

    return EncodedCollection(
        document_ids=list(collection.corpus),
        documents=encode_corpus(EmbeddingStore(model, cache), collection.corpus, progress),
        query_ids=list(query_ids),
        queries=encode_texts(model, [collection.queries[query_id] for query_id in query_ids], "query"),
    )
