"""Collection folders of any size: checked once, then read document by document, never whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data import collection_files
from bixse.data.collection_files import check_qrels, read_queries
from bixse.data.trec import read_qrels
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.relevance import Qrels


def stream_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """The id and content of each document of a folder, in file order; `check_corpus` says whether all can be read."""
    for document_id, document in collection_files.stream_documents(folder / "corpus.jsonl"):
        yield document_id, document.content


def check_corpus(folder: Path, qrels: Qrels) -> int:
    """Read every line of a corpus once, keeping only the ids.

    Args:
        folder: the collection folder.
        qrels: judgements whose documents must be there.

    Returns:
        The number of documents.

    Raises:
        InputError: no document, or a judged one that the corpus lacks.
        InvalidFileError: every error of the file together.
    """
    missing = {document_id for judged in qrels.values() for document_id in judged}
    count = 0
    for document_id, _ in stream_documents(folder):
        missing.discard(document_id)
        count += 1
    if missing:
        raise InputError(
            f"{folder / 'corpus.jsonl'}: got none of {len(missing)} judged documents, such as {min(missing)!r}; "
            "expected every judged document in the corpus; fix: take corpus and qrels from one release"
        )
    return count


def read_judged_queries(folder: Path, split: str) -> tuple[dict[str, str], Qrels]:
    """The judged queries of a split, and their judgements.

    Raises:
        InputError: a file is missing, or no grade is above 0.
        InvalidFileError: every error of a file together: also judged queries without a text.
    """
    path = folder / "qrels" / f"{split}.tsv"
    qrels = read_qrels(path)
    queries = read_queries(folder / "queries.jsonl")
    check_qrels(path, qrels, queries)
    return {query_id: queries[query_id] for query_id in qrels}, qrels
