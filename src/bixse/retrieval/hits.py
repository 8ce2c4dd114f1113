"""What a search finds, and what may be asked: shared by indexes and collections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.data.io.files import is_unicode
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.collection import Document
    from bixse.encoders.head import RelevanceHead


@dataclass(frozen=True)
class Hit:
    """A document that was found."""

    document_id: str
    cosine: float
    """Cosine with the query."""
    probability: float | None
    """Probability that it is relevant, 0 to 1; None for a model without a relevance head."""
    title: str
    text: str


def hit(document_id: str, document: Document, cosine: float, head: RelevanceHead | None) -> Hit:
    """A document and its cosine as a hit."""
    return Hit(document_id, cosine, head.probability(cosine) if head is not None else None, *document)


def check_queries(texts: Sequence[str]) -> None:
    """Refuse queries that hold nothing.

    Raises:
        InputError: an empty query, or one that is not UTF-8.
    """
    for text in texts:
        if not text.strip() or not is_unicode(text):
            found = "an empty query" if not text.strip() else f"{shorten(text)}, which is not UTF-8"
            raise InputError(f"search: got {found}; expected a text; fix: write some words, in UTF-8")


def check_top(top: int) -> None:
    """Refuse a number of documents below 1; raises InputError."""
    if top < 1:
        raise InputError(f"--top: got {top}; expected at least 1; fix: leave it out for 10")


def chosen_threshold(
    head: RelevanceHead | None, name: str, threshold: float | None, at_precision: float | None
) -> float | None:
    """The probability below which documents are left out; None for no such.

    Args:
        head: of the model.
        name: of the model, for messages.
        threshold: the probability itself, 0 to 1.
        at_precision: or the share of relevant documents that calibration found one for.

    Raises:
        InputError: both are given, one is out of range, or the model has no relevance head or no such threshold.
    """
    if threshold is not None and at_precision is not None:
        raise InputError(
            f"--at-precision: got {at_precision} beside --threshold; expected one of the two; fix: leave one out"
        )
    if threshold is not None and not 0 <= threshold <= 1:
        raise InputError(f"--threshold: got {threshold}; expected 0 to 1; fix: 0.5 is a start")
    if threshold is None and at_precision is None:
        return None
    if head is None:
        flag = "--threshold" if at_precision is None else "--at-precision"
        raise InputError(
            f"{flag}: got model {name!r} without a relevance head; expected one that gives probabilities; "
            f"fix: run `bixse calibrate` on it, or leave {flag} out"
        )
    return threshold if at_precision is None else head.threshold_for(at_precision)
