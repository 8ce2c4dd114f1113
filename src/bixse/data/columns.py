"""Columns of an Arrow table as sequences of Python values that are looked up when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from bixse.files.arrow import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


KEYS_AT_ONCE = 2**18
"""About so many keys are told apart in one table."""


class Column(Sequence[Any]):
    """A column as a read-only sequence: equal to a list of the same values, and never one in memory.

    Example:
        >>> column = Column(pa.chunked_array([["copy", "move"], ["sort"]]))
        >>> column[1], column[-2:], column == ["copy", "move", "sort"]
        ('move', ['move', 'sort'], True)
    """

    def __init__(self, values: pa.ChunkedArray, convert: Callable[[Any], Any] | None = None) -> None:
        self._values = values
        self._convert = convert

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        value = self._values[int(index)].as_py()
        return self._convert(value) if self._convert is not None else value

    def __iter__(self) -> Iterator[Any]:
        for block in blocks(self._values):
            yield from map(self._convert, block.to_pylist()) if self._convert is not None else block.to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    __hash__ = None  # type: ignore[assignment]


def numbered(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """(M,) numbers from 0 up in order of first appearance, equal where the keys are.

    A part of the keys is looked at at a time, so that no table of all different keys is in memory.

    Example:
        >>> numbered(np.array([70, 30, 70, 10])).tolist()
        [0, 1, 0, 2]
    """
    parts = 1 + len(keys) // KEYS_AT_ONCE
    part_of = (keys % parts).astype(np.uint16)
    first_of_row = np.empty(len(keys), dtype=np.int32)  # (M,) row at which each key first stands
    for part in range(parts):
        rows = np.flatnonzero(part_of == part).astype(np.int32)
        encoded = pa.array(keys[rows]).dictionary_encode()
        codes = encoded.indices.to_numpy()
        first_of_code = np.empty(len(encoded.dictionary), dtype=np.int32)
        first_of_code[codes[::-1]] = rows[::-1]  # the last to be assigned stays
        first_of_row[rows] = first_of_code[codes]
    is_first = first_of_row == np.arange(len(keys), dtype=np.int32)
    numbers: NDArray[np.int32] = (np.cumsum(is_first, dtype=np.int32) - 1)[first_of_row]
    return numbers


def first_rows(numbers: NDArray[np.int32]) -> NDArray[np.intp]:
    """Row at which each number first stands, in order of the numbers, which are those of `numbered`.

    Example:
        >>> first_rows(np.array([0, 1, 0, 2])).tolist()
        [0, 1, 3]
    """
    return np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))


def numbered_texts(column: pa.ChunkedArray, release: Callable[[], None]) -> NDArray[np.int32]:
    """(M,) numbers of texts, equal texts having the same one: by Python's 64-bit hash, a block of rows at a time.

    Args:
        column: M texts.
        release: called after each block, see `Spool.release`.
    """
    hashes = np.empty(len(column), dtype=np.int64)
    row = 0
    for block in blocks(column):
        texts = block.to_numpy(zero_copy_only=False)
        hashes[row : row + len(texts)] = np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts))
        row += len(texts)
        release()
    return numbered(hashes)
