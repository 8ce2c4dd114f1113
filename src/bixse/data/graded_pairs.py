"""`Pairs`: the table that training reads, one row per graded (query, document) pair, stored in Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bixse.data.columns import (
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    SCHEMA,
    Column,
    checked,
    checked_batches,
    first_rows,
    lacking_ids,
    numbered,
    numbered_texts,
    text_id,
    with_columns_of,
    with_ids,
    without_empty_columns,
)
from bixse.errors import InputError
from bixse.files.parquet import ROWS_PER_BLOCK, Spool, spool

if TYPE_CHECKING:
    import datasets
    import pandas

    from bixse.relevance import GradeScale, Kind, Qrels

TEXTS_HELD = 2**6
"""Number of texts that are read before their memory-mapped pages are released."""


class Judged(Protocol):
    """The parts of a `Collection` that pairs are made of; its module reads files, which training needs not."""

    @property
    def name(self) -> str: ...
    @property
    def corpus(self) -> Mapping[str, Any]: ...
    @property
    def queries(self) -> Mapping[str, str]: ...
    @property
    def qrels(self) -> Mapping[str, Qrels]: ...


@dataclass(frozen=True)
class Pair:
    """A (query, document) pair without a grade."""

    query_id: str
    query: str
    document_id: str
    document: str
    task: str | None = None


@dataclass(frozen=True)
class QueryGroup:
    """The K >= 1 graded documents of a query."""

    query_id: str
    query: str
    document_ids: Sequence[str]
    documents: Sequence[str]
    relevance: Sequence[float]
    """K values in [0, 1]."""
    task: str | None = None


class Pairs:
    """Graded (query, document) pairs; the rows of a query form its group.

    A view of an Arrow table. Texts stay in the table, memory-mapped if it is large, and are read on demand.

    Example:
        >>> pairs = Pairs.from_rows([
        ...     {"query": "copy a folder", "document": "shutil.copytree: copy a directory tree", "relevance": 1.0},
        ...     {"query": "copy a folder", "document": "shutil.copy: copy one file", "relevance": 0.33},
        ... ])
        >>> len(pairs), len(pairs.groups()), pairs.groups()[0].relevance
        (2, 1, [1.0, 0.33])
    """

    def __init__(self, spooled: Spool, is_graded: bool = True) -> None:
        """Use one of the `from_` methods instead: they check their input."""
        self.is_graded = is_graded
        """False for pairs that are still to be graded: their relevance is 0 and means nothing."""
        self._spooled = spooled
        self._looked_up = 0
        self._numbers: dict[str, NDArray[np.int32]] = {}
        table = spooled.table
        self.table: pa.Table = table
        """M rows in columns of `SCHEMA`; without ids if none were given."""
        self.relevance: NDArray[np.float64] = table["relevance"].to_numpy()
        """(M,) values in [0, 1]: 0 irrelevant, 1 perfectly relevant."""
        self.query_ids, self.document_ids = (
            Column(table[f"{kind}_id"]) if f"{kind}_id" in table.column_names else Column(table[kind], text_id)
            for kind in ("query", "document")
        )
        """M ids each, made from the texts if the table has none."""
        self.queries, self.documents = Column(table["query"]), Column(table["document"])
        """M texts each."""
        self.extra: dict[str, Column] = {n: Column(table[n]) for n in OPTIONAL_COLUMNS if n in table.column_names}
        """Optional columns that the table has: task, grade, grade_probs, judge."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return one row, as `rows` does."""
        return next(self.select(np.array([range(len(self))[number]])).rows())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows()

    @classmethod
    def from_arrow(cls, source: pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]) -> Pairs:
        """Make pairs from a table, which is not copied, or from record batches of one schema, spooled to disk if large.

        Columns: query, document, relevance (or label, in [0, 1]), and optionally query_id, document_id, task, grade,
        grade_probs, judge; other columns are ignored. Raise InputError for a missing column, text or relevance.

        Example:
            >>> table = pa.table({"query": ["copy"], "document": ["shutil.copy"], "label": [1.0]})
            >>> Pairs.from_arrow(table).documents
            ['shutil.copy']
        """
        if isinstance(source, pa.Table):
            return cls.from_checked(Spool(checked(without_empty_columns(source))))
        batches = checked_batches(source)
        first = next(batches, None)
        if first is None:
            return cls(Spool(pa.schema([SCHEMA.field(name) for name in REQUIRED_COLUMNS]).empty_table()))
        return cls.from_checked(spool(chain([first], batches), first.schema))

    @classmethod
    def from_checked(cls, spooled: Spool, is_graded: bool = True) -> Pairs:
        """Make pairs from a table in columns of `SCHEMA` whose values are valid; make missing ids from the texts."""
        spooled = Spool(without_empty_columns(spooled.table), spooled.mapping)
        if lacking_ids(spooled.table):
            blocks = spooled.table.to_batches(ROWS_PER_BLOCK)
            filled = (with_ids(pa.Table.from_batches([block])).combine_chunks().to_batches() for block in blocks)
            spooled = spool(chain.from_iterable(filled), spooled.table.schema)
        return cls(spooled, is_graded)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Pairs:
        """Make pairs from row dictionaries; missing ids are made from the texts."""
        stored = list(rows)
        if not any("relevance" in row for row in stored):
            stored = [{**row, "relevance": row.get("label")} for row in stored]
        names = [n for n in SCHEMA.names if n in REQUIRED_COLUMNS or any(row.get(n) is not None for row in stored)]
        schema = pa.schema([SCHEMA.field(name) for name in names])
        blocks = (stored[start : start + ROWS_PER_BLOCK] for start in range(0, len(stored), ROWS_PER_BLOCK))
        columns = ({name: [_value(name, row.get(name)) for row in block] for name in schema.names} for block in blocks)
        return cls.from_arrow(pa.RecordBatch.from_pydict(block, schema) for block in columns)

    @classmethod
    def from_dataset(cls, dataset: datasets.Dataset | Mapping[str, datasets.Dataset]) -> Pairs:
        """Make pairs from a data set with the columns of `from_arrow`, or from a `DatasetDict` with one task per key.

        The data set is not copied: if `datasets` keeps it on disk, it stays there. Selected or shuffled rows are
        gathered in memory; `flatten_indices()` writes them to disk first. A stream is refused: its length is unknown.

        Example:
            >>> from datasets import Dataset
            >>> data = Dataset.from_dict({"query": ["copy"], "document": ["shutil.copy"], "label": [1.0]})
            >>> Pairs.from_dataset(data).relevance.tolist()
            [1.0]
        """
        from datasets import Dataset

        if isinstance(dataset, Mapping):
            return cls.joined({str(name): cls.from_dataset(part) for name, part in dataset.items()})
        if not isinstance(dataset, Dataset):
            raise InputError(
                f"graded pairs: got {type(dataset).__name__}; expected a datasets.Dataset, a DatasetDict with one task "
                "per key, or Pairs; fix: load_dataset(NAME, split=...) without streaming"
            )
        return cls.from_arrow(dataset.with_format("arrow")[:])

    @classmethod
    def from_collection(cls, collection: Judged, split: str, scale: GradeScale) -> Pairs:
        """Make pairs from the judgements of a split; `scale` maps grades to relevance; others are refused."""
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
    def joined(cls, tables: Mapping[str, Pairs]) -> Pairs:
        """Join named tables into one.

        Ids become `<name>/<id>`, since two tables may use one id for different texts. Rows of a table without tasks get
        its name as their task.

        Example:
            >>> row = {"query_id": "1", "query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}
            >>> both = Pairs.joined({name: Pairs.from_rows([row]) for name in ("a", "b")})
            >>> [(group.query_id, group.task) for group in both.groups()]
            [('a/1', 'a'), ('b/1', 'b')]
        """
        present = {name for pairs in tables.values() for name in pairs.table.column_names}
        names = [name for name in SCHEMA.names if name in present | {"query_id", "document_id", "task"}]
        schema = pa.schema([SCHEMA.field(name) for name in names])

        def batches() -> Iterator[pa.RecordBatch]:
            for prefix, pairs in tables.items():
                for block in pairs.blocks():
                    complete = with_columns_of(block, names)
                    columns = {name: complete[name] for name in names}
                    for name in ("query_id", "document_id"):
                        start = pa.scalar(prefix, pa.large_string())
                        columns[name] = pc.binary_join_element_wise(start, columns[name], pa.scalar("/", start.type))
                    columns["task"] = pc.fill_null(columns["task"], prefix)
                    yield from pa.table(columns, schema).combine_chunks().to_batches()
                    pairs.release()

        return cls(spool(batches(), schema))

    def blocks(self) -> Iterator[pa.Table]:
        """Yield the table in blocks of rows, with ids."""
        present = {*self.table.column_names, "query_id", "document_id"} - (set() if self.is_graded else {"relevance"})
        names = [name for name in SCHEMA.names if name in present]
        for start in range(0, len(self), ROWS_PER_BLOCK):
            yield with_ids(with_columns_of(self.table.slice(start, ROWS_PER_BLOCK), names))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield row dictionaries in order, optional columns included."""
        for block in self.blocks():
            yield from block.to_pylist()

    def numbers(self, kind: Kind, of_ids: bool = False) -> NDArray[np.int32]:
        """Return the (M,) numbers of the query or document texts in order of first appearance, computed once.

        Those `of_ids` are the numbers of the texts in a table without ids.
        """
        name = f"{kind}_id" if of_ids and f"{kind}_id" in self.table.column_names else kind
        if name not in self._numbers:
            self._numbers[name] = numbered_texts(self.table[name], self.release)
        return self._numbers[name]

    def other_texts(self, kind: Kind) -> Iterator[tuple[int, int]]:
        """Yield (row, earlier row) for each row whose id has another text in the first row with that id."""
        ids, texts = self.numbers(kind, of_ids=True), self.numbers(kind)
        first = first_rows(ids)[ids]
        for row in np.flatnonzero(texts != texts[first]).tolist():
            yield row, int(first[row])

    def first_rows_of_pairs(self) -> NDArray[np.intp]:
        """Return (M,) the first row with the ids and the task of each row."""
        names, tasks = self.tasks
        queries, documents = self.numbers("query", of_ids=True), self.numbers("document", of_ids=True)
        numbers = numbered(queries.astype(np.int64) << 32 | documents)
        if len(names) > 1:
            numbers = numbered(numbers.astype(np.int64) << 32 | tasks)
        return first_rows(numbers)[numbers]

    @cached_property
    def tasks(self) -> tuple[list[str | None], NDArray[np.int32]]:
        """The task names in order of first appearance (None for rows without a task), and their (M,) numbers."""
        if "task" not in self.table.column_names or not len(self):
            return [None], np.zeros(len(self), dtype=np.int32)
        encoded = pc.dictionary_encode(self.table["task"], null_encoding="encode").combine_chunks()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()

    @cached_property
    def _groups(self) -> QueryGroups:
        return QueryGroups(self)

    def groups(self) -> QueryGroups:
        """Return one group per query and task, in the order in which queries first appear."""
        return self._groups

    def distinct(self, kind: Kind) -> NDArray[np.intp]:
        """Return the row at which each query or document text first appears, in order."""
        return first_rows(self.numbers(kind))

    def texts(self, kind: Kind, rows: Iterable[int]) -> list[str]:
        """Return the query or document texts of some rows."""
        column, texts = self.table[kind], []
        for row in rows:
            if self._looked_up == TEXTS_HELD:
                self._looked_up = 0
                self.release()
            texts.append(column[int(row)].as_py())
            self._looked_up += 1
        return texts

    def release(self) -> None:
        """Give memory-mapped pages that were read back to the operating system."""
        self._spooled.release()

    def select(self, rows: NDArray[Any]) -> Pairs:
        """Return the pairs at these rows: a mask of length M, or row numbers in any order."""
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.all():
            return self
        chosen = (
            self.table.filter(pa.array(rows)) if rows.dtype == bool else self.table.take(pa.array(rows, pa.int64()))
        )
        return Pairs(Spool(chosen, self._spooled.mapping), self.is_graded)

    def with_columns(self, **columns: Any) -> Pairs:
        """Return the same pairs with M new values in each of these columns of `SCHEMA`."""
        table = self.table
        for name, values in columns.items():
            field, array = SCHEMA.field(name), pa.chunked_array([pa.array(values, SCHEMA.field(name).type)])
            at = table.column_names.index(name) if name in table.column_names else None
            table = table.append_column(field, array) if at is None else table.set_column(at, field, array)
        return Pairs(Spool(without_empty_columns(checked(table)), self._spooled.mapping))

    def to_arrow(self) -> pa.Table:
        """Return the table with ids, in blocks of rows."""
        return pa.concat_tables(self.blocks()) if len(self) else self.table

    def to_pandas(self) -> pandas.DataFrame:
        """Return the pairs as a frame with ids."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        note = "" if self.is_graded else ", not graded"
        return f"{type(self).__name__}({len(self)} pairs, {len(self.groups())} queries{note})"

    def to_dataset(self, format: Literal["labeled-pair", "labeled-list"] = "labeled-pair") -> datasets.Dataset:
        """Return the pairs in a form of sentence-transformers, named as in its `mine_hard_negatives`.

        labeled-pair: the columns query, document, label (the relevance), one row per pair. labeled-list: query,
        documents, labels (lists), one row per query, as the listwise losses of its `CrossEncoderTrainer` read them.
        Pairs without relevance have no column label.

        Example:
            >>> rows = [{"query": "copy", "document": name, "relevance": z} for name, z in (("cp", 1.0), ("rm", 0.0))]
            >>> Pairs.from_rows(rows).to_dataset("labeled-list")[0]
            {'query': 'copy', 'documents': ['cp', 'rm'], 'labels': [1.0, 0.0]}
        """
        from datasets import Dataset

        if format == "labeled-list":
            lists = [
                {"query": g.query, "documents": list(g.documents), "labels": list(g.relevance)} for g in self.groups()
            ]
            listed = Dataset.from_list(lists)
            return listed if self.is_graded else listed.remove_columns("labels")
        if format != "labeled-pair":
            raise InputError(f"format: got {format!r}; expected labeled-pair or labeled-list; fix: choose one of them")
        names = {"query": "query", "document": "document"} | ({"relevance": "label"} if self.is_graded else {})
        return Dataset(self.table.select(list(names)).rename_columns(list(names.values())))

    def content_hash(self) -> str:
        """Return the SHA-256 of ids, texts, tasks and relevance of all rows, in order; independent of chunks."""
        digest = hashlib.sha256()
        for block in self.blocks():
            for name in ("query_id", "query", "document_id", "document", *{"task"}.intersection(self.extra)):
                texts = [(text or "").encode() for text in block[name].to_pylist()]
                # without the lengths, "ab", "c" and "a", "bc" would have the same hash
                digest.update(np.array([len(text) for text in texts], dtype="<i8").tobytes())
                digest.update(b"".join(texts))
            digest.update(block["relevance"].to_numpy().astype("<f8").tobytes())
            self.release()
        return digest.hexdigest()


class QueryGroups(Sequence[QueryGroup]):
    """The groups of a table as index arrays; the texts of a group are read on demand."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        names, tasks = pairs.tasks
        groups = numbered(pairs.numbers("query", of_ids=True).astype(np.int64) * len(names) + tasks)
        self.order: NDArray[np.intp] = np.argsort(groups, kind="stable")
        """(M,) rows of the table, grouped."""
        self.offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.bincount(groups))]).astype(np.int64)
        """(G + 1,) start of each group in `order`, and the end of the last group."""
        self.tasks: NDArray[np.int32] = tasks[self.first_rows]
        """(G,) task number of each group, see `Pairs.tasks`."""

    @property
    def first_rows(self) -> NDArray[np.intp]:
        return self.order[self.offsets[:-1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, number: int) -> NDArray[np.intp]:
        """Return the (K,) rows of a group."""
        return self.order[self.offsets[number] : self.offsets[number + 1]]

    @overload
    def __getitem__(self, index: int) -> QueryGroup: ...
    @overload
    def __getitem__(self, index: slice) -> list[QueryGroup]: ...
    def __getitem__(self, index: int | slice) -> QueryGroup | list[QueryGroup]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        pairs, rows = self._pairs, self.rows(number)
        return QueryGroup(
            query_id=pairs.query_ids[rows[0]],
            query=pairs.texts("query", rows[:1])[0],
            document_ids=[pairs.document_ids[row] for row in rows],
            documents=pairs.texts("document", rows),
            relevance=pairs.relevance[rows].tolist(),
            task=pairs.tasks[0][self.tasks[number]],
        )


def _value(name: str, value: Any) -> Any:
    """Convert a value for its column: ids may be numbers, relevance may be text."""
    if value is None or name in ("grade_probs", "query", "document"):
        return value
    return float(value) if name in ("relevance", "grade") else str(value)
