"""What is evaluated: a corpus, judged queries over it, and how their answers are scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection_files import files_of_split
from bixse.data.io.files import file_hash
from bixse.errors import InputError
from bixse.evaluation.advice import advise
from bixse.evaluation.folder_stream import check_corpus, read_judged_queries, stream_documents
from bixse.evaluation.metrics import MIN_RELEVANT_GRADE, check_min_relevant_grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bixse.data.collection_files import MissingDocuments
    from bixse.relevance import Qrels


@dataclass(frozen=True)
class QuerySet:
    """Judged queries over a corpus."""

    name: str
    """Names the set: a task, a year."""
    queries: Mapping[str, str]
    """Query id -> text."""
    qrels: Qrels
    """Judgements of these queries."""
    left_out: frozenset[str] = frozenset()
    """Documents of the corpus that are not searched for these queries."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> the documents to rank; None: the whole corpus."""
    group: str | None = None
    """Sets of one group count as one in the mean of a suite; None: the set is its own."""


@dataclass(frozen=True)
class Task:
    """One corpus and the query sets that are searched in it, each document encoded once.

    The corpus is read as often as needed and never held: it may be larger than memory.

    Example:
        >>> texts = {"d1": "copies a file", "d2": "waits"}
        >>> queries = QuerySet("toy", {"q": "copy a file"}, {"q": {"d1": 1}})
        >>> task = Task("toy", lambda: iter(texts.items()), len(texts), (queries,))
    """

    name: str
    """Names the task, and its folder."""
    documents: Callable[[], Iterator[tuple[str, str]]]
    """Gives id and text of each document, in an order that stays the same."""
    count: int
    """Number of documents."""
    query_sets: tuple[QuerySet, ...]
    """At least one."""
    exclude_self: bool = False
    """Leave the document with the query's own id out of its answers."""
    min_relevant_grade: float = MIN_RELEVANT_GRADE
    """Grade from which a document is relevant for the binary metrics."""
    instructions: tuple[str, ...] = ()
    """Names under which a model's table of instructions may hold the task, the first one it knows counts."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What the task was read from -> hash of its content."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the record of a run says of the task; "collection" is a path that `inputs` stands for."""
    warnings: tuple[str, ...] = ()
    """What makes figures on it mislead."""


@dataclass(frozen=True)
class TaskSource:
    """A task whose data are there, not yet read."""

    name: str
    """As in `Task`."""
    read: Callable[[], Task]
    """Reads and checks the data."""
    instructions: tuple[str, ...] = ()
    """As in `Task`."""


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
        exclude_self: leave the document whose id equals the query's id out of its answers, for collections whose
            queries are also documents (ArguAna, Quora).
        min_relevant_grade: grade from which a document counts as relevant for recall, MRR and MAP, above 0.
        missing_documents: of judgements that name a document which the corpus lacks: "refuse" raises, "drop" leaves
            them out with a warning.

    Raises:
        InputError: a file is missing, there is nothing to score, or a value is out of range.
        InvalidFileError: every faulty row of a file together.

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
    queries, qrels = read_judged_queries(folder, split)
    corpus = check_corpus(folder, qrels)
    if missing_documents == "refuse":
        corpus.refuse_missing(folder / "qrels" / f"{split}.tsv", qrels)
    else:
        known = {query: {d: g for d, g in own.items() if d not in corpus.missing} for query, own in qrels.items()}
        qrels = {query: own for query, own in known.items() if own}
        queries = {query: queries[query] for query in qrels}
    if not any(grade > 0 for judged in qrels.values() for grade in judged.values()):
        raise InputError(
            f"{folder / 'qrels' / split}.tsv: got no judgement above 0; expected at least one relevant document; "
            "fix: choose another split"
        )
    name = folder.resolve().name
    return Task(
        name=name,
        documents=lambda: stream_documents(folder),
        count=corpus.count,
        query_sets=(QuerySet(name, queries, qrels),),
        exclude_self=exclude_self,
        min_relevant_grade=min_relevant_grade,
        inputs={file: file_hash(folder / file) for file in files_of_split(split)},
        settings={"collection": folder, "split": split, "missing_documents": missing_documents},
        warnings=tuple(advise(corpus, split, queries, qrels, min_relevant_grade, exclude_self)),
    )
