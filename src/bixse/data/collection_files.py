"""Collections from and to folders in the BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bixse.data.collection import Collection, Document
from bixse.data.io.files import is_unicode, read_text, write_atomically
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.trec import read_qrels, write_qrels
from bixse.errors import InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.relevance import Qrels


MissingDocuments: TypeAlias = Literal["refuse", "drop"]
"""What is done with judgements that name a document which the corpus lacks."""


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
        InvalidFileError: every faulty row of a file together.

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
    queries = {identifier: row["text"] for identifier, row in _read_rows(folder / "queries.jsonl", ("text",)).items()}
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
        _check_qrels(available[split], judged, corpus, queries)
        qrels[split] = judged
    return Collection(folder.resolve().name, corpus, queries, qrels, missing)


def files_of_split(split: str) -> tuple[str, ...]:
    """The files of a collection folder that one split needs, as paths below the folder."""
    return "corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv"


def load_corpus(folder: str | Path) -> dict[str, Document]:
    """Read only the documents of a collection folder: document id -> document.

    Raises:
        InputError: the folder or its `corpus.jsonl` is missing or holds no document.
        InvalidFileError: every faulty row together. A document whose title and text are both empty is no fault, see
            `warn_of_empty`; a row without either key is one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )
    rows = _read_rows(folder / "corpus.jsonl", ("title", "text"), may_be_empty=True)
    corpus = {name: Document(row.get("title") or "", row.get("text") or "") for name, row in rows.items()}
    if not any(document.content for document in corpus.values()):
        raise InputError(
            f"{folder / 'corpus.jsonl'}: got {len(corpus)} documents, none of them with a title or a text; expected "
            "texts; fix: check the export"
        )
    return corpus


def warn_of_empty(empty: Sequence[str], count: int) -> list[str]:
    """One line that counts the documents without title and text, or none.

    Published collections hold some, even judged ones (Cranfield two of 1,400). They are kept: without them the figures
    would be those of another collection.

    Args:
        empty: ids of the documents without title and text.
        count: documents of the corpus.

    Example:
        >>> warn_of_empty(["d2"], 2)
        ["1 of 2 documents has neither title nor text ('d2'): it is kept as it is"]
    """
    if not empty:
        return []
    has, it = ("has", "it is kept as it is") if len(empty) == 1 else ("have", "they are kept as they are")
    return [f"{len(empty)} of {count} documents {has} neither title nor text ({empty[0]!r}): {it}"]


def warn_of_missing(missing: int, qrels: Qrels, split: str) -> list[str]:
    """One line that counts the judgements left out since the corpus lacks their document, or none.

    Args:
        missing: judgements left out, see `Collection.missing`.
        qrels: those that were kept.
        split: their name.

    Example:
        >>> warn_of_missing(0, {"q": {"d": 1}}, "test")
        []
    """
    if not missing:
        return []
    total = missing + sum(map(len, qrels.values()))
    return [
        f"{missing:,} of {total:,} judgements of split {split!r} name a document that the corpus lacks and are "
        "left out: figures are not those of the whole collection"
    ]


def save_collection(collection: Collection, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    folder = Path(folder)
    write_atomically(
        folder / "corpus.jsonl",
        "".join(
            json.dumps({"_id": identifier, "title": document.title, "text": document.text}, ensure_ascii=False) + "\n"
            for identifier, document in collection.corpus.items()
        ),
    )
    write_atomically(
        folder / "queries.jsonl",
        "".join(
            json.dumps({"_id": identifier, "text": text}, ensure_ascii=False) + "\n"
            for identifier, text in collection.queries.items()
        ),
    )
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)


def _read_rows(path: Path, text_keys: tuple[str, ...], may_be_empty: bool = False) -> dict[str, dict[str, Any]]:
    """Rows of a JSONL file by `_id`; a row needs an id seen once and a text, or where it may be empty a key for one."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: got {found}; expected the collection's {path.name}; fix: add it")
    faults: list[RowError] = []
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            faults.append(json_fault(number, line, error))
            continue
        fault = _row_fault(number, row, text_keys, may_be_empty)
        if fault is None and (identifier := str(row["_id"])) in rows:
            fault = RowError(number, "_id", shorten(identifier), "an id used once", "drop or rename the repeat")
        if fault is None:
            rows[identifier] = row
        else:
            faults.append(fault)
    if faults:
        raise InvalidFileError(path, faults)
    if not rows:
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")
    return rows


def _row_fault(number: int, row: Any, text_keys: tuple[str, ...], may_be_empty: bool) -> RowError | None:
    """The first fault of a row by itself, or None."""
    identifier = row.get("_id") if isinstance(row, dict) else None
    if identifier in (None, ""):
        return RowError(number, "_id", shorten(row), "an object with an _id", "give the row an _id")
    if not isinstance(identifier, (str, int)) or isinstance(identifier, bool) or not is_unicode(str(identifier)):
        return RowError(number, "_id", shorten(identifier), "a text or a whole number", "write ids as strings")
    for key in text_keys:
        value = row.get(key)
        if value is not None and (not isinstance(value, str) or not is_unicode(value)):
            return RowError(number, key, shorten(value), "a text", "write it as a string of whole characters")
    if any((row.get(key) or "").strip() for key in text_keys) or (
        may_be_empty and any(key in row for key in text_keys)
    ):
        return None
    found = "an empty text" if not may_be_empty else f"no {' and no '.join(text_keys)}"
    return RowError(number, text_keys[-1], found, "a text", "fill it in or drop the row")


def _check_qrels(path: Path, qrels: Qrels, corpus: Mapping[str, Document], queries: Mapping[str, str]) -> None:
    """Refuse judgements with ids that the collection lacks, or without a relevant document."""
    faults = []
    for query_id, judged in qrels.items():
        if query_id not in queries:
            faults.append(
                RowError(
                    None, "query-id", shorten(query_id), "an id of queries.jsonl", "add the query or drop its rows"
                )
            )
        faults.extend(
            RowError(
                None,
                "corpus-id",
                f"{shorten(document_id)} (judged for query {query_id!r})",
                "an id of corpus.jsonl",
                "add the document or drop the row (bixse evaluate and train: --missing-documents drop)",
            )
            for document_id in judged
            if document_id not in corpus
        )
    if faults:
        raise InvalidFileError(path, faults)
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{path}: got no judgement above 0; expected at least one relevant document; "
            "fix: choose a split with judged queries"
        )
