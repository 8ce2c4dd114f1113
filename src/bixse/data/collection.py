"""`Collection`: a corpus, queries and graded judgements, read from what people have or from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from bixse.data.corpus import (
    JudgedCorpus,
    MissingDocuments,
    by_id,
    check_qrels,
    judgements_of,
    load_corpus,
    read_queries,
    refuse_all_empty,
    splits_of,
    warn_of_empty,
)
from bixse.data.draws import split_queries
from bixse.data.given import check_texts, read_given
from bixse.data.joined import Twins, warn_of, without_relevant
from bixse.data.trec import read_qrels, write_qrels
from bixse.errors import InputError
from bixse.files.rows import write_rows

if TYPE_CHECKING:
    from bixse.relevance import Qrels

Judged = TypeVar("Judged", bound=JudgedCorpus)


class Collection(JudgedCorpus):
    """A corpus, queries and judgements by split."""

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
        held = by_id(given.queries, given.documents, given.labels, split, "documents, queries, labels")
        texts = {name: document.text for name, document in held.corpus.items()}
        warnings = [*given.notes, *check_texts(texts, held.queries), *check_texts(held.queries, texts, "queries")]
        empty = [name for name, document in held.corpus.items() if not document.content]
        refuse_all_empty(Path("documents"), len(held.corpus), len(empty))
        warnings += warn_of_empty(empty, len(held.corpus))
        where = Path(labels) if isinstance(labels, str | Path) else Path("labels")
        made = cls(held.name, held.corpus, held.queries, held.qrels, tuple(warnings))
        return joined_collection(made, {split: where}, missing_documents)

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
        >>> toy = Collection.of({"d1": "copies a file"}, {"q1": "copy"}, {"q1": {"d1": 2}})
        >>> save_collection(toy, folder)
        >>> load_collection(folder).qrels["test"]
        {'q1': {'d1': 2.0}}
    """
    folder = path_of(folder)
    corpus, queries = load_corpus(folder), read_queries(folder / "queries.jsonl")
    files = {split: judgements_of(folder, split) for split in (splits_of(folder) if splits is None else splits)}
    qrels = {split: read_qrels(path) for split, path in files.items()}
    return joined_collection(Collection(folder.resolve().name, corpus, queries, qrels), files, missing_documents)


def path_of(given: Any) -> Path:
    """Return a path, and refuse objects."""
    if not isinstance(given, str | Path):
        fix = "write Collection.of(documents, queries, judgements)"
        raise InputError(f"collection: got {type(given).__name__}; expected a folder; fix: {fix}")
    return Path(given)


def joined_collection(
    collection: Judged, files: Mapping[str, Path], missing_documents: MissingDocuments = "refuse"
) -> Judged:
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


def save_collection(collection: JudgedCorpus, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears completely or not at all."""
    folder = Path(folder)
    ids, documents = list(collection.corpus), list(collection.corpus.values())
    titles, texts = [document.title for document in documents], [document.text for document in documents]
    queries = {"_id": list(collection.queries), "text": list(collection.queries.values())}
    write_rows(pa.table({"_id": ids, "title": titles, "text": texts}), folder / "corpus.jsonl")
    write_rows(pa.table(queries), folder / "queries.jsonl")
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)
