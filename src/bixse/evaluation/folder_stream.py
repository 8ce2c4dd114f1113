"""Collection folders of any size: checked once, then read document by document, never whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bixse.data.collection import Document
from bixse.data.io.files import is_unicode
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.trec import read_qrels
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from pathlib import Path

    from bixse.relevance import Qrels


@dataclass
class CorpusCheck:
    """What one reading of a corpus found, ids and exceptions alone."""

    count: int = 0
    """Documents."""
    empty: list[str] = field(default_factory=list)
    """Documents without title and text: published corpora hold some, even judged ones."""
    named_as_queries: dict[str, Document] = field(default_factory=dict)
    """Documents with the id of a judged query."""
    missing: set[str] = field(default_factory=set)
    """Judged documents that the corpus lacks."""
    missing_judgements: int = 0
    """Judgements of these."""

    def refuse_missing(self, path: Path, qrels: Qrels) -> None:
        """Raise InvalidFileError for the judgements, read from `path`, of documents that the corpus lacks."""
        faults = [
            RowError(
                None,
                "corpus-id",
                f"{shorten(name)} (judged for query {query_id!r})",
                "an id of corpus.jsonl",
                "add the document or drop the row (bixse evaluate and train: --missing-documents drop)",
            )
            for query_id, judged in qrels.items()
            for name in judged
            if name in self.missing
        ]
        if faults:
            raise InvalidFileError(path, faults[:ERRORS_SHOWN], len(faults))


def stream_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """The id and content of each document of a folder, in file order; `check_corpus` says whether all can be read.

    Args:
        folder: holds corpus.jsonl, one JSON object {_id, title, text} a line.
    """
    for _, row in _rows(folder / "corpus.jsonl"):
        yield str(row["_id"]), _document(row).content


def check_corpus(folder: Path, qrels: Qrels) -> CorpusCheck:
    """Read every line of a corpus once, keeping only the ids.

    Args:
        folder: the collection folder.
        qrels: judgements whose documents are looked for.

    Raises:
        InputError: no document, or none with a text.
        InvalidFileError: invalid rows: no object, no id, an id used twice or with white space, a text that is not one.
    """
    path = folder / "corpus.jsonl"
    seen: set[str] = set()
    found = CorpusCheck()

    def take(row: dict[str, Any]) -> None:
        name, document = str(row["_id"]), _document(row)
        seen.add(name)
        if not document.content:
            found.empty.append(name)
        if name in qrels:
            found.named_as_queries[name] = document

    _check_rows(path, seen, take)
    found.count = len(seen)
    if found.count == len(found.empty):
        raise InputError(
            f"{path}: got {found.count} documents, none of them with a title or a text; expected texts; "
            "fix: check the export"
        )
    missing = [name for judged in qrels.values() for name in judged if name not in seen]
    found.missing, found.missing_judgements = set(missing), len(missing)
    return found


def read_judged_queries(folder: Path, split: str) -> tuple[dict[str, str], Qrels]:
    """The judged queries of a split, and their judgements.

    Raises:
        InputError: a file is missing, a judged query has no text, or no grade is above 0.
        InvalidFileError: invalid rows.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )
    path = folder / "qrels" / f"{split}.tsv"
    if not path.is_file():
        splits = sorted(file.stem for file in (folder / "qrels").glob("*.tsv"))
        raise InputError(
            f"{folder / 'qrels'}: got split {split!r}; expected one of {splits or 'qrels/<split>.tsv'}; "
            "fix: name a split that has a qrels file"
        )
    qrels = read_qrels(path)
    queries: dict[str, str] = {}
    _check_rows(folder / "queries.jsonl", queries, lambda row: queries.update({str(row["_id"]): row["text"]}), True)
    missing = [query_id for query_id in qrels if query_id not in queries]
    if missing:
        raise InputError(
            f"{path}: got {len(missing)} judged queries without a text, such as {missing[0]!r}; expected each in "
            "queries.jsonl; fix: take queries and qrels from one release"
        )
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{path}: got no judgement above 0; expected at least one relevant document; fix: choose another split"
        )
    return {query_id: queries[query_id] for query_id in qrels}, qrels


def _document(row: dict[str, Any]) -> Document:
    return Document(row.get("title") or "", row.get("text") or "")


def _check_rows(
    path: Path, seen: Container[str], take: Callable[[dict[str, Any]], None], must_have_text: bool = False
) -> None:
    """Hand on every valid row; `seen` grows with them. Raises for the invalid ones together."""
    faults: list[RowError] = []
    total = 0
    for number, row in _rows(path, strict=False):
        fault = _fault(number, row, seen, must_have_text)
        if fault is None:
            take(row)
            continue
        total += 1
        if len(faults) < ERRORS_SHOWN:
            faults.append(fault)
    if faults:
        raise InvalidFileError(path, faults, total)


def _rows(path: Path, strict: bool = True) -> Iterator[tuple[int, Any]]:
    """Line number and JSON value of each line that is not blank; an invalid one raises, or comes as its RowError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row: Any = parse_json(line)
                except (ValueError, RecursionError) as error:
                    row = json_fault(number, line, error)
                if strict and not isinstance(row, dict):
                    raise InvalidFileError(path, [_no_object(number, row)])
                yield number, row
    except OSError as error:
        raise InputError(
            f"{path}: got {error.strerror or error}; expected a readable file; fix: check the folder"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: got bytes that are no UTF-8; expected UTF-8 text; fix: convert the file") from error


def _no_object(number: int, row: object) -> RowError:
    if isinstance(row, RowError):
        return row
    return RowError(number, None, shorten(row), "one JSON object per line", "correct the line")


def _fault(number: int, row: Any, seen: Container[str], must_have_text: bool) -> RowError | None:
    """The first fault of a row, or None."""
    if not isinstance(row, dict):
        return _no_object(number, row)
    identifier = row.get("_id")
    if identifier in (None, "") or isinstance(identifier, bool) or not isinstance(identifier, (str, int)):
        return RowError(number, "_id", shorten(identifier), "a text or a whole number", "give the row an _id")
    name = str(identifier)
    if name.split() != [name] or not is_unicode(name):
        return RowError(number, "_id", shorten(name), "no white space (it separates columns of TREC runs)", "rename")
    if name in seen:
        return RowError(number, "_id", shorten(name), "an id used once", "drop or rename the repeat")
    texts = [row.get("title") or "", row.get("text") or ""]
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        return RowError(number, "text", shorten(row.get("text")), "a text", "write it as a string of whole characters")
    if must_have_text and not texts[1].strip():
        return RowError(number, "text", shorten(row.get("text")), "a text", "fill it in or drop the row")
    return None
