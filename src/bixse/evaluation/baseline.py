"""What every system is measured by, and the word-matching baseline; light, so that BM25 is searched at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.retrieval.bm25 import BM25

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.collection import Collection
    from bixse.relevance import Run

METRICS = ("ndcg@10", "recall@100", "mrr@10")
"""What every system is measured by; nDCG@10 is the headline."""
DEPTH = 100
"""Documents of a query that are retrieved."""


def search_bm25(
    collection: Collection, query_ids: Sequence[str], depth: int = DEPTH, exclude_self: bool = False
) -> dict[str, dict[str, float]]:
    """The `depth` documents of highest BM25 score of each query: a run.

    Args:
        collection: corpus and queries.
        query_ids: queries to answer.
        depth: documents per query.
        exclude_self: leave out the document whose id equals the query's id.

    Example:
        >>> from bixse.data.collection import Collection, Document
        >>> corpus = {"d1": Document("", "copies a file"), "d2": Document("", "waits"), "d3": Document("", "sorts")}
        >>> list(search_bm25(Collection("toy", corpus, {"q1": "copy a file"}), ["q1"], depth=1)["q1"])
        ['d1']
    """
    index = BM25(list(collection.corpus), [document.content for document in collection.corpus.values()])
    queries = {query_id: collection.queries[query_id] for query_id in query_ids}
    found: Run = index.search(queries, depth, exclude_self)
    return {query_id: dict(scores) for query_id, scores in found.items()}
