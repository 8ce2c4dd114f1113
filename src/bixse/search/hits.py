"""The hits of a search: retrieved documents with probabilities, and the limits on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bixse.errors import InputError, shorten
from bixse.files.files import is_unicode

if TYPE_CHECKING:
    from bixse.data.corpus import Document
    from bixse.encoders.head import RelevanceHead


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
