"""`FaultsFile`: every row that could not be read, written down as it is found."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from bixse.data.io.files import storage_errors
from bixse.errors import InvalidFileError, RowError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TextIO


class FaultsFile:
    """The errors of several files as one file of JSON lines, and the first of each for messages.

    Args:
        path: the file to write.
        names: how each file is called in the lines.
    """

    def __init__(self, path: Path, names: Mapping[Path, str]) -> None:
        self.path, self.names = path, names
        self.lists: list[InvalidFileError] = []
        """The errors by file, in the order in which the files were read."""
        with storage_errors(path):
            self._out = path.open("w", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    @property
    def total(self) -> int:
        """Errors so far."""
        return sum(errors.total for errors in self.lists)

    def of(self, path: Path) -> InvalidFileError:
        """A list that takes the errors of a file."""
        self.lists.append(_WrittenError(path, self.names[path], self._out))
        return self.lists[-1]


class _WrittenError(InvalidFileError):
    """Errors of one file that are all written down."""

    def __init__(self, path: Path, name: str, out: TextIO) -> None:
        super().__init__(path)
        self._name, self._out = name, out

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        super().add(row, column, got, expected, fix)
        self._out.write(json.dumps({"file": self._name, **asdict(RowError(row, column, got, expected, fix))}) + "\n")
