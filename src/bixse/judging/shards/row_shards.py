"""A file of documents, or a file or folder of pairs, cut into ranges of rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.data.pairs_files import pairs_to_parquet
from bixse.errors import InputError
from bixse.files.files import file_hash
from bixse.files.parquet import footer_hash, row_counts
from bixse.files.rows import files_of, kind_of
from bixse.scale.engines.job import is_marked, mark

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 50_000
"""Rows of a shard where nobody says how many shards: some hundred megabytes with the questions about them."""


def number_of_shards(wanted: int | None, total: int) -> int:
    """Shards of so many rows: those that are wanted, or as many as have `ROWS`."""
    return min(wanted or -(-total // ROWS), total)


@dataclass(frozen=True)
class RowShards:
    """Ranges of rows of nearly equal size."""

    path: Path
    """A Parquet file, a folder of some, or a file of another format."""
    content: str
    """Of Parquet a hash of the footers of the files, which say where each column lies and what its least and greatest
    values are: files of any size are known by it at once. Else a hash of the file."""
    total: int
    """Rows."""
    number: int
    """Shards, at most one per row."""

    def __len__(self) -> int:
        return self.total

    def rows(self, shard: int) -> range:
        """The rows of a shard, from 0."""
        return range(self.total * shard // self.number, self.total * (shard + 1) // self.number)

    def check(self) -> None:
        """Refuse, by an InputError, files that are not those of which the ranges are."""
        if content_of(self.path) != self.content:
            raise InputError(
                f"{self.path}: got other pairs or documents than on the machine that started this; expected the same; "
                "fix: name a file or folder that all machines share"
            )


def cut_pairs(path: Path, number: int | None, copy: Path) -> RowShards:
    """Cut pairs into a number of shards, or into shards of `ROWS`; of Parquet the footers alone are read.

    Of another format a copy in Parquet is made, once for each content.

    Raises:
        InputError: no such file, or no row.
        InvalidFileError: of a file that is copied every row that cannot be read.
    """
    if not _is_parquet(path):
        if not is_marked(copy, content := file_hash(path)):
            pairs_to_parquet(path, copy)
            mark(copy, content)
        path = copy
    total = sum(row_counts(_files(path)))
    if not total:
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")
    return RowShards(path.absolute(), content_of(path), total, number_of_shards(number, total))


def content_of(path: Path) -> str:
    """What tells pairs from others: a hash of the footers of Parquet files, else of the file."""
    files = _files(path)
    if not _is_parquet(path):
        return file_hash(path)
    known = [[file.name, file.stat().st_size, footer_hash(file)] for file in files]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    return files_of(path, (".parquet",), "a file or folder of pairs")


def _is_parquet(path: Path) -> bool:
    return path.is_dir() or kind_of(path) == ".parquet"
