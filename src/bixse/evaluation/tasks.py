"""What is evaluated: a corpus, judged queries over it, and how their answers are scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.data.collection_files import (
    check_corpus,
    check_qrels,
    drop_missing,
    files_of_split,
    judgements_of,
    read_queries,
    stream_documents,
    warn_of_collection,
)
from bixse.data.trec import read_qrels
from bixse.evaluation.metrics import check_min_relevant_grade
from bixse.files.files import hash_files
from bixse.relevance import MIN_RELEVANT_GRADE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bixse.data.collection import MissingDocuments
    from bixse.relevance import Qrels


@dataclass(frozen=True)
class QuerySet:
    """Judged queries over a corpus."""

    name: str
    queries: Mapping[str, str]
    qrels: Qrels
    left_out: frozenset[str] = frozenset()
    """Documents that are not searched for these queries."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> the documents to rank; None: the whole corpus."""
    group: str | None = None
    """Sets of one group count as one in the mean of a suite; None: the set is its own."""


@dataclass(frozen=True)
class Task:
    """One corpus, read as often as needed and never held, and the query sets that are searched in it."""

    name: str
    documents: Callable[[], Iterator[tuple[str, str]]]
    """Id and text of each document, in an order that stays the same."""
    count: int
    query_sets: tuple[QuerySet, ...]
    exclude_self: bool = False
    """Leave the document with the query's own id out of its answers."""
    min_relevant_grade: float = MIN_RELEVANT_GRADE
    instructions: tuple[str, ...] = ()
    """Names under which a model's table of instructions may hold the task, the first one it knows counts."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What the task was read from -> hash of its content."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For the record of a run; "collection" is a path that `inputs` stands for."""
    warnings: tuple[str, ...] = ()
    """What makes figures on it mislead."""


class TaskSource(NamedTuple):
    """A task whose data are there, not yet read."""

    read: Callable[[], Task]
    instructions: tuple[str, ...] = ()


def collection_task(
    folder: str | Path,
    split: str = "test",
    exclude_self: bool = False,
    min_relevant_grade: float = MIN_RELEVANT_GRADE,
    missing_documents: MissingDocuments = "refuse",
) -> Task:
    """The judged queries of one split of a collection folder; the corpus is checked here and streamed later.

    Args:
        folder: holds `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`.
        split: qrels file to score against.
        exclude_self: leave the document with the query's own id out of its answers (ArguAna, Quora).
        min_relevant_grade: grade from which a document counts as relevant for recall, MRR and MAP, above 0.
        missing_documents: what to do with judgements that name a document which the corpus lacks.

    Raises:
        InputError: a file is missing, there is nothing to score, or a value is out of range.
        InvalidFileError: every invalid row of a file together.

    Example:
        >>> import tempfile
        >>> from bixse.data.collection import Collection, Document
        >>> from bixse.data.collection_files import save_collection
        >>> toy = Collection("toy", {"d1": Document("", "copies")}, {"q": "copy"}, {"test": {"q": {"d1": 1}}})
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_collection(toy, folder)
        >>> task = collection_task(folder)
        >>> task.count, task.query_sets[0].queries
        (1, {'q': 'copy'})
    """
    folder = Path(folder)
    check_min_relevant_grade(min_relevant_grade)
    judgements, corpus_file = judgements_of(folder, split), folder / "corpus.jsonl"
    qrels, missing = read_qrels(judgements), 0
    texts = read_queries(folder / "queries.jsonl")
    corpus = check_corpus(corpus_file, qrels)
    if missing_documents == "drop":
        qrels, missing = drop_missing(qrels, corpus.missing)
        corpus.missing.clear()
    check_qrels(judgements, qrels, texts, corpus.missing)
    queries = {query_id: texts[query_id] for query_id in qrels}
    name = folder.resolve().name
    return Task(
        name=name,
        documents=lambda: ((name, document.content) for name, document in stream_documents(corpus_file)),
        count=corpus.count,
        query_sets=(QuerySet(name, queries, qrels),),
        exclude_self=exclude_self,
        min_relevant_grade=min_relevant_grade,
        inputs=hash_files(files_of_split(folder, split)),
        settings={"collection": folder, "split": split, "missing_documents": missing_documents},
        warnings=tuple(warn_of_collection(corpus, missing, split, queries, qrels, min_relevant_grade, exclude_self)),
    )


def graded_task(
    qrels: Qrels, graded: str | Path, collection: str | Path | None = None, exclude_self: bool = False
) -> Task:
    """The queries of a judge's graded pairs, read from the file `graded`; without a collection for run files alone.

    Raises:
        InputError: no grade above 0, or the collection cannot be used.
        InvalidFileError: graded queries or documents that the collection lacks.
    """
    graded = Path(graded)
    inputs = {"grades": graded}
    if collection is None:
        own = QuerySet(graded.stem, dict.fromkeys(qrels, ""), qrels)
        return Task(graded.stem, lambda: iter(()), 0, (own,), exclude_self, inputs=hash_files(inputs))
    files = {name: Path(collection) / name for name in ("corpus.jsonl", "queries.jsonl")}
    texts = read_queries(files["queries.jsonl"])
    corpus = check_corpus(files["corpus.jsonl"], qrels)
    check_qrels(graded, qrels, texts, corpus.missing)
    name = Path(collection).resolve().name
    return Task(
        name=name,
        documents=lambda: ((name, document.content) for name, document in stream_documents(files["corpus.jsonl"])),
        count=corpus.count,
        query_sets=(QuerySet(name, {query_id: texts[query_id] for query_id in qrels}, qrels),),
        exclude_self=exclude_self,
        inputs=hash_files(files | inputs),
        settings={"collection": Path(collection)},
    )
