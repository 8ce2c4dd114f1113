"""The BiXSE paper's validation set: six BEIR tasks, each cut to a few queries and passages, always the same."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING

from bixse.errors import InputError, StorageError
from bixse.files.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bixse.evaluation.tasks import Task
    from bixse.relevance import Qrels

QUERIES = 256
PASSAGES = 131_072
"""Queries and (at most) passages of a task that are kept."""
SEED = 0
"""Of the choice; part of each hash."""
FOLDER = "beir-short"
"""Of the id lists, beside the tasks' folders."""


@dataclass(frozen=True)
class Cut:
    """Which queries (in the order of the qrels) and documents (in that of the corpus) of a task are kept.

    Example:
        >>> Cut("toy", ("q1",), ("d1", "d2")).content_hash[:8]
        '8789dd3f'
    """

    task: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(json.dumps([self.task, SEED, self.queries, self.documents]).encode()).hexdigest()


def cut_collection(
    task: str, qrels: Qrels, document_ids: Iterable[str], queries: int = QUERIES, passages: int = PASSAGES
) -> Cut:
    """Choose queries and passages: all judged ones of the chosen queries, then others until the number is full.

    The choice takes those whose hash, of which the task's name is a part, is smallest: it is the same on every machine,
    whatever the order of the files. Queries without a grade above 0 are never chosen.
    """

    def place(identifier: str) -> bytes:
        return hashlib.sha256(f"{SEED} {task} {identifier}".encode()).digest()

    answerable = [query_id for query_id, judged in qrels.items() if any(grade > 0 for grade in judged.values())]
    chosen = set(nsmallest(queries, answerable, key=place))
    judged = {document_id for query_id in chosen for document_id in qrels[query_id]}
    if len(judged) > passages:
        raise InputError(
            f"{task}: got {len(judged)} judged passages of {len(chosen)} queries; expected at most {passages}; "
            "fix: keep fewer queries or more passages"
        )
    corpus = list(document_ids)
    kept = judged.union(nsmallest(passages - len(judged), (name for name in corpus if name not in judged), key=place))
    return Cut(
        task,
        tuple(query_id for query_id in qrels if query_id in chosen),
        tuple(document_id for document_id in corpus if document_id in kept),
    )


def short_task(task: Task, name: str, data: Path, queries: int = QUERIES, passages: int = PASSAGES) -> Task:
    """A task with one query set cut down; the id lists are written to <data>/beir-short."""
    (whole,) = task.query_sets
    cut = cut_collection(name, whole.qrels, (document for document, _ in task.documents()), queries, passages)
    made_from = {"queries": queries, "passages": passages, "files": dict(task.inputs)}
    lists = {"queries": cut.queries, "documents": cut.documents}
    content = {"task": name, "seed": SEED, "made from": made_from, "sha256": cut.content_hash, **lists}
    with suppress(StorageError):  # the lists are for the reader: they come out the same each time
        write_atomically(data / FOLDER / f"{name}-seed{SEED}.json", json.dumps(content) + "\n")
    kept = frozenset(cut.documents)
    own = replace(
        whole,
        queries={query: whole.queries[query] for query in cut.queries},
        qrels={query: whole.qrels[query] for query in cut.queries},
    )
    return replace(
        task,
        documents=lambda: ((document, text) for document, text in task.documents() if document in kept),
        count=len(cut.documents),
        query_sets=(own,),
        inputs={**task.inputs, "id lists": cut.content_hash},
    )
