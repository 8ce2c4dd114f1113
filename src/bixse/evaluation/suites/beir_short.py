"""The BiXSE paper's validation set: six BEIR tasks, each cut to a few queries and passages, always the same."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text, write_atomically
from bixse.errors import InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bixse.evaluation.tasks import Task
    from bixse.relevance import Qrels

QUERIES = 256
"""Queries of a task that are kept."""
PASSAGES = 131_072
"""Passages of a task that are kept, at most."""
FOLDER = "beir-short"
"""Folder of the id lists, beside the tasks' folders."""


@dataclass(frozen=True)
class Cut:
    """Which queries and passages of a task are kept.

    Example:
        >>> Cut("toy", 0, ("q1",), ("d1", "d2")).content_hash[:8]
        '8789dd3f'
    """

    task: str
    """The task."""
    seed: int
    """Of the choice."""
    queries: tuple[str, ...]
    """Query ids, in the order of the qrels."""
    documents: tuple[str, ...]
    """Document ids, in the order of the corpus."""

    @property
    def content_hash(self) -> str:
        """SHA-256 of the lists."""
        return hashlib.sha256(json.dumps([self.task, self.seed, self.queries, self.documents]).encode()).hexdigest()


def cut_collection(
    task: str,
    qrels: Qrels,
    document_ids: Iterable[str],
    queries: int = QUERIES,
    passages: int = PASSAGES,
    seed: int = 0,
) -> Cut:
    """Choose queries and passages: all judged ones of the chosen queries, then others until the number is full.

    The choice takes those whose hash with the seed is smallest: it is the same on every machine, whatever the order
    of the files.

    Args:
        task: name of the task, part of the hash.
        qrels: judgements; queries without a grade above 0 are never chosen.
        document_ids: the corpus.
        queries: queries to keep.
        passages: passages to keep.
        seed: another one gives another choice.

    Raises:
        InputError: the chosen queries have more judged passages than are to be kept.

    Example:
        >>> cut = cut_collection("toy", {"q1": {"d1": 1}, "q2": {"d2": 1}}, ["d1", "d2", "d3", "d4"], 1, 2)
        >>> cut.queries, cut.documents
        (('q2',), ('d2', 'd3'))
    """

    def place(identifier: str) -> bytes:
        return hashlib.sha256(f"{seed} {task} {identifier}".encode()).digest()

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
        seed,
        tuple(query_id for query_id in qrels if query_id in chosen),
        tuple(document_id for document_id in corpus if document_id in kept),
    )


def short_task(
    task: Task, name: str, data: Path, queries: int = QUERIES, passages: int = PASSAGES, seed: int = 0
) -> Task:
    """A task of the suite cut down: the id lists are read from <data>/beir-short, or made and written there.

    Args:
        task: the whole task, with one query set.
        name: of the task, part of the choice.
        data: folder of the tasks' folders.
        queries: queries to keep.
        passages: passages to keep.
        seed: of the choice.
    """
    (whole,) = task.query_sets
    wanted = {"queries": queries, "passages": passages, "files": dict(task.inputs)}
    path = data / FOLDER / f"{name}-seed{seed}.json"
    cut = _read(path, name, seed, wanted)
    if cut is None:
        cut = cut_collection(name, whole.qrels, (document for document, _ in task.documents()), queries, passages, seed)
        with suppress(StorageError):  # a folder that cannot be written: the same lists are made anew each time
            _write(path, cut, wanted)
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


def _write(path: Path, cut: Cut, wanted: dict[str, Any]) -> None:
    lists = {"queries": cut.queries, "documents": cut.documents}
    content = {"task": cut.task, "seed": cut.seed, "made from": wanted, "sha256": cut.content_hash, **lists}
    write_atomically(path, json.dumps(content) + "\n")


def _read(path: Path, task: str, seed: int, wanted: dict[str, Any]) -> Cut | None:
    """The lists of a file, or None where there is none; refuses a damaged one and one made from other data."""
    if not path.is_file():
        return None
    try:
        content = json.loads(read_text(path))
        cut = Cut(task, seed, tuple(content["queries"]), tuple(content["documents"]))
        said, made_from = content["sha256"], content["made from"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: got no readable id lists ({type(error).__name__}: {error}); expected the JSON that bixse wrote; "
            "fix: delete the file, it is made again"
        ) from error
    if said != cut.content_hash:
        raise InputError(
            f"{path}: got lists with SHA-256 {cut.content_hash}; expected {said}, as the file says; fix: delete "
            "the file, it is made again"
        )
    if made_from != wanted:
        changed = ", ".join(name for name in wanted if made_from.get(name) != wanted[name])
        raise InputError(
            f"{path}: got id lists made from other data or settings ({changed}); expected those of {path.parent.parent}"
            "; fix: delete the file for new lists, or bring back the data"
        )
    return cut
