"""A task made ready for a system: documents, judged queries, and how they are scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bixse.data.io.files import file_hash
from bixse.evaluation.suites.folder_stream import check_corpus, read_judged_queries, stream_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.suites.known_suites import SuiteTask
    from bixse.relevance import Qrels


@dataclass(frozen=True)
class JudgedQueries:
    """Queries searched in one corpus, and what their answers are scored against."""

    name: str
    """Names the set: a split, a year."""
    queries: Mapping[str, str]
    """Query id -> text."""
    qrels: Qrels
    """Judgements of these queries."""
    left_out: frozenset[str] = frozenset()
    """Documents of the corpus that are not searched for these queries."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> the documents to put in order; None: the whole corpus."""


@dataclass(frozen=True)
class PreparedTask:
    """One corpus and the sets of queries that are searched in it, each encoded once."""

    name: str
    """Names the task, and its folder."""
    documents: Callable[[], Iterator[tuple[str, str]]]
    """Gives id and text of each document, in an order that stays the same."""
    count: int
    """Number of documents."""
    sets: tuple[JudgedQueries, ...]
    """At least one."""
    inputs: Mapping[str, str]
    """What the task was read from -> hash of its content."""
    exclude_self: bool = False
    """Leave the document with the query's own id out of its answers."""
    relevance_level: float = 1.0
    """Grade from which a document is relevant for the binary metrics."""


@dataclass(frozen=True)
class TaskSource:
    """A task whose data are there, not yet read."""

    name: str
    """As in `PreparedTask`."""
    prepare: Callable[[], PreparedTask]
    """Reads and checks the data."""
    instruction_names: tuple[str, ...] = ()
    """Names under which a model's table of instructions may hold the task."""
    group_of: Mapping[str, str] = field(default_factory=dict)
    """Set -> the group it is averaged in; a set that is not named is its own."""


def find_folder(task: SuiteTask, data: Path) -> tuple[Path, str] | None:
    """The folder and split of a task below a folder of data sets, or None where a file lacks."""
    for name in task.folders:
        folder = data / name
        for split in task.splits:
            files = (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / f"{split}.tsv")
            if all(file.is_file() for file in files):
                return folder, split
    return None


def folder_source(task: SuiteTask, folder: Path, split: str, instruction_names: tuple[str, ...]) -> TaskSource:
    """A task whose data are a collection folder."""

    def prepare() -> PreparedTask:
        queries, qrels = read_judged_queries(folder, split)
        files = ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
        return PreparedTask(
            name=task.name,
            documents=lambda: stream_documents(folder),
            count=check_corpus(folder, qrels),
            sets=(JudgedQueries(task.name, queries, qrels),),
            inputs={name: file_hash(folder / name) for name in files},
            exclude_self=task.exclude_self,
        )

    groups = {task.name: task.group} if task.group else {}
    return TaskSource(task.name, prepare, instruction_names, groups)
