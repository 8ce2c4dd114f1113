"""Random documents of a corpus as irrelevant pairs, beside those that were judged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError

if TYPE_CHECKING:
    from bixse.data.collection import Collection


def with_random_negatives(pairs: GradedPairs, collection: Collection, number: int, seed: int = 0) -> GradedPairs:
    """Add documents of a corpus, drawn at random for each query, as pairs of relevance 0.

    Never one that is judged for the query: by a pair (same id, or same text) or by a split of the collection (same
    query id, or same text of the query). What is drawn for a query depends on seed, query id and corpus alone, not on
    the other queries. A document that nobody judged may still be relevant; of a large corpus few are.

    Args:
        pairs: judged pairs.
        collection: documents to draw from, and its judgements of all splits.
        number: documents per query, 1 and up.
        seed: of the draws.

    Returns:
        The pairs, then the added ones by query.

    Raises:
        InputError: a number below 1, or fewer documents left for a query than wanted.

    Example:
        >>> from bixse.data.collection import Collection, Document
        >>> row = {"query_id": "q", "query": "copy", "document_id": "d1", "document": "copies a file", "relevance": 1.0}
        >>> texts = {"d1": "copies a file", "d2": "waits", "d3": "sorts"}
        >>> toy = Collection("toy", {name: Document("", text) for name, text in texts.items()}, {})
        >>> sorted(with_random_negatives(GradedPairs.from_rows([row]), toy, 2).document_ids)
        ['d1', 'd2', 'd3']
    """
    if number < 1:
        raise InputError(f"--negatives: got {number}; expected 1 or more; fix: leave it out for none")
    names = [name for name, document in collection.corpus.items() if document.content]
    by_text: dict[str, set[str]] = {}
    wanted = set(pairs.documents)
    for name in names:
        document = collection.corpus[name]
        for text in {document.content, document.text} & wanted:
            by_text.setdefault(text, set()).add(name)
    ids_of_query: dict[str, set[str]] = {}
    for query_id, text in collection.queries.items():
        ids_of_query.setdefault(text, set()).add(query_id)
    added: list[dict[str, Any]] = []
    for group in pairs.groups():
        judged = set(group.document_ids).union(*(by_text.get(text, ()) for text in group.documents))
        for query_id in {group.query_id} | ids_of_query.get(group.query, set()):
            judged |= {name for qrels in collection.qrels.values() for name in qrels.get(query_id, ())}
        draw = random.Random(f"{seed} {group.query_id}")
        drawn = draw.sample(names, min(len(names), number + len(judged)))
        chosen = [name for name in drawn if name not in judged][:number]
        if len(chosen) < number:
            raise InputError(
                f"--negatives: got {len(chosen)} documents that are not judged for query {group.query_id!r}, of "
                f"{len(names)} in the corpus; expected at least {number}; fix: ask for fewer, or name a larger corpus"
            )
        about = {"query_id": group.query_id, "query": group.query, "task": group.task, "relevance": 0.0}
        added += [{**about, "document_id": name, "document": collection.corpus[name].content} for name in chosen]
    return GradedPairs.from_rows([*pairs.rows(), *added])
