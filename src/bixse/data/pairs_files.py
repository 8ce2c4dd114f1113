"""Read and write graded pairs as Parquet, JSONL or CSV; every error of a file is reported together."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bixse.data.columns import SCHEMA, Column
from bixse.data.graded_pairs import Pair, Pairs
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, shorten
from bixse.files.parquet import footer_of, spool
from bixse.files.rows import checked_format, files_of, kind_of, read_blocks, read_rows, stem_of, write_rows
from bixse.files.run_folder import in_run
from bixse.files.values import FileColumn

if TYPE_CHECKING:
    from bixse.relevance import Kind

TEXTS = (
    FileColumn("query_id", "id", needed=False),
    FileColumn("query"),
    FileColumn("document_id", "id", needed=False),
    FileColumn("document"),
)
TASK = FileColumn("task", needed=False)
PAIR_COLUMNS = (*TEXTS, TASK)
"""Columns of pairs without grades; other columns are ignored."""
GRADED_COLUMNS = (
    *TEXTS,
    FileColumn("relevance", "number", low=0, high=1),
    TASK,
    FileColumn("grade", "number", needed=False),
    FileColumn("grade_probs", "numbers", needed=False),
    FileColumn("judge", needed=False),
)
"""Columns of graded pairs; other columns are ignored."""
SCORE_COLUMNS = (
    FileColumn("query", other_names=("query_id", "qid")),
    # squares of larger scores overflow
    FileColumn("score", "number", low=-1e30, high=1e30, other_names=("cosine", "similarity")),
    FileColumn("relevance", "number", needed=False, low=0, high=1, other_names=("relevant", "label")),
    FileColumn("grade", "number", needed=False, low=0),
)
"""Columns of scores with what is relevant; other columns are ignored."""


def load_graded_pairs(path: str | Path) -> Pairs:
    r"""Read graded pairs from a .parquet, .jsonl, .csv or .tsv file (text also with .gz) and check every row.

    A folder of Parquet files is read as one file, in the order of their names.

    Columns: `query`, `document` (text) and `relevance` (a number in [0, 1]); optional `query_id`, `document_id`
    (made from a hash of the text if absent), `task`, `grade`, `grade_probs` (a list, JSON in CSV), `judge`; other
    columns are ignored. A pair that is repeated with the same relevance is read once.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every error with row, column, value, expected value and fix.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document,relevance\ncopy a folder,shutil.copytree,1.0\n")
        >>> load_graded_pairs(path).relevance.tolist()
        [1.0]
    """
    return _load(Path(path), GRADED_COLUMNS)


def load_pairs(path: str | Path, rows: range | None = None) -> list[Pair]:
    """Read pairs without grades from a .parquet, .jsonl, .csv or .tsv file and check every row.

    The rules are those of `load_graded_pairs`; a column `relevance` is not read. `rows`, counted from 0, limits Parquet
    to these rows: only they are in memory, and only they are compared with each other.
    """
    pairs = open_pairs(path, rows).rows()
    return [Pair(row["query_id"], row["query"], row["document_id"], row["document"], row.get("task")) for row in pairs]


def parquet_pairs(path: Path) -> tuple[str, int]:
    """Return a hash and the number of rows of a Parquet file, or of a folder of Parquet files, from the footers."""
    files = files_of(path, (".parquet",), "a file or folder of pairs")
    if other := [file for file in files if kind_of(file) != ".parquet"]:  # only Parquet can be read from the middle
        raise InputError(
            f"{other[0]}: got a suffix other than .parquet; expected Parquet, which shards need; fix: "
            "pandas.read_csv(...).to_parquet(...), or leave --shards, --processes and --engine out"
        )
    # the footer holds the position, minimum and maximum of each column: files of any size are hashed in one read
    hashes, counts = zip(*map(footer_of, files), strict=True)
    known = [[file.name, file.stat().st_size, digest] for file, digest in zip(files, hashes, strict=True)]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest(), sum(counts)


def open_pairs(path: str | Path, rows: range | None = None) -> Pairs:
    """Read pairs as `load_pairs` does, into a table, memory-mapped if large; its relevance has no meaning."""
    return _load(Path(path), PAIR_COLUMNS, rows)


def as_pairs(given: Any, graded: bool = True) -> Pairs:
    """Return pairs of any form: Pairs, a `Dataset`, a frame, an Arrow table, dictionaries, a path or several.

    Without `graded`, a relevance is neither needed nor read. Raise InputError for other objects, a missing column, and
    relevance outside [0, 1].

    Example:
        >>> as_pairs([{"query": "copy a folder", "document": "shutil.copytree", "label": 0.5}]).relevance.tolist()
        [0.5]
    """
    from datasets import Dataset, DatasetDict
    from pandas import DataFrame

    several = list(given) if isinstance(given, list | tuple) else []
    if isinstance(given, str | Path) or (graded and several and all(isinstance(each, str | Path) for each in several)):
        return load_several(several or [given]) if graded else open_pairs(given)
    if isinstance(given, Pairs):
        if graded and not given.is_graded:
            raise InputError(f"pairs: got {given}; expected relevance; fix: bixse.grade(pairs, judge)")
        return given
    if several and all(isinstance(each, Mapping) for each in several):
        pairs = Pairs.from_rows(several if graded else [{**row, "relevance": 0.0} for row in several])
    elif isinstance(given, DatasetDict) and graded:
        pairs = Pairs.from_dataset(given)
    elif isinstance(given, pa.Table | DataFrame | Dataset):
        table = given.with_format("arrow")[:] if isinstance(given, Dataset) else given
        table = pa.Table.from_pandas(table, preserve_index=False) if isinstance(table, DataFrame) else table
        if not graded:
            table = table.drop_columns([*{"relevance"}.intersection(table.column_names)])
            table = table.append_column("relevance", pa.array(np.zeros(len(table))))
        pairs = Pairs.from_arrow(table)
    else:
        raise InputError(
            f"pairs: got {shorten(given) if several else type(given).__name__}; expected a Dataset, a frame, an Arrow "
            "table, a list of dictionaries with query and document, or a path; fix: pass the pairs first"
        )
    pairs.is_graded = graded
    return pairs.select(first_of_repeats(pairs, InvalidFileError(Path("pairs")), range(1, len(pairs) + 1)))


def paths_or_pairs(given: Any) -> list[Path] | Pairs:
    """Return paths of graded pairs as they are, and pairs of another form as `as_pairs` does."""
    several = given if isinstance(given, list | tuple) else [given]
    if several and all(isinstance(each, str | Path) for each in several):
        return [in_run(Path(each), "training") for each in several]
    return as_pairs(given)


def load_several(paths: Sequence[str | Path]) -> Pairs:
    """Read graded pairs from one file, or from several files joined as in `Pairs.joined`, named by their files.

    The order of the files does not matter. White space in their names becomes _, since ids have no white space.
    """
    if len(paths) == 1:
        return load_graded_pairs(paths[0])
    names = ["_".join(stem_of(Path(path)).split()) for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not paths:
        raise InputError(
            f"pairs: got {f'two files named {twice[0]!r}' if twice else 'no file'}; expected files with different "
            "names: the name is the task of rows without a task; fix: rename a file"
        )
    return Pairs.joined({name: load_graded_pairs(path) for name, path in sorted(zip(names, paths, strict=True))})


def load_scores(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Read (N,) queries, scores and relevance in [0, 1]; grades are divided by the highest grade of the file."""
    errors, rows = InvalidFileError(path), []
    names = [name for column in SCORE_COLUMNS[2:] for name in column.names]
    for number, row in read_rows(path, SCORE_COLUMNS, errors):
        if row["relevance"] is None and row["grade"] is None:
            errors.lacks(number, names, "a relevance or a grade", "fill in relevance (0 to 1) or grade")
        rows.append(row)
    errors.raise_any()
    top = max((row["grade"] for row in rows if row["relevance"] is None), default=0) or 1
    relevance = [row["grade"] / top if row["relevance"] is None else row["relevance"] for row in rows]
    return tuple(row["query"] for row in rows), np.array([row["score"] for row in rows]), np.array(relevance)


def save_graded_pairs(pairs: Pairs, path: str | Path) -> None:
    """Write graded pairs to .parquet, .jsonl, .csv or .tsv (text also with .gz), completely or not at all."""
    checked_format(Path(path))
    if len(pairs) == 0:
        raise InputError(f"{path}: got no pairs to write; expected at least one; fix: check how they were selected")
    write_rows(pairs.to_arrow(), path)


def _load(path: Path, columns: Sequence[FileColumn], chosen: range | None = None) -> Pairs:
    path = in_run(path, "graded")
    errors, rows = InvalidFileError(path), array("q")
    names = {"relevance"}.union(column.name for column in columns)
    schema = pa.schema([field for field in SCHEMA if field.name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        for block in read_blocks(path, columns, errors, chosen):
            rows.extend(block.rows)
            yield pa.record_batch([block.columns.get(name, [0.0] * len(block)) for name in schema.names], schema)

    # the reader has checked every value
    pairs = Pairs.from_checked(spool(batches(), schema), columns is GRADED_COLUMNS)
    return pairs.select(first_of_repeats(pairs, errors, rows))


def first_of_repeats(
    pairs: Pairs,
    errors: InvalidFileError,
    rows: Sequence[int] | None = None,
    fix_id: str = "give each text its own id",
    fix_relevance: str | None = "keep one of the two rows",
) -> NDArray[np.bool_]:
    """Return (M,) True for the first row of each pair and task; refuse an id of two texts and a pair of two grades.

    `errors` are raised with them; `rows` are their rows of the file. Without `fix_relevance`, all rows are first ones.
    """

    def at(row: int) -> str:
        return f" in row {rows[row]}" if rows is not None else ""

    def add(row: int, column: str, got: str, expected: str, fix: str) -> None:
        errors.add(rows[row] if rows is not None else None, column, got, expected, fix)

    named: dict[Kind, tuple[Column, Column]] = {
        "query": (pairs.query_ids, pairs.queries),
        "document": (pairs.document_ids, pairs.documents),
    }
    for kind, (ids, texts) in named.items():
        for number, (row, before) in enumerate(pairs.other_texts(kind)):
            got = ""  # of later ones the number alone is told, and there may be millions
            if number < ERRORS_SHOWN:
                got = f"{shorten(ids[row])} for {shorten(texts[row])}, but{at(before)} for {shorten(texts[before])}"
            add(row, f"{kind}_id", got, f"one {kind} text per id", fix_id)
    first = np.arange(len(pairs)) if fix_relevance is None else pairs.first_rows_of_pairs()
    for number, row in enumerate(np.flatnonzero(pairs.relevance != pairs.relevance[first]).tolist()):
        got, before = "", int(first[row])
        if number < ERRORS_SHOWN:
            pair = f"query {shorten(pairs.queries[row])} and document {shorten(pairs.documents[row])}"
            got = f"{pairs.relevance[row]}, but{at(before)} {pairs.relevance[before]}, for {pair}"
        add(row, "relevance", got, "one relevance per pair", fix_relevance or "")
    errors.raise_any()
    return np.equal(first, np.arange(len(pairs)))
