"""Read documents, queries and labels as people have them: files of rows, folders, data sets, frames, dictionaries."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bixse.data.joined import MOST_UNJOINED, Unjoined, warn_of
from bixse.data.text_files import read_text_folder
from bixse.data.trec import one_grade, read_qrels
from bixse.errors import InputError, InvalidFileError, did_you_mean, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import FORMATS, kind_of, raw_rows, read_blocks
from bixse.files.values import DOCUMENT_IDS, FileColumn, missing_column_hint
from bixse.relevance import numbers

DOCUMENT_COLUMNS = (
    # MS MARCO 2 has two ids for a passage: `docid` is that of its document
    FileColumn("_id", "id", unique=True, other_names=("pid", "docid", "doc_id", "document_id", "id")),
    FileColumn("title", needed=False),
    FileColumn("text", may_be_empty=True, other_names=("contents", "passage", "segment", "body", "document")),
)
"""Columns of a corpus, under the names that tools use.

Documents without title and text are valid: published corpora hold some, even judged ones.
"""
QUERY_COLUMNS = (
    FileColumn("_id", "id", unique=True, other_names=("qid", "query_id", "id", "topic_id", "question_id")),
    FileColumn("text", other_names=("query", "question", "title", "query_text")),
)
LABEL_COLUMNS = (
    FileColumn("query-id", "id", other_names=("query_id", "qid", "topic_id", "question_id")),
    FileColumn("corpus-id", "id", other_names=DOCUMENT_IDS),
    FileColumn("score", "number", other_names=("grade", "relevance", "label", "rating")),
)
KEYS = {
    "documents": dict(zip(("id", "title", "text"), DOCUMENT_COLUMNS, strict=True)),
    "queries": dict(zip(("id", "text"), QUERY_COLUMNS, strict=True)),
    "labels": dict(zip(("query", "document", "grade"), LABEL_COLUMNS, strict=True)),
}
"""Part of a collection -> key -> its column. `documents.id` and so on are the keys that people map."""
ROWS_FOR_NAMES = 100
"""Number of rows of JSONL whose keys are the names of its columns."""
SHORT = 40
"""Maximum length of a text without white space that looks like an id or a code."""

IR_DATASETS = "irds:"
"""Start of the name of a collection of ir_datasets, as PyTerrier writes it: irds:vaswani."""


class GivenParts(NamedTuple):
    """The parts of a collection, by id."""

    documents: Mapping[str, Any]
    queries: Mapping[str, str]
    labels: Mapping[str, Mapping[str, float]] | None
    notes: list[str]
    """Guessed columns and files that were left out."""


def read_given(documents: Any, queries: Any, labels: Any, columns: Mapping[str, str]) -> GivenParts:
    """Read the parts of a collection in any form; dictionaries by id stay as they are.

    Raise InputError for a form, column or file that cannot be used, and InvalidFileError for all wrong rows of a file.
    """
    check_columns(columns)
    notes: list[str] = []
    if not isinstance(documents, Mapping):
        rows = _read_part("documents", documents, columns, notes)
        titles = rows.get("title") or [None] * len(rows["id"])
        texts = [{"title": title, "text": text} for title, text in zip(titles, rows["text"], strict=True)]
        documents = dict(zip(rows["id"], texts, strict=True))
    if not isinstance(queries, Mapping):
        rows = _read_part("queries", queries, columns, notes)
        queries = dict(zip(rows["id"], rows["text"], strict=True))
    if not (labels is None or isinstance(labels, Mapping)):
        labels = _read_labels(labels, columns, notes)
    return GivenParts(documents, queries, labels, notes)


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse the name of a column for a key that does not exist."""
    known = [f"{part}.{key}" for part, keys in KEYS.items() for key in keys]
    if unknown := [key for key in columns if key not in known]:
        raise InputError(
            f"columns: got {shorten(unknown[0])}; expected {', '.join(known)}; fix: {did_you_mean(unknown[0], known)}"
        )


def check_by_id(
    queries: Mapping[str, Any], corpus: Mapping[str, Any], qrels: Mapping[str, Any] | None, are_texts: bool, order: str
) -> None:
    """Refuse dictionaries in another order, and entries of another kind; `are_texts`: each document is a text."""
    judged = {} if qrels is None else qrels
    fix = f"pass ({order}) in this order"
    parts = (
        ("queries", queries, "a text", all(is_text(text) and text.strip() for text in queries.values())),
        ("corpus", corpus, "a text or {'title': ..., 'text': ...}", are_texts),
        ("qrels", judged, "{document id: grade}", all(isinstance(row, Mapping) for row in judged.values())),
    )
    for name, part, expected, is_right in parts:
        ids = all(isinstance(key, str) for key in part)
        if not (ids and is_right and (part or (name == "qrels" and qrels is None))):
            got = shorten(dict(islice(part.items(), 1))) if part else "no entry"
            if name == "qrels" and any(isinstance(row, Set | list | tuple) for row in part.values()):
                fix = "write {document id: 1} for the ids of a set or list"
            raise InputError(f"{name}: got {got}; expected {expected} per id, and ids as text; fix: {fix}")
    if not judged.keys() & queries.keys() and judged.keys() & corpus.keys():
        raise InputError(
            f"queries: got ids such as {next(iter(queries))!r}, and judged queries such as {next(iter(judged))!r} in "
            f"the corpus; expected the judged queries; fix: {fix}"
        )
    for query, grades in judged.items():
        numbers(grades, f"qrels of query {query!r}: grade")


def is_text(given: object) -> bool:
    """Return True for a text that UTF-8 can hold."""
    return isinstance(given, str) and is_unicode(given)


def check_texts(texts: Mapping[str, str], others: Container[str], part: str = "documents") -> list[str]:
    """Refuse texts most of which are ids of the `others`; warn of texts most of which look like ids or codes."""
    ids = [text for text in texts.values() if text in others]
    if len(ids) > MOST_UNJOINED * len(texts):
        raise InputError(
            f"{part}: got {len(ids):,} of {len(texts):,} texts that are ids of the other part, for example "
            f"{shorten(ids[0])}; expected texts; fix: --columns {part}.text=NAME says which column holds them"
        )
    short = tuple(text for text in texts.values() if len(text) <= SHORT and len(text.split()) == 1)
    what, effect = f"{part} with a short text without white space", "check the column (Chinese and Japanese have none)"
    codes = Unjoined(what, len(short), len(texts), short[:1], effect)
    return warn_of(part, codes) if codes.is_most else []


def _read_labels(given: Any, columns: Mapping[str, str], notes: list[str]) -> Mapping[str, Mapping[str, float]]:
    """Return query id -> document id -> grade; refuse two grades of a pair."""
    if isinstance(given, str | Path) and kind_of(Path(given)) not in FORMATS and not Path(given).is_dir():
        return read_qrels(given)  # TREC's qrels have any suffix
    rows, errors = _read_part("labels", given, columns, notes), InvalidFileError(_name("labels", given))
    qrels: dict[str, dict[str, float]] = {}
    first: dict[tuple[str, str], tuple[int, float]] = {}
    grades = rows.get("grade") or [1.0] * len(rows["query"])
    for row, query, document, grade in zip(rows["row"], rows["query"], rows["document"], grades, strict=True):
        if one_grade(first, row, (query, document), grade, errors):
            qrels.setdefault(query, {})[document] = grade
    errors.raise_any()
    return qrels


def _read_part(part: str, given: Any, stated: Mapping[str, str], notes: list[str]) -> dict[str, list[Any]]:
    """Return key -> one value per row, and the numbers of the rows as "row"; add what was guessed to `notes`."""
    where = _name(part, given)
    table = _table_of(part, given, notes)
    columns = _choose(part, where, _names_in(where) if table is None else list(table), stated, notes)
    rows: dict[str, list[Any]] = {key: [] for key in ("row", *columns)}
    for block in read_blocks(where, list(columns.values()), table=table):
        rows["row"] += block.rows
        for key, column in columns.items():
            rows[key] += block.columns[column.name]
    return rows


def _name(part: str, given: Any) -> Path:
    return Path(given) if isinstance(given, str | Path) else Path(part)


def _table_of(part: str, given: Any, notes: list[str]) -> dict[str, list[Any]] | None:
    """Return name -> values of an object in memory or of a folder; None for a file of rows."""
    if isinstance(given, str | Path):
        if not Path(given).is_dir():
            return None
        if any((Path(given) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            return _data_set(Path(given))
        table, others = read_text_folder(Path(given))
        notes += others
        return dict(table)
    if isinstance(given, list | tuple) and given and all(isinstance(row, Mapping) for row in given):
        return {
            str(name): [row.get(name) for row in given] for name in dict.fromkeys(key for row in given for key in row)
        }
    from datasets import Dataset
    from pandas import DataFrame

    if isinstance(given, DataFrame):
        return dict(given.astype(object).where(given.notna(), None).rename(columns=str).to_dict("list"))
    if isinstance(given, Dataset | pa.Table):
        return dict(given.to_dict() if isinstance(given, Dataset) else given.to_pydict())
    got = shorten(given) if isinstance(given, list | tuple) else type(given).__name__
    raise InputError(
        f"{part}: got {got}; expected a path, a frame, a Dataset, an Arrow table, a list of dictionaries, or a "
        "dictionary by id; fix: pass one of them"
    )


def _data_set(folder: Path) -> dict[str, list[Any]]:
    """Return the columns of a data set that `datasets` saved."""
    from datasets import Dataset, load_from_disk

    try:
        data = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder}: got a data set that cannot be read ({error}); expected what save_to_disk wrote; fix: save it "
            "again"
        ) from error
    if not isinstance(data, Dataset):
        raise InputError(
            f"{folder}: got a data set of {len(data)} parts; expected a single table; fix: name the folder of a part, "
            f"such as {folder / next(iter(data), '')}"
        )
    return dict(data.to_dict())


def _names_in(path: Path) -> list[str]:
    """Return the names of the columns of a file of rows."""
    errors = InvalidFileError(path)
    rows = [row for _, row, _ in islice(raw_rows(path, errors), ROWS_FOR_NAMES)]
    if not rows:
        errors.raise_any()
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")
    return list(dict.fromkeys(name for row in rows for name in row))


def _choose(
    part: str, where: Path, names: Sequence[str], stated: Mapping[str, str], notes: list[str]
) -> dict[str, FileColumn]:
    """Return key -> column under its name in the file: the stated one, or the only one with a usual name."""
    errors, chosen, guessed = InvalidFileError(where), dict[str, FileColumn](), []
    if len(names) == 1 and "separated" in (hint := missing_column_hint(where, "", tuple(names), ())):
        errors.add(None, None, f"the column {shorten(names[0])}", "several columns", hint)
        errors.raise_any()
    free = [name for name in names if name not in {stated.get(f"{part}.{key}") for key in KEYS[part]}]
    for key, column in KEYS[part].items():
        title, word = stated.get(f"{part}.{key}"), f"{part}.{key}"
        alike = _alike(column, free)
        if title is None and len(alike) == 1:
            (title,) = alike
            guessed += [f"{word} = {title!r}"] if _plain(title) != _plain(column.name) else []
        if title is not None and title in names:
            if title in (other.name for other in chosen.values()):
                errors.add(None, word, f"{title!r} again", "a column of its own", "name another column")
            chosen[key] = replace(column, name=title, other_names=())
        elif title is not None:
            hint = did_you_mean(title, names, "name one of them")
            errors.add(None, word, shorten(title), f"one of {shorten(', '.join(names), 120)}", hint)
        elif key == "grade" and len(names) == len(chosen) == 2:
            guessed.append("no column of grades: each row counts as relevant, grade 1")
        elif column.needed or alike:
            got = " and ".join(map(repr, alike)) or f"columns {shorten(', '.join(names), 120)}"
            fix = f"say which one it is, as in --columns {word}={(*alike, *names, 'NAME')[0]!r}"
            errors.add(None, word, got, "a column that is unmistakable (the first line has the names)", fix)
    errors.raise_any()
    if guessed:
        notes.append(f"{where.name}: guessed {', '.join(guessed)}; --columns says it otherwise")
    return chosen


def _alike(column: FileColumn, names: Iterable[str]) -> list[str]:
    """Return the names that are usual ones of a column, in any case and with any separator; its first one alone."""
    usual = {_plain(name) for name in column.names}
    alike = [name for name in names if _plain(name) in usual]
    return [column.name] if column.name in alike else alike


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()


def is_path(given: Any) -> bool:
    """Return True for a path, and False for an object and for the name of a collection of ir_datasets."""
    return isinstance(given, str | Path) and not str(given).startswith(IR_DATASETS)


def path_of(given: Any) -> Path:
    """Return a path, and refuse objects."""
    if not isinstance(given, str | Path):
        fix = "write Collection.of(documents, queries, judgements)"
        raise InputError(f"collection: got {type(given).__name__}; expected a folder; fix: {fix}")
    return Path(given)


def ir_datasets_parts(given: Any) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, float]]]:
    """Return queries, corpus and qrels of a data set of ir_datasets, or of its name."""
    if isinstance(given, str):
        expected, fix = "the package ir_datasets", "pip install ir_datasets"
        try:
            import ir_datasets

            expected, fix = "an id of ir_datasets", "choose one of https://ir-datasets.com"
            given = ir_datasets.load(given.removeprefix(IR_DATASETS))
        except (ImportError, KeyError) as error:
            raise InputError(f"collection: got {given!r}; expected {expected}; fix: {fix}") from error
    if lacking := [part for part in ("queries", "qrels") if not hasattr(given, f"{part}_iter")]:
        raise InputError(
            f"collection: got a data set of ir_datasets without {' and '.join(lacking)}; expected judged queries; "
            "fix: name a subset that has them, such as irds:beir/scifact/test"
        )
    qrels: dict[str, dict[str, float]] = {}
    for judged in given.qrels_iter():
        qrels.setdefault(judged.query_id, {})[judged.doc_id] = judged.relevance
    queries = {query.query_id: query.default_text() for query in given.queries_iter()}
    return queries, {document.doc_id: document.default_text() for document in given.docs_iter()}, qrels
