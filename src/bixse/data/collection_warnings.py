"""What of a collection makes figures mislead, said in a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.transforms import normal_form
from bixse.relevance import MIN_RELEVANT_GRADE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.data.collection import Document
    from bixse.data.collection_files import CorpusCheck
    from bixse.relevance import Qrels


def warn_of_collection(
    corpus: CorpusCheck,
    missing: int,
    split: str,
    queries: Mapping[str, str],
    qrels: Qrels,
    min_relevant_grade: float,
    exclude_self: bool,
) -> list[str]:
    """Documents without text or missing, grades below the lowest relevant one, queries that are documents.

    Args:
        corpus: what was found in the corpus.
        missing: judgements of the split that were left out since the corpus lacks their document.
        split: name of the judgements.
        queries: the judged queries.
        qrels: the judgements that are scored against.
        min_relevant_grade: grade from which a document is relevant for recall, MRR and MAP.
        exclude_self: the document that has the query's own id is left out of its answers.
    """
    return [
        *warn_of_empty(corpus.empty, corpus.count),
        *warn_of_missing(missing, qrels, split),
        *_warn_of_grades(qrels, min_relevant_grade),
        *_warn_of_self_matches(queries, corpus.named_as_queries, exclude_self),
    ]


def warn_of_empty(empty: Sequence[str], count: int) -> list[str]:
    """One line that counts the documents without title and text, or none.

    Published collections hold some, even judged ones (Cranfield two of 1,400). They are kept: without them the figures
    would be those of another collection.

    Example:
        >>> warn_of_empty(["d2"], 2)
        ["1 of 2 documents has neither title nor text ('d2'): it is kept as it is"]
    """
    if not empty:
        return []
    has, it = ("has", "it is kept as it is") if len(empty) == 1 else ("have", "they are kept as they are")
    return [f"{len(empty)} of {count} documents {has} neither title nor text ({empty[0]!r}): {it}"]


def warn_of_missing(missing: int, qrels: Qrels, split: str) -> list[str]:
    """One line that counts the judgements left out beside `qrels` since the corpus lacks their document, or none."""
    if not missing:
        return []
    total = missing + sum(map(len, qrels.values()))
    return [
        f"{missing:,} of {total:,} judgements of split {split!r} name a document that the corpus lacks and are left "
        "out: figures are not those of the whole collection"
    ]


def _warn_of_grades(qrels: Qrels, lowest: float) -> list[str]:
    """A lowest relevant grade that no grade reaches, or the default one above fractional grades."""
    grades = [grade for judged in qrels.values() for grade in judged.values() if grade > 0]
    below = [grade for grade in grades if grade < lowest]
    effect = "irrelevant for recall, MRR and MAP; nDCG takes every grade as it is"
    if below and len(below) == len(grades):
        return [
            f"no grade reaches the lowest relevant grade {lowest:g} (the highest is {max(grades):g}): all documents "
            f"are {effect}; fix: --min-relevant-grade {max(grades):g} or lower"
        ]
    fractional = [grade for grade in below if grade != int(grade)]
    if fractional and lowest == MIN_RELEVANT_GRADE:
        return [
            f"{len(fractional):,} of {len(grades):,} grades above 0 are fractions below the lowest relevant grade "
            f"{lowest:g}: these documents are {effect}; fix: --min-relevant-grade GRADE where they are relevant"
        ]
    return []


def _warn_of_self_matches(
    queries: Mapping[str, str], named_as_queries: Mapping[str, Document], exclude_self: bool
) -> list[str]:
    """Queries that are documents, by id and text, or that lose a document which only has the same id."""
    both = {name: named_as_queries[name] for name in queries if name in named_as_queries}
    same = [name for name, document in both.items() if _is_document(queries[name], document)]
    others = [name for name in both if name not in set(same)]
    if exclude_self and others:
        number = "1 query" if len(others) == 1 else f"{len(others):,} queries"
        return [
            f"--exclude-self leaves a document out of the answers to {number} that has the query's id and another "
            f"text ({others[0]!r}); fix: leave the flag out where ids are equal by accident"
        ]
    if exclude_self or not same:
        return []
    found = "1 query is a document too" if len(same) == 1 else f"{len(same):,} queries are documents too"
    accident = f" ({len(others):,} others share an id with another text, and would lose a document)" if others else ""
    return [
        f"{found}, with the same id and the same text ({same[0]!r}), and will find themselves; fix: --exclude-self "
        f"leaves the document with the query's id out of its answers{accident}"
    ]


def _is_document(query: str, document: Document) -> bool:
    """Whether a query and a document are one text; titles, letter case and white space aside."""
    return normal_form(query) in (normal_form(document.text), normal_form(document.content))
