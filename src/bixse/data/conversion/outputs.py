"""Third stage of a conversion: the chosen rows as Parquet files of graded pairs, or as a collection folder."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bixse.data.conversion.rows import CHARACTERS_AT_ONCE, LABELS, ROWS_AT_ONCE, TEXTS, row_groups
from bixse.data.io.files import storage_errors
from bixse.data.io.parquet import table_writer
from bixse.data.transforms.pair_columns import NO_LABEL, key_of
from bixse.data.trec import write_qrels
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.data.sources.judgement_files import JudgementSource
    from bixse.data.transforms.pair_columns import PairColumns
    from bixse.relevance import GradeScale

_DIGITS = 6
"""Digits of a grade in qrels: enough to tell grades apart, and none that rounding made."""


@dataclass
class Written:
    """What was written, under temporary names."""

    files: dict[str, Path] = field(default_factory=dict)
    """Name in the output folder -> the file that will get it."""
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)
    """Part -> task -> rows; rows without a task under "-"."""
    notes: list[str] = field(default_factory=list)
    """What people should know."""


def write_pairs(
    paths: Sequence[Path],
    parts: Mapping[str, PairColumns],
    folder: Path,
    step: Callable[[int], None] | None = None,
) -> Written:
    """Write each part as `<part>.parquet`, a few thousand rows at a time.

    Args:
        paths: the parts that were read, with texts.
        parts: part -> rows to write.
        folder: receives the files.
        step: is told how many more bytes of the parts were read.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    written = Written(tasks={name: {} for name in parts})
    with storage_errors(folder), ExitStack() as stack:
        writers = {}
        for name in parts:
            target = folder / f"{name}.new"
            written.files[f"{name}.parquet"] = target
            writers[name] = _Grouped(stack.enter_context(table_writer(target, TEXTS)))
        for name, table in _chosen(paths, parts, step):
            writers[name].add(table)
            _count_tasks(written.tasks[name], table)
        for writer in writers.values():
            writer.flush()
    return written


def write_collection(
    paths: Sequence[Path],
    parts: Mapping[str, PairColumns],
    folder: Path,
    source: JudgementSource,
    scale: GradeScale,
    step: Callable[[int], None] | None = None,
) -> Written:
    """Write `corpus.jsonl`, `queries.jsonl` and `qrels/<part>.tsv`.

    A grade in the qrels is the relevance on a scale of the same width that begins at 0. The corpus is that of the
    source, where it has one, else the judged documents.

    Args:
        paths: the parts that were read, with texts.
        parts: part -> rows to write.
        folder: receives the files.
        source: of the rows.
        scale: of the grades.
        step: is told how many more bytes of the parts were read.

    Raises:
        InputError: a pair has several grades, as rows of several tasks, or an id that qrels cannot hold.
        StorageError: the disk is full or the folder cannot be written.
    """
    written = Written(tasks={name: {} for name in parts})
    targets = {name: folder / f"{name}.new" for name in ("corpus", "queries")}
    written.files = {f"{name}.jsonl": target for name, target in targets.items()}
    qrels: dict[str, dict[str, dict[str, float]]] = {name: {} for name in parts}
    seen: dict[str, set[int]] = {"query": set(), "document": set()}
    with storage_errors(folder), targets["corpus"].open("w", encoding="utf-8") as corpus:
        documents = source.all_documents()
        empty = 0
        for identifier, document in documents or ():
            if document.content.strip():
                corpus.write(_line({"_id": identifier, "title": document.title, "text": document.text}))
            else:
                empty += 1
        if empty:
            written.notes.append(f"{empty} documents of the corpus are empty and were left out")
        with targets["queries"].open("w", encoding="utf-8") as queries:
            for name, table in _chosen(paths, parts, step):
                _count_tasks(written.tasks[name], table)
                for row in table.to_pylist():
                    _judge(qrels[name], row, round(row["relevance"] * (scale.maximum - scale.minimum), _DIGITS))
                    if _is_new(seen["query"], row["query_id"]):
                        queries.write(_line({"_id": row["query_id"], "text": row["query"]}))
                    if documents is None and _is_new(seen["document"], row["document_id"]):
                        corpus.write(_line({"_id": row["document_id"], "title": "", "text": row["document"]}))
    for name, judged in qrels.items():
        target = folder / f"qrels-{name}.new"
        write_qrels(target, judged)
        written.files[f"qrels/{name}.tsv"] = target
    return written


class _Grouped:
    """Gathers small tables into row groups of a few thousand rows."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._tables, self._rows, self._bytes = writer, list[pa.Table](), 0, 0

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= ROWS_AT_ONCE or self._bytes >= CHARACTERS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._tables).combine_chunks())
        self._tables, self._rows, self._bytes = [], 0, 0


def _chosen(
    paths: Sequence[Path], parts: Mapping[str, PairColumns], step: Callable[[int], None] | None
) -> Iterator[tuple[str, pa.Table]]:
    """The chosen rows of each row group, a table a part, with their new labels."""
    others = _foreign_labels(paths, parts)
    for start, table in row_groups(paths, TEXTS.names, step):
        for name, part in parts.items():
            low, high = np.searchsorted(part.rows, (start, start + table.num_rows))
            if low < high:
                taken = table.take(pa.array(part.rows[low:high] - start))
                yield name, _relabelled(taken, part.take(np.arange(low, high)), *others)


def _foreign_labels(paths: Sequence[Path], parts: Mapping[str, PairColumns]) -> tuple[np.ndarray[Any, Any], pa.Table]:
    """Numbers and labels of the rows whose labels other rows have got."""
    asked = [part.labels[(part.labels != part.rows) & (part.labels != NO_LABEL)] for part in parts.values()]
    rows = np.unique(np.concatenate(asked))
    found = [TEXTS.empty_table().select(LABELS)]
    for start, table in row_groups(paths, LABELS) if len(rows) else ():
        low, high = np.searchsorted(rows, (start, start + table.num_rows))
        if low < high:
            found.append(table.take(pa.array(rows[low:high] - start)))
    return rows, pa.concat_tables(found).combine_chunks()


def _relabelled(table: pa.Table, part: PairColumns, foreign: np.ndarray[Any, Any], labels: pa.Table) -> pa.Table:
    """A table with the relevance of a part, and with the grades that go with it."""
    table = table.set_column(TEXTS.get_field_index("relevance"), "relevance", pa.array(part.relevance))
    changed = part.labels != part.rows
    if not changed.any():
        return table
    own = np.arange(len(part)) + len(labels)
    place = np.where(changed, np.searchsorted(foreign, part.labels) if len(foreign) else 0, own)
    indices = pa.array(place, mask=part.labels == NO_LABEL)
    for name in LABELS:
        values = pa.chunked_array([*labels[name].chunks, *table[name].chunks], type=TEXTS.field(name).type)
        table = table.set_column(TEXTS.get_field_index(name), TEXTS.field(name), values.take(indices))
    return table


def _count_tasks(counts: dict[str, int], table: pa.Table) -> None:
    for entry in pc.value_counts(table["task"]).to_pylist():
        name = entry["values"] if entry["values"] is not None else "-"
        counts[name] = counts.get(name, 0) + entry["counts"]


def _judge(qrels: dict[str, dict[str, float]], row: Mapping[str, Any], grade: float) -> None:
    known = qrels.setdefault(row["query_id"], {}).setdefault(row["document_id"], grade)
    if known != grade:
        raise InputError(
            f"qrels: got the grades {known:g} and {grade:g} for query {shorten(row['query_id'])} and document "
            f"{shorten(row['document_id'])} in two tasks; expected one grade per pair; fix: convert one task at a "
            "time"
        )


def _is_new(seen: set[int], identifier: str) -> bool:
    key = key_of(identifier)
    if key in seen:
        return False
    seen.add(key)
    return True


def _line(row: Mapping[str, str]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
