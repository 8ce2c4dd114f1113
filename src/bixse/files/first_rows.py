"""`FirstRows`: which values of a column stand there a second time, in a few bytes a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import numpy.typing as npt


class FirstRows:
    """The first row of each value of a column, whose values should all differ.

    As long as they do, only their 64-bit hashes are kept: 8 bytes a value, up to 24 while they are sorted. The first
    hash that comes again, which may stand for two values, makes the column be read from its beginning; from then on
    values and rows are kept themselves.

    Args:
        read_again: gives value and row of the column from its beginning, to the last row added or beyond.

    Example:
        >>> column = [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
        >>> first = FirstRows(lambda: column)
        >>> first.add(["a", "b"], [1, 2]), first.add(["a", "b"], [3, 4])
        ([1, 2], [1, 2])
    """

    def __init__(self, read_again: Callable[[], Iterable[tuple[Hashable, int]]]) -> None:
        self._read_again = read_again
        self._hashes: list[npt.NDArray[np.int64]] = []
        """Sorted; each array has at least twice the length of the next one."""
        self._rows: dict[Hashable, int] | None = None

    def add(self, values: Sequence[Hashable], rows: Sequence[int]) -> Sequence[int]:
        """The first row of each of these values, which stand behind all that were added before."""
        if not values:
            return []
        if self._rows is None:
            hashes = np.fromiter(map(hash, values), dtype=np.int64, count=len(values))
            hashes.sort()
            if not self._repeats(hashes):
                self._keep(hashes)
                return rows
            self._rows = {}
            for value, row in self._read_again():
                self._rows.setdefault(value, row)
            self._hashes.clear()
        return [self._rows.setdefault(value, row) for value, row in zip(values, rows, strict=True)]

    def _repeats(self, hashes: npt.NDArray[np.int64]) -> bool:
        if (hashes[1:] == hashes[:-1]).any():
            return True
        places = ((part, np.searchsorted(part, hashes)) for part in self._hashes)
        return any((part[np.minimum(place, len(part) - 1)] == hashes).any() for part, place in places)

    def _keep(self, hashes: npt.NDArray[np.int64]) -> None:
        self._hashes.append(hashes)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            joined = np.concatenate([self._hashes.pop(), self._hashes.pop()])
            joined.sort()
            self._hashes.append(joined)
