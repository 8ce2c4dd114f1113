"""The tasks of an evaluation: a corpus, judged queries, and the rules of scoring."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bixse.data.collection import (
    Collection,
    MissingDocuments,
    as_collection,
    check_corpus,
    check_qrels,
    files_of_split,
    judgements_of,
    read_queries,
    stream_documents,
    warn_of_collection,
)
from bixse.data.joined import warn_of
from bixse.data.trec import read_qrels
from bixse.errors import InputError
from bixse.evaluation.metrics import check_min_relevant_grade
from bixse.files.files import hash_files
from bixse.relevance import MIN_RELEVANT_GRADE, Qrels

CollectionSource: TypeAlias = "str | Path | Collection | tuple[Mapping[str, str], Mapping[str, Any], Qrels]"
QUERIES = 256
PASSAGES = 131_072
"""Number of queries and maximum number of passages in a cut task."""
SEED = 0


@dataclass(frozen=True)
class QuerySet:
    """Judged queries over a corpus."""

    name: str
    queries: Mapping[str, str]
    qrels: Qrels
    left_out: frozenset[str] = frozenset()
    """Documents that are not searched."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> documents to rank; None: the complete corpus."""
    group: str | None = None
    """The query sets of a group count as one in the mean of a suite. None makes a separate group."""


@dataclass(frozen=True)
class Task:
    """A corpus, streamed and never held in memory, and its query sets."""

    name: str
    documents: Callable[[], Iterator[tuple[str, str]]]
    """A function that yields id and text of each document, in a fixed order."""
    count: int
    query_sets: tuple[QuerySet, ...]
    exclude_self: bool = False
    min_relevant_grade: float = MIN_RELEVANT_GRADE
    instructions: tuple[str, ...] = ()
    """Names of the task in a model's table of instructions; the first known name is used."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the record of a run; "collection" is a path that `inputs` stands for."""
    warnings: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Warnings of ids: judgements left out, and unjudged copies of relevant documents."""
    is_part: bool = False
    """True if the task has only a part of its corpus: a run of the complete corpus names other documents too."""

    @cached_property
    def id_hashes(self) -> NDArray[np.int64]:
        """Hashes of all document ids: 8 bytes per document, read once for all run files."""
        return np.fromiter((hash(name) for name, _ in self.documents()), np.int64)


def collection_task(
    collection: CollectionSource,
    split: str = "test",
    exclude_self: bool = False,
    min_relevant_grade: float = MIN_RELEVANT_GRADE,
    missing_documents: MissingDocuments = "refuse",
) -> Task:
    """Return the judged queries of a split of a collection; the corpus of a folder is checked now and streamed later.

    Args:
        collection: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, a `Collection`, or three
            dictionaries (queries, corpus, qrels).
        split: qrels file to score against.
        exclude_self: leave the document with the query's id out of its answers (ArguAna, Quora).
        min_relevant_grade: grade from which a document counts as relevant for recall, MRR and MAP, above 0.
        missing_documents: treatment of judgements whose document the corpus lacks.

    Raises:
        InputError: a file is missing, there is nothing to score, or a value is out of range.
        InvalidFileError: every invalid row of a file together.

    Example:
        >>> collection_task(({"q1": "copy"}, {"d1": "shutil.copy"}, {"q1": {"d1": 2}}), min_relevant_grade=2).count
        1
    """
    check_min_relevant_grade(min_relevant_grade)
    if isinstance(collection, str | Path):
        folder = Path(collection)
        held, name, judgements = None, folder.resolve().name, judgements_of(folder, split)
        texts, qrels = read_queries(folder / "queries.jsonl"), read_qrels(judgements)
        inputs = hash_files(files_of_split(folder, split))
    else:
        held = as_collection(collection, split)
        if split not in held.qrels:
            raise InputError(
                f"collection {held.name!r}: got split {split!r}; expected one of {', '.join(held.qrels)}; fix: "
                "collection_task(collection, split)"
            )
        name, folder, judgements = held.name, Path(), Path("qrels")
        texts, qrels = dict(held.queries), {name: dict(row) for name, row in held.qrels[split].items()}
        inputs = {"collection": held.hash}
    file = folder / "corpus.jsonl"
    corpus = check_corpus(file, qrels, queries=texts, corpus=None if held is None else held.corpus)
    judged, joined = check_qrels(judgements, qrels, texts, corpus.missing, missing_documents == "drop")
    joined += warn_of(judgements, *corpus.twins)
    queries = {query_id: texts[query_id] for query_id in judged}
    return Task(
        name,
        lambda: ((name, each.content) for name, each in (held.corpus.items() if held else stream_documents(file))),
        corpus.count,
        (QuerySet(name, queries, judged),),
        exclude_self=exclude_self,
        min_relevant_grade=min_relevant_grade,
        inputs=inputs,
        settings={
            "collection": folder,
            "split": split,
            "missing_documents": missing_documents,
        },
        warnings=tuple(warn_of_collection(corpus, queries, judged, min_relevant_grade, exclude_self)),
        joined=tuple(joined),
    )


class Cut(NamedTuple):
    """The selected queries (in qrels order) and documents (in corpus order) of a task."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]


def cut_collection(
    task: str, qrels: Qrels, document_ids: Iterable[str], queries: int = QUERIES, passages: int = PASSAGES
) -> Cut:
    """Select queries with a grade above 0, all their judged passages, and other passages up to `passages`.

    The smallest hashes of task name and id are selected: the result is the same on every machine.
    """

    def rank(identifier: str) -> bytes:
        return hashlib.sha256(f"{SEED} {task} {identifier}".encode()).digest()

    answerable = [query_id for query_id, judged in qrels.items() if any(grade > 0 for grade in judged.values())]
    chosen = set(nsmallest(queries, answerable, key=rank))
    judged = {document_id for query_id in chosen for document_id in qrels[query_id]}
    if len(judged) > passages:
        raise InputError(
            f"{task}: got {len(judged)} judged passages of {len(chosen)} queries; expected at most {passages}; "
            "fix: keep fewer queries or more passages"
        )
    corpus = list(document_ids)
    others = nsmallest(passages - len(judged), (name for name in corpus if name not in judged), key=rank)
    selected = judged.union(others)
    return Cut(tuple(name for name in qrels if name in chosen), tuple(name for name in corpus if name in selected))
