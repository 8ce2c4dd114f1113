"""What a search is asked, and what it finds, in an index or a collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.data import collection_files
from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import is_unicode
from bixse.files.read import kind_of, text_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bixse.data.collection import Document
    from bixse.encoders.head import RelevanceHead


@dataclass(frozen=True)
class Hit:
    """A document that was found."""

    document_id: str
    cosine: float
    probability: float | None
    """Probability that it is relevant, 0 to 1; None for a model without a relevance head."""
    title: str
    text: str


def hits_of(
    found: Iterable[tuple[str, Document]], cosines: Iterable[float], head: RelevanceHead | None, least: float | None
) -> list[Hit]:
    """Ids and documents with their cosines as hits, without those less probable than `least`."""
    return [
        Hit(name, cosine, None if head is None else head.probability(cosine), *document)
        for (name, document), cosine in zip(found, cosines, strict=True)
        if probable(cosine, head, least)
    ]


def probable(cosine: float, head: RelevanceHead | None, least: float | None) -> bool:
    """Whether a document is at least so probable to be relevant; True where `least` is None."""
    return least is None or (head is not None and head.probability(cosine) >= least)


def check_queries(texts: Sequence[str]) -> None:
    """Refuse, by an InputError, queries that are empty or not UTF-8."""
    for text in texts:
        if not text.strip() or not is_unicode(text):
            found = "an empty query" if not text.strip() else f"{shorten(text)}, which is not UTF-8"
            raise InputError(f"search: got {found}; expected a text; fix: write some words, in UTF-8")


def check_top(top: int) -> None:
    """Refuse, by an InputError, a number of documents below 1."""
    if top < 1:
        raise InputError(f"--top: got {top}; expected at least 1; fix: leave it out for 10")


def chosen_threshold(
    head: RelevanceHead | None, name: str, threshold: float | None, at_precision: float | None
) -> float | None:
    """The probability below which documents are left out, given by itself or by the precision it was calibrated for.

    Raises InputError where both are given, one is out of range, or the model (`name`) has no head or no such threshold.
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


def read_queries(path: Path) -> dict[str, str]:
    r"""Queries from a file: query id -> text, in file order.

    The file has the columns _id and text (.jsonl, .csv, .parquet), or one query per line, after its id and a tab or
    without (then the ids are q1, q2, ... by line). Raises InputError where it holds no query, InvalidFileError with
    every invalid line.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "queries.txt"
        >>> _ = file.write_text("copy a file\n\nt7\tsort a list\n")
        >>> read_queries(file)
        {'q1': 'copy a file', 't7': 'sort a list'}
    """
    if kind_of(path) in (".jsonl", ".csv", ".parquet"):
        return collection_files.read_queries(path)
    errors = InvalidFileError(path)
    queries: dict[str, str] = {}
    for number, line, _ in text_lines(path, errors):
        before, tab, after = line.partition("\t")
        identifier, text = (before.strip(), after) if tab else (f"q{number}", line)
        if not text.strip():
            errors.add(number, "text", "an empty query", "a text", "fill it in or drop the line")
        elif identifier in queries:
            errors.add(number, "_id", f"{shorten(identifier)} again", "an id used once", "drop or rename the repeat")
        else:
            queries[identifier] = text
    errors.raise_any()
    if not queries:
        raise InputError(f"{path}: got no queries; expected at least one; fix: write one per line")
    return queries


def plain_hits(hits: Iterable[Hit]) -> list[dict[str, Any]]:
    """Hits as plain data, ranked from 1."""
    return [
        {"rank": rank, "document_id": hit.document_id, "cosine": round(hit.cosine, 4),
         "probability": None if hit.probability is None else round(hit.probability, 4),
         "title": hit.title, "text": hit.text}
        for rank, hit in enumerate(hits, start=1)
    ]  # fmt: skip


def hit_lines(hits: Iterable[Hit]) -> list[str]:
    """Hits for a terminal: rank, probability (or cosine) and title; then the start of the text."""
    lines = []
    for rank, hit in enumerate(hits, start=1):
        figure = f"cos={hit.cosine:.2f}" if hit.probability is None else f"p={hit.probability:.2f}"
        title = " ".join((hit.title or hit.document_id).split())
        text = " ".join(hit.text.split())
        lines.append(f"{rank:>3}. {figure}  {title}\n     {text if len(text) <= 100 else text[:97] + '...'}")
    return lines or ["no document reaches the threshold"]
