"""Collections from and to folders in the BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from bixse.data.collection import Collection, Document
from bixse.data.row_files.columns import Column
from bixse.data.row_files.read import read_blocks
from bixse.data.row_files.write import write_rows
from bixse.data.trec import read_qrels, write_qrels
from bixse.errors import InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bixse.relevance import Qrels


MissingDocuments: TypeAlias = Literal["refuse", "drop"]
"""What is done with judgements that name a document which the corpus lacks."""
DOCUMENT_COLUMNS = (Column("_id", "id", unique=True), Column("title", needed=False), Column("text", may_be_empty=True))
"""Columns of a corpus. A document without title and text is no error: published corpora hold some, even judged ones."""
QUERY_COLUMNS = (Column("_id", "id", unique=True), Column("text"))
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
    available = {path.stem: path for path in sorted((folder / "qrels").glob("*.tsv"))}
    qrels: dict[str, Qrels] = {}
    missing: dict[str, int] = {}
    for split in splits if splits is not None else available:
        if split not in available:
            raise InputError(
                f"{folder / 'qrels'}: got split {split!r}; expected one of {sorted(available) or 'qrels/<split>.tsv'}; "
                "fix: name a split that has a qrels file"
            )
        judged = read_qrels(available[split])
        if missing_documents == "drop":
            kept = {query_id: {d: g for d, g in own.items() if d in corpus} for query_id, own in judged.items()}
            missing[split] = sum(map(len, judged.values())) - sum(map(len, kept.values()))
            judged = {query_id: own for query_id, own in kept.items() if own}
        check_qrels(available[split], judged, queries, corpus)
        qrels[split] = judged
    return Collection(folder.resolve().name, corpus, queries, qrels, missing)


def files_of_split(split: str) -> tuple[str, ...]:
    """The files of a collection folder that one split needs, as paths below the folder."""
    return "corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv"


def load_corpus(folder: str | Path) -> dict[str, Document]:
    """Read only the documents of a collection folder: document id -> document.

    Raises:
        InputError: the folder or its `corpus.jsonl` is missing, or no document has a title or a text.
        InvalidFileError: every error of the file together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )
    return read_corpus(folder / "corpus.jsonl")


def read_corpus(path: Path) -> dict[str, Document]:
    """Read a file of documents (`DOCUMENT_COLUMNS`): document id -> document.

    Raises:
        InputError: the file is missing, or no document has a title or a text.
        InvalidFileError: every error of the file together.
    """
    corpus = dict(stream_documents(path))
    if not any(document.content for document in corpus.values()):
        raise InputError(
            f"{path}: got {len(corpus)} documents, none of them with a title or a text; expected texts; "
            "fix: check the export"
        )
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


def save_collection(collection: Collection, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    folder = Path(folder)
    documents = list(collection.corpus.values())
    corpus = {
        "_id": list(collection.corpus),
        "title": [document.title for document in documents],
        "text": [document.text for document in documents],
    }
    write_rows(_table(corpus), folder / "corpus.jsonl")
    queries = {"_id": list(collection.queries), "text": list(collection.queries.values())}
    write_rows(_table(queries), folder / "queries.jsonl")
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)


def check_qrels(
    path: Path, qrels: Qrels, queries: Mapping[str, str], corpus: Mapping[str, Document] | None = None
) -> None:
    """Refuse judgements with ids that the collection lacks, or without a relevant document.

    Args:
        path: the file of judgements, for messages.
        qrels: its judgements.
        queries: query id -> text.
        corpus: document id -> document; None where documents are checked elsewhere.

    Raises:
        InvalidFileError: every id that is missing.
        InputError: no grade is above 0.
    """
    errors = InvalidFileError(path)
    for query_id, judged in qrels.items():
        if query_id not in queries:
            fix = "add the query or drop its rows"
            errors.add(None, "query-id", shorten(query_id), "an id of queries.jsonl", fix)
        for document_id in judged if corpus is not None else ():
            if document_id not in (corpus or ()):
                got = f"{shorten(document_id)} (judged for query {query_id!r})"
                fix = "add the document or drop the row (bixse evaluate and train: --missing-documents drop)"
                errors.add(None, "corpus-id", got, "an id of corpus.jsonl", fix)
    errors.raise_any()
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{path}: got no judgement above 0; expected at least one relevant document; "
            "fix: choose a split with judged queries"
        )


def _table(columns: Mapping[str, list[str]]) -> pa.Table:
    return pa.table(columns, schema=pa.schema({name: pa.string() for name in columns}))
