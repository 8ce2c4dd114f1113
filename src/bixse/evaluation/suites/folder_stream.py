"""Collection folders of any size: checked once, then read document by document, never whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.collection import Document
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.trec import read_qrels
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.relevance import Qrels


def stream_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """The id and content of each document of a folder, in file order; `check_corpus` says whether all can be read.

    Args:
        folder: holds corpus.jsonl, one JSON object {_id, title, text} a line.
    """
    for _, row in _rows(folder / "corpus.jsonl"):
        yield str(row["_id"]), Document(row.get("title") or "", row.get("text") or "").content


def check_corpus(folder: Path, qrels: Qrels) -> int:
    """Read every line of a corpus once, keeping only the ids.

    Args:
        folder: the collection folder.
        qrels: judgements whose documents must be there.

    Returns:
        The number of documents.

    Raises:
        InputError: no document, or a judged one that the corpus lacks.
        InvalidFileError: faulty lines: no object, no id, an id used twice, a text that is none. An empty document is
            no fault: published corpora hold some, even judged ones.
    """
    path = folder / "corpus.jsonl"
    seen: set[str] = set()
    faults: list[RowError] = []
    total = 0
    for number, row in _rows(path, strict=False):
        fault = _fault(number, row, seen)
        if fault is None:
            seen.add(str(row["_id"]))
            continue
        total += 1
        if len(faults) < ERRORS_SHOWN:
            faults.append(fault)
    if faults:
        raise InvalidFileError(path, faults, total)
    if not seen:
        raise InputError(f"{path}: got no document; expected at least one line; fix: check the export")
    missing = sorted({document_id for judged in qrels.values() for document_id in judged} - seen)
    if missing:
        raise InputError(
            f"{path}: got none of {len(missing)} judged documents, such as {missing[0]!r}; expected every judged "
            "document in the corpus; fix: take corpus and qrels from one release"
        )
    return len(seen)


def read_judged_queries(folder: Path, split: str) -> tuple[dict[str, str], Qrels]:
    """The judged queries of a split, and their judgements.

    Raises:
        InputError: a file is missing, a judged query has no text, or no grade is above 0.
        InvalidFileError: faulty lines.
    """
    path = folder / "qrels" / f"{split}.tsv"
    qrels = read_qrels(path)
    queries: dict[str, str] = {}
    for number, row in _rows(folder / "queries.jsonl"):
        fault = _fault(number, row, queries, must_have_text=True)
        if fault is not None:
            raise InvalidFileError(folder / "queries.jsonl", [fault])
        if str(row["_id"]) in qrels:
            queries[str(row["_id"])] = str(row["text"])
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


def _rows(path: Path, strict: bool = True) -> Iterator[tuple[int, Any]]:
    """Line number and JSON value of each line that is not blank; one that cannot be read raises, or gives its fault."""
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


def _fault(number: int, row: Any, seen: set[str] | dict[str, str], must_have_text: bool = False) -> RowError | None:
    """The first fault of a row, or None."""
    if not isinstance(row, dict):
        return _no_object(number, row)
    identifier = row.get("_id")
    if identifier in (None, "") or not isinstance(identifier, (str, int)):
        return RowError(number, "_id", shorten(identifier), "a text or a whole number", "give the row an _id")
    if str(identifier).split() != [str(identifier)]:
        return RowError(
            number, "_id", shorten(identifier), "no white space (it separates columns of TREC runs)", "rename"
        )
    if str(identifier) in seen:
        return RowError(number, "_id", shorten(identifier), "an id used once", "drop or rename the repeat")
    texts = [row.get("title") or "", row.get("text") or ""]
    if not all(isinstance(text, str) for text in texts) or (must_have_text and not texts[1].strip()):
        return RowError(number, "text", shorten(row.get("text")), "a text", "fill it in or drop the row")
    return None
