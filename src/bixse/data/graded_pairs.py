"""`GradedPairs`: the one table that training reads, a row a graded (query, document) pair."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import datasets
    import pyarrow as pa
    from numpy.typing import NDArray

    from bixse.data.collection import Collection
    from bixse.relevance import GradeScale

OPTIONAL_COLUMNS = ("task", "grade", "grade_probs", "judge")
"""Columns carried along: task name, grade on its scale, the judge's probability of each grade (a list), its name."""


def text_id(text: str) -> str:
    """A stable id for a text that has none: the start of its SHA-256.

    Example:
        >>> text_id("copy a folder")
        'f21ca126cf2f02a5'
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@dataclass(frozen=True)
class Pair:
    """A (query, document) pair that has no grade yet."""

    query_id: str
    """Id of the query."""
    query: str
    """Its text."""
    document_id: str
    """Id of the document."""
    document: str
    """Its text."""
    task: str | None = None
    """Name of the task, or None."""


@dataclass(frozen=True)
class QueryGroup:
    """The K >= 1 graded documents of one query."""

    query_id: str
    """Id of the query."""
    query: str
    """Its text."""
    document_ids: Sequence[str]
    """K ids, each once."""
    documents: Sequence[str]
    """K texts."""
    relevance: Sequence[float]
    """K values in [0, 1]."""
    task: str | None = None
    """Name of the task, or None."""


@dataclass(frozen=True)
class GradedPairs:
    """Graded (query, document) pairs; the rows of one query form its group.

    Example:
        >>> pairs = GradedPairs.from_rows([
        ...     {"query": "copy a folder", "document": "shutil.copytree: copy a directory tree", "relevance": 1.0},
        ...     {"query": "copy a folder", "document": "shutil.copy: copy one file", "relevance": 0.33},
        ... ])
        >>> len(pairs), len(pairs.groups()), pairs.groups()[0].relevance
        (2, 1, [1.0, 0.33])
    """

    query_ids: Sequence[str]
    """M query ids."""
    queries: Sequence[str]
    """M query texts."""
    document_ids: Sequence[str]
    """M document ids."""
    documents: Sequence[str]
    """M document texts."""
    relevance: NDArray[np.float64]
    """(M,) values in [0, 1]: 0 irrelevant, 1 perfectly relevant."""
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Optional columns: task, grade, grade_probs, judge."""
    _groups: list[QueryGroup] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> GradedPairs:
        """Build from row dictionaries that are already valid; missing ids are made from the texts.

        Files from outside go through `load_graded_pairs`, which checks every row first.
        """
        taken = list(rows)
        present = [name for name in OPTIONAL_COLUMNS if any(row.get(name) is not None for row in taken)]
        return cls(
            query_ids=[str(row.get("query_id") or text_id(row["query"])) for row in taken],
            queries=[row["query"] for row in taken],
            document_ids=[str(row.get("document_id") or text_id(row["document"])) for row in taken],
            documents=[row["document"] for row in taken],
            relevance=np.array([float(row["relevance"]) for row in taken], dtype=np.float64),
            extra={name: [row.get(name) for row in taken] for name in present},
        )

    @classmethod
    def from_collection(cls, collection: Collection, split: str, scale: GradeScale) -> GradedPairs:
        """The judged pairs of one split, grades mapped to relevance by `scale`.

        Raises:
            InputError: for a split the collection lacks, ids it does not hold, or a grade off the scale.
        """
        if split not in collection.qrels:
            raise InputError(
                f"collection {collection.name!r}: got split {split!r}; expected one of "
                f"{sorted(collection.qrels)}; fix: name a split that has a qrels file"
            )
        rows = []
        for query_id, judged in collection.qrels[split].items():
            for document_id, grade in judged.items():
                if query_id not in collection.queries or document_id not in collection.corpus:
                    raise InputError(
                        f"collection {collection.name!r}, split {split!r}: got a judgement of query {query_id!r} and "
                        f"document {document_id!r}; expected ids of the collection; fix: drop it from the qrels"
                    )
                rows.append(
                    {
                        "query_id": query_id,
                        "query": collection.queries[query_id],
                        "document_id": document_id,
                        "document": collection.corpus[document_id].content,
                        "relevance": scale.to_relevance(grade),
                        "grade": grade,
                    }
                )
        return cls.from_rows(rows)

    @classmethod
    def joined(cls, tables: Mapping[str, GradedPairs]) -> GradedPairs:
        """Several tables as one, each under a name.

        Ids become `<name>/<id>`, since two tables may use one id for different texts, and a table without tasks has
        its name as the task of its rows.

        Example:
            >>> row = {"query_id": "1", "query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}
            >>> both = GradedPairs.joined({name: GradedPairs.from_rows([row]) for name in ("a", "b")})
            >>> [(group.query_id, group.task) for group in both.groups()]
            [('a/1', 'a'), ('b/1', 'b')]
        """
        rows: list[dict[str, Any]] = []
        for name, table in tables.items():
            for row in table.rows():
                ids = {key: f"{name}/{row[key]}" for key in ("query_id", "document_id")}
                rows.append({**row, **ids, "task": row.get("task") or name})
        return cls.from_rows(rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row dictionaries in order, optional columns included."""
        for index in range(len(self)):
            yield {
                "query_id": self.query_ids[index],
                "query": self.queries[index],
                "document_id": self.document_ids[index],
                "document": self.documents[index],
                "relevance": float(self.relevance[index]),
                **{name: values[index] for name, values in self.extra.items()},
            }

    def groups(self) -> list[QueryGroup]:
        """One group a query of a task, in the order queries first appear; made once."""
        if self._groups is None:
            object.__setattr__(self, "_groups", self._make_groups())
        return list(self._groups or ())

    def _make_groups(self) -> list[QueryGroup]:
        tasks = self.extra.get("task")
        members: dict[tuple[str, str | None], list[int]] = {}
        for index, query_id in enumerate(self.query_ids):
            members.setdefault((query_id, tasks[index] if tasks is not None else None), []).append(index)
        return [
            QueryGroup(
                query_id=query_id,
                query=self.queries[indices[0]],
                document_ids=[self.document_ids[i] for i in indices],
                documents=[self.documents[i] for i in indices],
                relevance=[float(self.relevance[i]) for i in indices],
                task=task,
            )
            for (query_id, task), indices in members.items()
        ]

    def select_queries(self, query_ids: Iterable[str]) -> GradedPairs:
        """Only the pairs of these queries, in the order of this table."""
        wanted = set(query_ids)
        return GradedPairs.from_rows(row for row in self.rows() if row["query_id"] in wanted)

    def to_arrow(self) -> pa.Table:
        """The table as Arrow, for Parquet and for hashing."""
        import pyarrow as pa

        return pa.Table.from_pylist(list(self.rows()))

    def to_dataset(self) -> datasets.Dataset:
        """The pairs as sentence-transformers' own trainer takes them: columns query, document, label (the relevance).

        Example:
            >>> row = {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}
            >>> GradedPairs.from_rows([row]).to_dataset()[0]
            {'query': 'copy a folder', 'document': 'shutil.copytree', 'label': 1.0}
        """
        from datasets import Dataset

        columns = {"query": list(self.queries), "document": list(self.documents), "label": self.relevance.tolist()}
        return Dataset.from_dict(columns)

    def content_hash(self) -> str:
        """SHA-256 over every row's ids, texts and relevance, in order."""
        digest = hashlib.sha256()
        columns = (self.query_ids, self.queries, self.document_ids, self.documents, self.relevance.tolist())
        for values in zip(*columns, strict=True):
            digest.update(repr(values).encode("utf-8"))
        return digest.hexdigest()
