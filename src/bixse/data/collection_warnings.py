"""What of a collection makes figures mislead, said in a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.transforms.pair_columns import normal_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.data.collection import Collection, Document
    from bixse.relevance import Qrels

RELEVANCE_LEVEL = 1.0
"""Grade from which a document is relevant for recall and MRR, unless another is chosen."""


def warn_of_collection(data: Collection, split: str, relevance_level: float, exclude_self: bool) -> list[str]:
    """Documents without text or missing, grades below the level, queries that are documents.

    Args:
        data: the collection.
        split: the judgements that are scored against.
        relevance_level: grade from which a document is relevant for recall and MRR.
        exclude_self: the document that has the query's own id is left out of its answers.
    """
    qrels = data.qrels[split]
    return [
        *warn_of_empty(data.corpus),
        *warn_of_missing(data, split),
        *_warn_of_level(qrels, relevance_level),
        *_warn_of_self_matches(data, qrels, exclude_self),
    ]


def warn_of_empty(corpus: Mapping[str, Document]) -> list[str]:
    """One line that counts the documents without title and text, or none.

    Published collections hold some, even judged ones (Cranfield two of 1,400). They are kept: without them the figures
    would be those of another collection.

    Example:
        >>> warn_of_empty({"d1": Document("", "copies a file"), "d2": Document("", " ")})
        ["1 of 2 documents has neither title nor text ('d2'): it is kept as it is"]
    """
    empty = [name for name, document in corpus.items() if not document.content]
    if not empty:
        return []
    has, it = ("has", "it is kept as it is") if len(empty) == 1 else ("have", "they are kept as they are")
    return [f"{len(empty)} of {len(corpus)} documents {has} neither title nor text ({empty[0]!r}): {it}"]


def warn_of_missing(collection: Collection, split: str) -> list[str]:
    """One line that counts the judgements left out since the corpus lacks their document, or none."""
    count = collection.missing.get(split, 0)
    if not count:
        return []
    total = count + sum(map(len, collection.qrels[split].values()))
    return [
        f"{count:,} of {total:,} judgements of split {split!r} name a document that the corpus lacks and are left out: "
        "figures are not those of the whole collection"
    ]


def _warn_of_level(qrels: Qrels, level: float) -> list[str]:
    """A level that no grade reaches, or the default one above fractional grades."""
    grades = [grade for judged in qrels.values() for grade in judged.values() if grade > 0]
    below = [grade for grade in grades if grade < level]
    effect = "irrelevant for recall and MRR; nDCG takes every grade as it is"
    if below and len(below) == len(grades):
        return [
            f"no grade reaches the relevance level {level:g} (the highest is {max(grades):g}): all documents are "
            f"{effect}; fix: --relevance-level {max(grades):g} or lower"
        ]
    fractional = [grade for grade in below if grade != int(grade)]
    if fractional and level == RELEVANCE_LEVEL:
        return [
            f"{len(fractional):,} of {len(grades):,} grades above 0 are fractions below the relevance level {level:g}: "
            f"these documents are {effect}; fix: --relevance-level GRADE where they are relevant"
        ]
    return []


def _warn_of_self_matches(data: Collection, qrels: Qrels, exclude_self: bool) -> list[str]:
    """Queries that are documents, by id and text, or that lose a document which only has the same id."""
    both = [query_id for query_id in qrels if query_id in data.corpus]
    same = [query_id for query_id in both if _is_document(data.queries[query_id], data.corpus[query_id])]
    other = len(both) - len(same)
    if exclude_self and other:
        number = "1 query" if other == 1 else f"{other:,} queries"
        return [
            f"--exclude-self leaves a document out of the answers to {number} that has the query's id and another "
            f"text ({next(name for name in both if name not in set(same))!r}); fix: leave the flag out where ids are "
            "equal by accident"
        ]
    if exclude_self or not same:
        return []
    found = "1 query is a document too" if len(same) == 1 else f"{len(same):,} queries are documents too"
    accident = f" ({other:,} others share an id with another text, and would lose a document)" if other else ""
    return [
        f"{found}, with the same id and the same text ({same[0]!r}), and will find themselves; fix: --exclude-self "
        f"leaves the document with the query's id out of its answers{accident}"
    ]


def _is_document(query: str, document: Document) -> bool:
    """Whether a query and a document are one text; titles, letter case and white space aside."""
    return normal_form(query) in (normal_form(document.text), normal_form(document.content))
