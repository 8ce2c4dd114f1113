"""The part of a collection that evaluation reads: corpus, queries and judgements, of a folder or in memory, checked."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import pyarrow as pa

from bixse.data.joined import JOIN_FIX, Twins, Unjoined, check_joined, unjoined_judgements, warn_of
from bixse.errors import InputError, shorten
from bixse.files.files import file_hash, is_unicode, json_hash
from bixse.files.parquet import spool
from bixse.files.rows import BLOCK_ROWS, other_form, read_blocks
from bixse.files.values import FileColumn
from bixse.relevance import Qrels, normal_form, numbers

MissingDocuments: TypeAlias = Literal["refuse", "drop"]
"""The treatment of judgements that name a document which the corpus lacks."""
WORD = re.compile(r"\w+")
QUOTED_WORDS = 5
"""Shorter queries are names of topics, which relevant documents are expected to hold."""
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
IR_DATASETS = "irds:"
"""Start of the name of a collection of ir_datasets, as PyTerrier writes it: irds:vaswani."""


class Document(NamedTuple):
    """A document of a corpus."""

    title: str
    """Title, may be empty."""
    text: str
    """Body, may be empty if there is a title."""

    @property
    def content(self) -> str:
        """Title and text as one string, which every system indexes and encodes (BEIR's convention)."""
        return f"{self.title} {self.text}".strip()


class Corpus:
    """The documents of a file, parsed and checked once, and the hash of the file.

    They are read again from a memory map, without parsing: a file without a name in the temporary folder (TMPDIR), if
    they are more than 1 MB. Raise InvalidFileError for all invalid rows together.

    Example:
        >>> path = Path(tempfile.mkdtemp()) / "corpus.jsonl"
        >>> _ = path.write_text('{"_id": "d1", "title": "shutil", "text": "copy a file"}')
        >>> [(name, document.content) for name, document in Corpus(path).items()]
        [('d1', 'shutil copy a file')]
    """

    def __init__(self, path: Path) -> None:
        # before the texts: of a file that is replaced meanwhile it is never newer than they are
        self.hash = file_hash(path) if path.is_file() else ""  # the reader says what is wrong with another path
        """The SHA-256 of the bytes of the file."""
        schema = pa.schema(dict.fromkeys((column.name for column in DOCUMENT_COLUMNS), pa.string()))
        blocks = read_blocks(path, DOCUMENT_COLUMNS)
        batches = (pa.record_batch([*block.columns.values()], schema) for block in blocks)
        self._copy = spool(batches, schema, Path(tempfile.gettempdir()))

    def items(self) -> Iterator[tuple[str, Document]]:
        """Yield id and document in file order; they are never all in memory."""
        for batch in self._copy.table.to_batches(BLOCK_ROWS):
            for name, title, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield name, Document(title or "", text)
            self._copy.release()


@dataclass(frozen=True)
class JudgedCorpus:
    """A corpus with queries and judgements by split: a `Collection`, or objects in memory taken as one."""

    name: str
    corpus: Mapping[str, Document]
    queries: Mapping[str, str]
    qrels: Mapping[str, Qrels] = field(default_factory=dict)
    """Split -> query id -> document id -> grade, judged zeros included."""
    warnings: tuple[str, ...] = ()
    """Counts of judgements, queries and documents that do not count, or count otherwise than they look."""

    @property
    def hash(self) -> str:
        """The SHA-256 of all ids, texts and grades."""
        content = [dict(self.corpus), dict(self.queries), {name: dict(rows) for name, rows in self.qrels.items()}]
        return json_hash(content)


def as_collection(given: Any, split: str | None = "test") -> JudgedCorpus:
    """Return a collection as it is, or (queries, corpus, qrels) in memory as one, whose judgements are `split`.

    A data set of ir_datasets, or "irds:" and its id, is read into memory.
    Without `split`, expect (queries, corpus) alone. Raise InputError for other objects, for a `Collection` without the
    split, and for dictionaries of other values or in another order.

    Example:
        >>> corpus = {"d1": "shutil.copytree", "d2": {"title": "shutil", "text": "copy a file"}}
        >>> as_collection(({"q1": "copy a folder"}, corpus, {"q1": {"d1": 3}})).corpus["d2"].content
        'shutil copy a file'
    """
    if isinstance(given, JudgedCorpus):
        if split is not None and split not in given.qrels:
            raise InputError(
                f"collection {given.name!r}: got split {split!r}; expected one of {', '.join(given.qrels)}; fix: name "
                "a split that has judgements"
            )
        return given
    if hasattr(given, "docs_iter") or (isinstance(given, str) and not is_path(given)):
        given = _ir_datasets_parts(given)
    count = 2 if split is None else 3
    if not (isinstance(given, tuple | list) and len(given) == count and all(isinstance(x, Mapping) for x in given)):
        got = f"{type(given).__name__} of {len(given)}" if isinstance(given, tuple | list) else type(given).__name__
        if split is None:
            got = " and ".join(type(each).__name__ for each in given)
            raise InputError(
                f"queries and corpus: got {got}; expected two dictionaries, or two files; fix: "
                "bixse.mine({'q1': 'copy'}, {'d1': 'shutil.copy'}, retrievers=['bm25'])"
            )
        raise InputError(
            f"collection: got {got}; expected a folder, a Collection, or (queries, corpus, qrels) as three "
            "dictionaries; fix: pass ({'q1': 'copy'}, {'d1': 'shutil.copy'}, {'q1': {'d1': 1}})"
        )
    queries, corpus, *qrels = given
    return by_id(queries, corpus, qrels[0] if qrels else None, split or "", "queries, corpus, qrels")


def by_id(queries: Any, corpus: Mapping[str, Any], qrels: Any, split: str, order: str) -> JudgedCorpus:
    """Return dictionaries as a collection; refuse them in another order, and entries of another kind.

    `order` is that of the caller's arguments, in words.
    """
    documents = {name: _document(text) for name, text in corpus.items()}
    judged = {} if qrels is None else qrels
    fix = f"pass ({order}) in this order"
    parts = (
        ("queries", queries, "a text", all(_is_text(text) and text.strip() for text in queries.values())),
        ("corpus", corpus, "a text or {'title': ..., 'text': ...}", None not in documents.values()),
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
    splits = {} if qrels is None else {split: qrels}
    return JudgedCorpus("collection", cast("dict[str, Document]", documents), queries, splits)


def _document(given: object) -> Document | None:
    """Return a text, or a title and a text, as a document; None for anything else."""
    parts: Sequence[Any] = given if isinstance(given, Document) else ("", given)
    if isinstance(given, Mapping):
        parts = given.get("title") or "", given.get("text") or ""
    return Document(*parts) if all(map(_is_text, parts)) else None


def _is_text(given: object) -> bool:
    """Return True for a text that UTF-8 can hold."""
    return isinstance(given, str) and is_unicode(given)


def is_path(given: Any) -> bool:
    """Return True for a path, and False for an object and for the name of a collection of ir_datasets."""
    return isinstance(given, str | Path) and not str(given).startswith(IR_DATASETS)


def _ir_datasets_parts(given: Any) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, float]]]:
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


def files_of_split(folder: Path, split: str) -> dict[str, Path]:
    """Return name -> path of the files that a split of a collection folder needs."""
    return {name: folder / name for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")}


def splits_of(folder: Path) -> list[str]:
    """Return the names of the qrels files of a collection folder."""
    return sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))


def judgements_of(folder: Path, split: str) -> Path:
    """Return the qrels file of a split of a collection folder."""
    check_split(folder, split)
    return folder / "qrels" / f"{split}.tsv"


def check_split(folder: Path, split: str) -> None:
    """Refuse a folder that is no collection, or that has no judgements of the split."""
    check_folder(folder)
    missing = {name: path for name, path in files_of_split(folder, split).items() if not path.is_file()}
    if others := [other for path in missing.values() if (other := other_form(path))]:
        raise InputError(
            f"{folder}: got {', '.join(name for name, _ in others)}; expected {', '.join(missing)}; fix: write them "
            f"with `{' && '.join(command for _, command in others)}`"
        )
    if split not in splits_of(folder):
        raise InputError(
            f"{folder / 'qrels'}: got split {split!r}; expected one of {splits_of(folder) or 'qrels/<split>.tsv'}; "
            "fix: name a split that has a qrels file"
        )


def check_folder(folder: Path) -> None:
    """Refuse a path that is no folder."""
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )


def stream_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a file in file order; they are never all in memory."""
    for block in read_blocks(path, DOCUMENT_COLUMNS):
        for name, title, text in zip(*block.columns.values(), strict=True):
            yield name, Document(title or "", text)


def read_queries(path: Path) -> dict[str, str]:
    """Return query id -> text of a file with `QUERY_COLUMNS`, in file order."""
    queries: dict[str, str] = {}
    for block in read_blocks(path, QUERY_COLUMNS):
        queries.update(zip(block.columns["_id"], block.columns["text"], strict=True))
    return queries


@dataclass
class CorpusCheck:
    """The result of one reading of a corpus."""

    count: int = 0
    empty: list[str] = field(default_factory=list)
    named_as_queries: dict[str, Document] = field(default_factory=dict)
    """Documents with the id of a judged query."""
    missing: set[str] = field(default_factory=set)
    """Judged documents that the corpus lacks."""
    quoted: set[str] = field(default_factory=set)
    """Queries of `QUOTED_WORDS` words or more that occur in one of their relevant documents."""
    twins: tuple[Unjoined, ...] = ()
    """Documents with the text of a relevant one that nobody judged."""


def check_corpus(
    path: Path, qrels: Qrels, corpus: Mapping[str, Document] | Corpus, queries: Mapping[str, str] | None = None
) -> CorpusCheck:
    """Read a corpus of any size once and find the judged documents; `path` names it in errors.

    With `queries`, each relevant document is searched for the words of its own queries, and the corpus for its text.
    """
    check = CorpusCheck(missing={document_id for judged in qrels.values() for document_id in judged})
    twins = None if queries is None else Twins(qrels)
    phrases = {query_id: _words(text) for query_id, text in (queries or {}).items() if query_id in qrels}
    asked: dict[str, list[str]] = {}
    for query_id, phrase in phrases.items():
        for document_id, grade in qrels[query_id].items() if len(phrase.split()) >= QUOTED_WORDS else ():
            if grade > 0:
                asked.setdefault(document_id, []).append(query_id)
    for name, document in corpus.items():
        check.count += 1
        check.missing.discard(name)
        if twins is not None:
            twins.see(name, document.content)
        if not document.content:
            check.empty.append(name)
        if name in qrels:
            check.named_as_queries[name] = document
        if name in asked:
            words = _words(document.content)
            check.quoted.update(query_id for query_id in asked[name] if phrases[query_id] in words)
    refuse_all_empty(path, check.count, len(check.empty))
    if twins is not None:
        check.twins = (twins.count(qrels, lambda: (name for name, _ in corpus.items())),)
    return check


def check_qrels(
    path: Path, qrels: Qrels, queries: Mapping[str, str], missing: set[str], drop: bool = False
) -> tuple[Qrels, list[str]]:
    """Return the judgements that count, with warnings; refuse ids that the collection lacks, and no relevant document.

    With `drop`, judgements of `missing` documents are left out, and so are queries that no judgement is left for.
    """
    parts = unjoined_judgements(qrels, queries, missing)
    check_joined(path, parts[:1] if drop else parts, JOIN_FIX, every=True)
    warnings: list[str] = []
    if drop:
        named = [name for judged in qrels.values() for name in judged]
        what, effect = "judgements of documents that the corpus lacks", "they are left out, and change the metrics"
        gone = Unjoined.of(what, named, set(named) - missing, effect)
        before = qrels
        existing = {query: {d: g for d, g in judged.items() if d not in missing} for query, judged in qrels.items()}
        qrels = {query: judged for query, judged in existing.items() if judged}
        empty = Unjoined.of("judged queries without a judgement left", before, qrels, "they do not count")
        warnings = warn_of(path, gone, empty)
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{path}: got no judgement above 0; expected at least one relevant document; "
            "fix: choose a split with judged queries"
        )
    return qrels, warnings


def refuse_all_empty(path: Path, count: int, empty: int) -> None:
    """Refuse documents that are all empty."""
    if count == empty:
        raise InputError(
            f"{path}: got {count} documents, all without title and text; expected texts; fix: check the export"
        )


def warn_of_empty(empty: Sequence[str], count: int) -> list[str]:
    """Return a warning that counts the documents without title and text, or no warning.

    Published collections hold empty documents, even judged (Cranfield two of 1,400). Without empty documents the
    metrics would be those of another collection.
    """
    shown = f"neither title nor text ({empty[0]!r}): they stay in the corpus" if empty else ""
    return [f"{len(empty)} of {count} documents have {shown}"] if empty else []


def _words(text: str) -> str:
    """Return the words of a text between spaces, so that a phrase is found from word to word."""
    return f" {' '.join(WORD.findall(normal_form(text)))} "
