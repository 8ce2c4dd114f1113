"""`Collection`: a corpus, queries and graded judgements for evaluation."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import pyarrow as pa

from bixse.data.draws import split_queries
from bixse.data.given import (
    DOCUMENT_COLUMNS,
    QUERY_COLUMNS,
    check_by_id,
    check_texts,
    ir_datasets_parts,
    is_path,
    is_text,
    path_of,
    read_given,
)
from bixse.data.joined import JOIN_FIX, Twins, Unjoined, check_joined, unjoined_judgements, warn_of, without_relevant
from bixse.data.trec import read_qrels, write_qrels
from bixse.errors import InputError
from bixse.files.files import file_hash, json_hash
from bixse.files.parquet import spool
from bixse.files.rows import BLOCK_ROWS, check_first_rows, kind_of, other_form, read_blocks, write_rows
from bixse.relevance import Qrels, normal_form

MissingDocuments: TypeAlias = Literal["refuse", "drop"]
"""The treatment of judgements that name a document which the corpus lacks."""
WORD = re.compile(r"\w+")
QUOTED_WORDS = 5
"""Shorter queries are names of topics, which relevant documents are expected to hold."""


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
    """The documents of a file, read, checked and hashed in one pass.

    They are read again from a memory map, without parsing: a file without a name in the temporary folder (TMPDIR), if
    they are more than 1 MB. Raise InvalidFileError for all invalid rows together.

    Example:
        >>> path = Path(tempfile.mkdtemp()) / "corpus.jsonl"
        >>> _ = path.write_text('{"_id": "d1", "title": "shutil", "text": "copy a file"}')
        >>> [(name, document.content) for name, document in Corpus(path).items()]
        [('d1', 'shutil copy a file')]
    """

    def __init__(self, path: Path) -> None:
        digest = hashlib.sha256()
        schema = pa.schema(dict.fromkeys((column.name for column in DOCUMENT_COLUMNS), pa.string()))
        blocks = read_blocks(path, DOCUMENT_COLUMNS, digest=digest)
        batches = (pa.record_batch([*block.columns.values()], schema) for block in blocks)
        self._copy = spool(batches, schema, Path(tempfile.gettempdir()))
        is_parquet = path.is_dir() or kind_of(path) == ".parquet"
        self.hash = file_hash(path) if is_parquet else digest.hexdigest()
        """The SHA-256 of the bytes of the file."""

    def items(self) -> Iterator[tuple[str, Document]]:
        """Yield id and document in file order; they are never all in memory."""
        for batch in self._copy.table.to_batches(BLOCK_ROWS):
            for name, title, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield name, Document(title or "", text)
            self._copy.release()


@dataclass(frozen=True)
class Collection:
    """A corpus, queries and judgements by split."""

    name: str
    corpus: Mapping[str, Document]
    queries: Mapping[str, str]
    qrels: Mapping[str, Qrels] = field(default_factory=dict)
    """Split -> query id -> document id -> grade, judged zeros included."""
    warnings: tuple[str, ...] = ()
    """Counts of judgements, queries and documents that do not count, or count otherwise than they look."""

    @classmethod
    def of(
        cls,
        documents: Any,
        queries: Any,
        labels: Any = None,
        *,
        columns: Mapping[str, str] | None = None,
        split: str = "test",
        missing_documents: MissingDocuments = "refuse",
    ) -> Collection:
        """Make a collection of what people have, and check that labels name only its documents and queries.

        Args:
            documents: a file (.csv, .tsv, .jsonl, .parquet), a folder of .txt, .md or .html files, a folder that
                `datasets` saved, a frame, a `Dataset`, an Arrow table, a list of dictionaries, or id -> text (or
                {"title", "text"}).
            queries: the same forms, or id -> text.
            labels: the same forms, qrels of TREC, or query id -> document id -> grade, a number. None: no labels yet.
            columns: key -> name of a column. The keys are documents.id, documents.title, documents.text, queries.id,
                queries.text, labels.query, labels.document and labels.grade. A column without a key is guessed if only
                one has a usual name; `warnings` names the guesses.
            split: name of the split of the labels; the method `split` makes several.
            missing_documents: "refuse" or "drop" labels of documents that are not there.

        Raises:
            InputError: a form, file or column that cannot be used, ids in the place of texts, or nothing relevant.
            InvalidFileError: all wrong rows of a file, or ids without a partner.

        Example:
            >>> documents = [{"id": "d1", "text": "copy a tree"}, {"id": "d2", "text": "remove a file"}]
            >>> labels = [{"qid": "q1", "pid": "d1", "grade": 3}, {"qid": "q1", "pid": "d2", "grade": 0}]
            >>> Collection.of(documents, {"q1": "copy a folder"}, labels).qrels["test"]
            {'q1': {'d1': 3.0, 'd2': 0.0}}
        """
        given = read_given(documents, queries, labels, columns or {})
        held = _by_id(given.queries, given.documents, given.labels, split, "documents, queries, labels")
        texts = {name: document.text for name, document in held.corpus.items()}
        warnings = [*given.notes, *check_texts(texts, held.queries), *check_texts(held.queries, texts, "queries")]
        empty = [name for name, document in held.corpus.items() if not document.content]
        _refuse_all_empty(Path("documents"), len(held.corpus), len(empty))
        warnings += warn_of_empty(empty, len(held.corpus))
        where = Path(labels) if isinstance(labels, str | Path) else Path("labels")
        return joined_collection(replace(held, warnings=tuple(warnings)), {split: where}, missing_documents)

    def split(self, *, seed: int = 0, **shares: float) -> Collection:
        """Divide the judged queries into splits, for example train, dev and test, by a hash of their normalised texts.

        A query keeps its split when others are added. `bixse convert --split` agrees with these shares and this seed.
        The shares are met approximately.

        Args:
            seed: 0 to 2^32 - 1.
            shares: name of a split -> its share, above 0; the sum is 1.

        Raises:
            InputError: wrong shares, a collection that has several splits already, or a split without a query that has
                a relevant document (a grade above 0).

        Example:
            >>> queries = {f"q{number}": f"query {number}" for number in range(40)}
            >>> labels = {name: {"d1": 1} for name in queries}
            >>> parts = Collection.of({"d1": "a long text"}, queries, labels).split(train=0.6, dev=0.2, test=0.2)
            >>> {name: len(judged) for name, judged in parts.qrels.items()}
            {'train': 19, 'dev': 9, 'test': 12}
        """
        if len(self.qrels) != 1:
            raise InputError(
                f"split: got a collection with {' and '.join(self.qrels) or 'no labels'}; expected labels of one "
                "split; fix: use the splits that there are, or give labels"
            )
        (judged,) = self.qrels.values()
        return replace(self, qrels=split_queries(judged, self.queries, shares, seed))

    @property
    def hash(self) -> str:
        """The SHA-256 of all ids, texts and grades."""
        content = [dict(self.corpus), dict(self.queries), {name: dict(rows) for name, rows in self.qrels.items()}]
        return json_hash(content)


def as_collection(given: Any, split: str | None = "test") -> Collection:
    """Return a collection as it is, or (queries, corpus, qrels) in memory as one, whose judgements are `split`.

    A data set of ir_datasets, or "irds:" and its id, is read into memory.
    Without `split`, expect (queries, corpus) alone. Raise InputError for other objects, for a `Collection` without the
    split, and for dictionaries of other values or in another order.

    Example:
        >>> corpus = {"d1": "shutil.copytree", "d2": {"title": "shutil", "text": "copy a file"}}
        >>> as_collection(({"q1": "copy a folder"}, corpus, {"q1": {"d1": 3}})).corpus["d2"].content
        'shutil copy a file'
    """
    if isinstance(given, Collection):
        if split is not None and split not in given.qrels:
            raise InputError(
                f"collection {given.name!r}: got split {split!r}; expected one of {', '.join(given.qrels)}; fix: name "
                "a split that has judgements"
            )
        return given
    if hasattr(given, "docs_iter") or (isinstance(given, str) and not is_path(given)):
        given = ir_datasets_parts(given)
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
    return _by_id(queries, corpus, qrels[0] if qrels else None, split or "", "queries, corpus, qrels")


def _by_id(queries: Any, corpus: Mapping[str, Any], qrels: Any, split: str, order: str) -> Collection:
    """Return checked dictionaries as a collection; `order` is that of the caller's arguments."""
    texts = {name: _document(text) for name, text in corpus.items()}
    check_by_id(queries, corpus, qrels, None not in texts.values(), order)
    judged = {} if qrels is None else {split: qrels}
    return Collection("collection", cast("dict[str, Document]", texts), queries, judged)


def _document(given: object) -> Document | None:
    """Return a text, or a title and a text, as a document; None for anything else."""
    parts: Sequence[Any] = given if isinstance(given, Document) else ("", given)
    if isinstance(given, Mapping):
        parts = given.get("title") or "", given.get("text") or ""
    return Document(*parts) if all(map(is_text, parts)) else None


def load_collection(
    folder: str | Path, splits: list[str] | None = None, missing_documents: MissingDocuments = "refuse"
) -> Collection:
    """Read a collection folder and check that its qrels name only its own documents and queries.

    The folder holds `corpus.jsonl` ({_id, title, text}), `queries.jsonl` ({_id, text}) and `qrels/<split>.tsv`; without
    `splits` every qrels file is read. If judgements name documents that the corpus lacks, "refuse" raises; "drop"
    leaves them out and counts them in `Collection.warnings`. Metrics then differ from those of the complete collection:
    the ideal ranking lacks these documents too. All errors of a file are raised together.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> toy = Collection("toy", {"d1": Document("", "copies a file")}, {"q1": "copy"}, {"test": {"q1": {"d1": 2}}})
        >>> save_collection(toy, folder)
        >>> load_collection(folder).qrels["test"]
        {'q1': {'d1': 2.0}}
    """
    folder = path_of(folder)
    corpus, queries = load_corpus(folder), read_queries(folder / "queries.jsonl")
    files = {split: judgements_of(folder, split) for split in (splits_of(folder) if splits is None else splits)}
    qrels = {split: read_qrels(path) for split, path in files.items()}
    return joined_collection(Collection(folder.resolve().name, corpus, queries, qrels), files, missing_documents)


def joined_collection(
    collection: Collection, files: Mapping[str, Path], missing_documents: MissingDocuments = "refuse"
) -> Collection:
    """Return a collection with the judgements that count and warnings; see `load_collection` for what is refused.

    `files` are the names of the splits in messages.
    """
    corpus, queries = collection.corpus, collection.queries
    qrels: dict[str, Qrels] = {}
    warnings = list(collection.warnings)
    for split, judged in collection.qrels.items():
        absent = {document_id for row in judged.values() for document_id in row if document_id not in corpus}
        qrels[split], lines = check_qrels(files[split], judged, queries, absent, missing_documents == "drop")
        warnings += [*lines, *warn_of(files[split], without_relevant(qrels[split]))]
    twins = Twins(*qrels.values())
    for name, document in corpus.items():
        twins.see(name, document.content)
    for split, joined in qrels.items():
        warnings += warn_of(files[split], twins.count(joined, lambda: iter(corpus)))
    return replace(collection, qrels=qrels, warnings=tuple(warnings))


def files_of_split(folder: Path, split: str) -> dict[str, Path]:
    """Return name -> path of the files that a split of a collection folder needs."""
    return {name: folder / name for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")}


def judgements_of(folder: Path, split: str) -> Path:
    """Return the qrels file of a split of a collection folder."""
    check_split(folder, split)
    return folder / "qrels" / f"{split}.tsv"


def check_split(folder: Path, split: str) -> None:
    """Refuse a folder that is no collection, or that has no judgements of the split."""
    _check_folder(folder)
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


def check_collection(folder: Path, split: str | None) -> None:
    """Refuse a folder that is no collection, a split without judgements, and files whose first rows are invalid."""
    if split is not None:
        check_split(folder, split)
    check_corpus_file(folder)
    check_first_rows(folder / "queries.jsonl", QUERY_COLUMNS)


def check_corpus_file(path: Path) -> None:
    """Refuse a corpus, or the folder of one, that is missing or whose first rows are invalid."""
    if not path.is_file():
        _check_folder(path)
        path = path / "corpus.jsonl"
    check_first_rows(path, DOCUMENT_COLUMNS)


def load_corpus(folder: str | Path) -> dict[str, Document]:
    """Return document id -> document of a collection folder."""
    folder = Path(folder)
    _check_folder(folder)
    return read_corpus(folder / "corpus.jsonl")


def read_corpus(path: Path) -> dict[str, Document]:
    """Return document id -> document of a file with `DOCUMENT_COLUMNS`."""
    corpus = dict(stream_documents(path))
    _refuse_all_empty(path, len(corpus), sum(not document.content for document in corpus.values()))
    return corpus


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
    path: Path,
    qrels: Qrels,
    see: Callable[[str, Document], object] | None = None,
    queries: Mapping[str, str] | None = None,
    corpus: Mapping[str, Document] | Corpus | None = None,
) -> CorpusCheck:
    """Read a corpus of any size once and find the judged documents; `see` is called for every document.

    A `corpus` that was read before is looked at instead of the file. With `queries`, each relevant document is searched
    for the words of its own queries, and the corpus for its text.
    """
    check = CorpusCheck(missing={document_id for judged in qrels.values() for document_id in judged})
    twins = None if queries is None else Twins(qrels)
    phrases = {query_id: _words(text) for query_id, text in (queries or {}).items() if query_id in qrels}
    asked: dict[str, list[str]] = {}
    for query_id, phrase in phrases.items():
        for document_id, grade in qrels[query_id].items() if len(phrase.split()) >= QUOTED_WORDS else ():
            if grade > 0:
                asked.setdefault(document_id, []).append(query_id)
    documents = partial(stream_documents, path) if corpus is None else corpus.items
    for name, document in documents():
        check.count += 1
        check.missing.discard(name)
        if see is not None:
            see(name, document)
        if twins is not None:
            twins.see(name, document.content)
        if not document.content:
            check.empty.append(name)
        if name in qrels:
            check.named_as_queries[name] = document
        if name in asked:
            words = _words(document.content)
            check.quoted.update(query_id for query_id in asked[name] if phrases[query_id] in words)
    _refuse_all_empty(path, check.count, len(check.empty))
    if twins is not None:
        check.twins = (twins.count(qrels, lambda: (name for name, _ in documents())),)
    return check


def save_collection(collection: Collection, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears completely or not at all."""
    folder = Path(folder)
    ids, documents = list(collection.corpus), list(collection.corpus.values())
    titles, texts = [document.title for document in documents], [document.text for document in documents]
    queries = {"_id": list(collection.queries), "text": list(collection.queries.values())}
    write_rows(pa.table({"_id": ids, "title": titles, "text": texts}), folder / "corpus.jsonl")
    write_rows(pa.table(queries), folder / "queries.jsonl")
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)


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


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: got {'a file' if folder.exists() else 'no such folder'}; expected a collection folder with "
            "corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )


def splits_of(folder: Path) -> list[str]:
    """Return the names of the qrels files of a collection folder."""
    return sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))


def _refuse_all_empty(path: Path, count: int, empty: int) -> None:
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
