"""Which sealed segments have answers that are looked for: 64 bits of each key, in a file beside the segment."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import StorageError
from bixse.files.files import atomic_file
from bixse.judging.ledgers.segments import open_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK = 1 << 23
"""Bytes of it that are read together."""
BITS = 21
"""By so many first bits nearly every other number is told from 50,000 that are looked for."""


def numbers_of(segment: Path) -> Path:
    """The file: the size of the segment, a number of 8 bytes a key, and one that makes the sum of all 0."""
    return segment.with_name(f".{segment.stem}.keys")


class WantedKeys:
    """Keys that are looked for in many segments."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        """Sorted."""
        numbers = _numbers_of(keys)
        order = np.argsort(numbers)
        self._sorted, self._key_of = numbers[order], order
        self._likely = np.zeros(1 << BITS, dtype=bool)
        self._likely[_first_bits(numbers)] = True

    def near(self, segment: Path) -> Sequence[str]:
        """Those that a sealed segment may have, sorted: all that it has, and hardly any other."""
        try:
            return self._near(segment)
        except (OSError, ValueError):  # not made yet, or damaged
            try:
                _save_numbers(segment)
            except StorageError:  # a folder that may be read only
                return self.keys
            return self._near(segment)

    def _near(self, segment: Path) -> list[str]:
        size, total, found = segment.stat().st_size, 0, []
        with numbers_of(segment).open("rb") as file:
            first = file.read(8)
            while block := file.read(BLOCK):
                numbers = np.frombuffer(block, dtype="<u8")
                total += int(numbers.sum())
                likely = numbers[self._likely.take(_first_bits(numbers))]
                places = np.minimum(np.searchsorted(self._sorted, likely), len(self._sorted) - 1)
                found.append(places[self._sorted[places] == likely])
        if int.from_bytes(first, "little") != size or (size + total) % 2**64:
            raise ValueError("another segment, or not as it was written")
        return sorted(self.keys[self._key_of[place]] for place in np.unique(np.concatenate(found)))


def _numbers_of(keys: Iterable[str]) -> NDArray[np.uint64]:
    digests = (hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _first_bits(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (numbers >> np.uint64(64 - BITS)).view(np.int64)


def _save_numbers(segment: Path) -> None:
    total = size = segment.stat().st_size
    with atomic_file(numbers_of(segment)) as target, open_sealed(segment) as file:
        target.write(size.to_bytes(8, "little"))
        for batch in file.iter_batches(columns=["key"]):
            numbers = _numbers_of(batch.column(0).to_pylist())
            target.write(numbers.tobytes())
            total += int(numbers.sum())
        target.write((-total % 2**64).to_bytes(8, "little"))
