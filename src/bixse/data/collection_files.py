"""Collections from and to folders in the BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bixse.data.collection import Collection, Document, MissingDocuments
from bixse.data.row_files.read import read_blocks
from bixse.data.row_files.values import FileColumn
from bixse.data.row_files.write import write_rows
from bixse.data.trec import read_qrels, write_qrels
from bixse.errors import InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from bixse.relevance import Qrels


DOCUMENT_COLUMNS = (
    FileColumn("_id", "id", unique=True),
    FileColumn("title", needed=False),
    FileColumn("text", may_be_empty=True),
)
"""Columns of a corpus. A document without title and text is no error: published corpora hold some, even judged ones."""
QUERY_COLUMNS = (FileColumn("_id", "id", unique=True), FileColumn("text"))
"""Columns of queries."""


def load_collection(
    folder: str | Path, splits: list[str] | None = None, missing_documents: MissingDocuments = "refuse"
) -> Collection:
    """Read a collection folder and check that its qrels name only documents and queries it holds.

    Args:
        folder: holds `corpus.jsonl` ({_id, title, text}), `queries.jsonl` ({_id, text}) and `qrels/<split>.tsv`.
        splits: the splits to read; None reads every qrels file.
        missing_documents: of judgements that name a document which the corpus lacks: "refuse" raises, "drop" leaves
            them out and counts them in `Collection.missing`. Figures are then not those of the whole collection: the
            ideal ranking lacks these documents too.

    Raises:
        InputError: a file or split is missing, or a split has no judged query.
        InvalidFileError: every error of a file together.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> toy = Collection("toy", {"d1": Document("", "copies a file")}, {"q1": "copy"}, {"test": {"q1": {"d1": 2}}})
        >>> save_collection(toy, folder)
        >>> load_collection(folder).qrels["test"]
        {'q1': {'d1': 2.0}}
    """
    folder = Path(folder)
    corpus = load_corpus(folder)
    queries = read_queries(folder / "queries.jsonl")
    qrels: dict[str, Qrels] = {}
    missing: dict[str, int] = {}
    for split in splits if splits is not None else _splits(folder):
        path = judgements_of(folder, split)
        judged = read_qrels(path)
        absent = {document_id for own in judged.values() for document_id in own if document_id not in corpus}
        if missing_documents == "drop":
            judged, missing[split] = drop_missing(judged, absent)
            absent = set()
        check_qrels(path, judged, queries, absent)
        qrels[split] = judged
    return Collection(folder.resolve().name, corpus, queries, qrels, missing)


def files_of_split(split: str) -> tuple[str, ...]:
    """The files of a collection folder that one split needs, as paths below the folder."""
    return "corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv"


def judgements_of(folder: Path, split: str) -> Path:
    """The qrels file of a split of a collection folder.

    Raises:
        InputError: there is no such folder or split.
    """
    _check_folder(folder)
    if split not in _splits(folder):
        raise InputError(
            f"{folder / 'qrels'}: got split {split!r}; expected one of {_splits(folder) or 'qrels/<split>.tsv'}; "
            "fix: name a split that has a qrels file"
        )
    return folder / "qrels" / f"{split}.tsv"


def load_corpus(folder: str | Path) -> dict[str, Document]:
    """Read only the documents of a collection folder: document id -> document.

    Raises:
        InputError: the folder or its `corpus.jsonl` is missing, or no document has a title or a text.
        InvalidFileError: every error of the file together.
    """
    folder = Path(folder)
    _check_folder(folder)
    return read_corpus(folder / "corpus.jsonl")


def read_corpus(path: Path) -> dict[str, Document]:
    """Read a file of documents (`DOCUMENT_COLUMNS`): document id -> document.

    Raises:
        InputError: the file is missing, or no document has a title or a text.
        InvalidFileError: every error of the file together.
    """
    corpus = dict(stream_documents(path))
    _refuse_all_empty(path, len(corpus), sum(not document.content for document in corpus.values()))
    return corpus


def stream_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """The documents of a file one by one, in file order, never all in memory.

    Raises:
        InputError: the file is missing or holds no row.
        InvalidFileError: every error of the file together, when it has been read.
    """
    for block in read_blocks(path, DOCUMENT_COLUMNS):
        for name, title, text in zip(*block.columns.values(), strict=True):
            yield name, Document(title or "", text)


def read_queries(path: Path) -> dict[str, str]:
    """Read a file of queries (`QUERY_COLUMNS`): query id -> text, in file order.

    Raises:
        InputError: the file is missing or holds no row.
        InvalidFileError: every error of the file together.
    """
    queries: dict[str, str] = {}
    for block in read_blocks(path, QUERY_COLUMNS):
        queries.update(zip(block.columns["_id"], block.columns["text"], strict=True))
    return queries


@dataclass
class CorpusCheck:
    """What one reading of a corpus found: ids and exceptions alone."""

    count: int = 0
    empty: list[str] = field(default_factory=list)
    """Ids of the documents without title and text."""
    named_as_queries: dict[str, Document] = field(default_factory=dict)
    """Documents with the id of a judged query."""
    missing: set[str] = field(default_factory=set)
    """Judged documents that the corpus lacks."""


def check_corpus(path: Path, qrels: Qrels) -> CorpusCheck:
    """Read a corpus of any size once, and look for the documents that are judged.

    Raises:
        InputError: the file is missing, or no document has a title or a text.
        InvalidFileError: every error of the file together.
    """
    found = CorpusCheck(missing={document_id for judged in qrels.values() for document_id in judged})
    for name, document in stream_documents(path):
        found.count += 1
        found.missing.discard(name)
        if not document.content:
            found.empty.append(name)
        if name in qrels:
            found.named_as_queries[name] = document
    _refuse_all_empty(path, found.count, len(found.empty))
    return found


def drop_missing(qrels: Qrels, missing: Container[str]) -> tuple[dict[str, dict[str, float]], int]:
    """The judgements of documents that are there, and how many were left out; a query without any goes."""
    kept = {query_id: {d: g for d, g in own.items() if d not in missing} for query_id, own in qrels.items()}
    number = sum(map(len, qrels.values())) - sum(map(len, kept.values()))
    return {query_id: own for query_id, own in kept.items() if own}, number


def save_collection(collection: Collection, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    folder = Path(folder)
    documents = [(name, *document) for name, document in collection.corpus.items()]
    write_rows(_table(("_id", "title", "text"), documents), folder / "corpus.jsonl")
    write_rows(_table(("_id", "text"), list(collection.queries.items())), folder / "queries.jsonl")
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)


def check_qrels(path: Path, qrels: Qrels, queries: Mapping[str, str], missing: Container[str]) -> None:
    """Refuse the judgements of a file with ids that the collection lacks, or without a relevant document.

    Raises:
        InvalidFileError: every id that is missing.
        InputError: no grade is above 0.
    """
    errors = InvalidFileError(path)
    for query_id, judged in qrels.items():
        if query_id not in queries:
            fix = "add the query or drop its rows"
            errors.add(None, "query-id", shorten(query_id), "an id of queries.jsonl", fix)
        for document_id in judged:
            if document_id in missing:
                got = f"{shorten(document_id)} (judged for query {query_id!r})"
                fix = "add the document or drop the row (bixse evaluate and train: --missing-documents drop)"
                errors.add(None, "corpus-id", got, "an id of corpus.jsonl", fix)
    errors.raise_any()
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{path}: got no judgement above 0; expected at least one relevant document; "
            "fix: choose a split with judged queries"
        )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )


def _splits(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))


def _refuse_all_empty(path: Path, count: int, empty: int) -> None:
    if count == empty:
        raise InputError(
            f"{path}: got {count} documents, none of them with a title or a text; expected texts; fix: check the export"
        )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in names]
    return pa.table([pa.array(column, pa.string()) for column in columns], names)
