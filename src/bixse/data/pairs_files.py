"""Graded pairs from and to files: Parquet, JSONL or CSV, every error of a file reported together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bixse.data.graded_pairs import GradedPairs, Pair, text_id
from bixse.data.row_files.columns import Column
from bixse.data.row_files.read import checked_format, read_blocks, stem_of
from bixse.data.row_files.write import write_rows
from bixse.errors import InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIR_COLUMNS = (
    Column("query_id", "id", needed=False),
    Column("query"),
    Column("document_id", "id", needed=False),
    Column("document"),
    Column("task", needed=False),
)
"""Columns of pairs that are still to be graded; others are ignored."""
GRADED_COLUMNS = (
    *PAIR_COLUMNS[:4],
    Column("relevance", "number", low=0, high=1),
    Column("task", needed=False),
    Column("grade", "number", needed=False),
    Column("grade_probs", "numbers", needed=False),
    Column("judge", needed=False),
)
"""Columns of graded pairs; others are ignored."""
_TYPES = {"relevance": pa.float64(), "grade": pa.float64(), "grade_probs": pa.list_(pa.float64())}


def load_graded_pairs(path: str | Path) -> GradedPairs:
    r"""Read graded pairs from a .parquet, .jsonl, .csv or .tsv file (text also with .gz) and check every row.

    Columns: `query`, `document` (text) and `relevance` (a number in [0, 1]); optional `query_id`, `document_id`
    (made from a hash of the text when absent), `task`, `grade`, `grade_probs` (a list, JSON in CSV), `judge`; other
    columns are ignored. A pair given twice with the same relevance is kept once.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every error with row, column, what was got, what was expected and how to fix it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document,relevance\ncopy a folder,shutil.copytree,1.0\n")
        >>> load_graded_pairs(path).relevance.tolist()
        [1.0]
    """
    return GradedPairs.from_rows(_read(Path(path), GRADED_COLUMNS).to_pylist())


def load_pairs(path: str | Path) -> list[Pair]:
    r"""Read pairs that are still to be graded from a .parquet, .jsonl, .csv or .tsv file and check every row.

    As `load_graded_pairs`, without the column `relevance`, which is not read where there is one.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every error with row, column, what was got, what was expected and how to fix it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document\ncopy a folder,shutil.copytree\n")
        >>> load_pairs(path)[0].document
        'shutil.copytree'
    """
    return [Pair(**row) for row in _read(Path(path), PAIR_COLUMNS).to_pylist()]


def load_several(paths: Sequence[str | Path]) -> GradedPairs:
    """Read graded pairs from one file, or from several as one table (see `GradedPairs.joined`; named by their files).

    The order of the files does not matter; white space in their names becomes _, as ids have none.

    Raises:
        InputError: as `load_graded_pairs`; or two files have the same name.
    """
    if len(paths) == 1:
        return load_graded_pairs(paths[0])
    names = ["_".join(stem_of(Path(path)).split()) for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not paths:
        raise InputError(
            f"pairs: got {f'two files named {twice[0]!r}' if twice else 'no file'}; expected files with names of "
            "their own: a name stands for the task of rows without one; fix: rename one"
        )
    return GradedPairs.joined({name: load_graded_pairs(path) for name, path in sorted(zip(names, paths, strict=True))})


def save_graded_pairs(pairs: GradedPairs, path: str | Path) -> None:
    """Write graded pairs to .parquet, .jsonl, .csv or .tsv (text also with .gz), whole or not at all.

    Raises:
        InputError: the suffix names no known format, or there is no pair to write.
        StorageError: the disk is full or the folder cannot be written.
    """
    checked_format(Path(path))
    if len(pairs) == 0:
        raise InputError(f"{path}: got no pairs; expected at least one; fix: check what was selected")
    write_rows(pairs.to_arrow(), path)


def _read(path: Path, columns: Sequence[Column]) -> pa.Table:
    """The checked rows of a file of pairs, ids filled in; each pair of a task once."""
    errors = InvalidFileError(path)
    schema = pa.schema({column.name: _TYPES.get(column.name, pa.string()) for column in columns})
    batches = []
    rows: list[int] = []
    ids_given = {"query": False, "document": False}
    for block in read_blocks(path, columns, errors):
        values = dict(block.columns)
        for kind in ids_given:
            given = values[f"{kind}_id"]
            ids_given[kind] |= any(given)
            values[f"{kind}_id"] = [
                text_id(text) if identifier is None else identifier
                for identifier, text in zip(given, values[kind], strict=True)
            ]
        batches.append(pa.record_batch(values, schema))
        rows += block.rows
    table = pa.Table.from_batches(batches, schema)
    for kind, has_ids in ids_given.items():
        if has_ids:
            _check_texts(table, kind, rows, errors)
    table = _each_pair_once(table, rows, errors)
    errors.raise_any()
    return table


def _check_texts(table: pa.Table, kind: str, rows: Sequence[int], errors: InvalidFileError) -> None:
    """Every row whose id stands for another text than in an earlier row is an error."""
    identifier = f"{kind}_id"
    texts = table.group_by([identifier, kind]).aggregate([])
    if len(texts) == pc.count_distinct(table[identifier]).as_py():
        return
    first: dict[str, tuple[int, str]] = {}
    for row, name, text in zip(rows, table[identifier].to_pylist(), table[kind].to_pylist(), strict=True):
        before, known = first.setdefault(name, (row, text))
        if known != text:
            got = f"{shorten(name)} with another text than in row {before}"
            errors.add(row, identifier, got, f"one {kind} text per id", "give each text its own id")


def _each_pair_once(table: pa.Table, rows: Sequence[int], errors: InvalidFileError) -> pa.Table:
    """The first row of every pair of a task; another relevance in a later one is an error."""
    keys = ["query_id", "document_id", "task"]
    if len(table.group_by(keys).aggregate([])) == len(table):
        return table
    graded = "relevance" in table.column_names
    values = table["relevance"].to_pylist() if graded else [0.0] * len(table)
    first: dict[tuple[str, ...], tuple[int, float]] = {}
    kept = []
    pairs = zip(*(table[name].to_pylist() for name in keys), strict=True)
    for row, key, relevance in zip(rows, pairs, values, strict=True):
        before, known = first.setdefault(key, (row, relevance))
        kept.append(before == row)
        if known != relevance:
            got = f"{relevance} where row {before} has {known} for the same pair"
            errors.add(row, "relevance", got, "one relevance per pair", "keep one of the two rows")
    return table.filter(pa.array(kept))
