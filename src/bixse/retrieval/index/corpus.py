"""Documents and queries for an index, read block by block: a corpus need not fit in memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from bixse.data import collection_files
from bixse.data.io.files import file_hash
from bixse.data.row_files.read import text_lines
from bixse.errors import InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.data.collection import Document


class CorpusFile:
    """A file of documents in BEIR's layout ({_id, title, text} a line), checked once as a whole.

    Raises:
        InputError: it is missing, unreadable, or holds no document with a text.
        InvalidFileError: every error of the file together. An empty document is valid: published corpora hold some.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = self.empty = 0
        for _, document in collection_files.stream_documents(path):
            self.rows += 1
            self.empty += not document.content
        if self.empty == self.rows:
            raise InputError(
                f"{path}: got {self.rows} documents, none with a title or a text; expected texts; fix: check the export"
            )
        self.hash = file_hash(path)

    def __len__(self) -> int:
        return self.rows

    def warnings(self) -> list[str]:
        """One line that counts the empty documents, or none."""
        has = "has" if self.empty == 1 else "have"
        return [f"{self.empty} of {self.rows} documents {has} neither title nor text"] if self.empty else []

    def blocks(self, size: int) -> Iterator[list[tuple[str, Document]]]:
        """Document ids and documents in file order, `size` at a time.

        Raises:
            InvalidFileError: the file was changed since it was checked.
        """
        documents = collection_files.stream_documents(self.path)
        while block := list(islice(documents, size)):
            yield block


def read_queries(path: Path) -> dict[str, str]:
    r"""Queries from a file: query id -> text, in file order.

    Args:
        path: JSONL of {_id, text} where it ends in .jsonl; otherwise one query per line, after its id and a tab
            or without (then the ids are q1, q2, ... by line).

    Raises:
        InputError: it is missing, unreadable, or holds no query.
        InvalidFileError: every invalid line together.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "queries.txt"
        >>> _ = file.write_text("copy a file\n\nt7\tsort a list\n")
        >>> read_queries(file)
        {'q1': 'copy a file', 't7': 'sort a list'}
    """
    if path.suffix.lower() == ".jsonl":
        return collection_files.read_queries(path)
    errors = InvalidFileError(path)
    queries: dict[str, str] = {}
    for number, line, _ in text_lines(path, errors):
        before, tab, after = line.partition("\t")
        identifier, text = (before.strip(), after) if tab else (f"q{number}", line)
        if not text.strip():
            errors.add(number, "text", "an empty query", "a text", "fill it in or drop the line")
        elif identifier in queries:
            errors.add(number, "_id", f"{shorten(identifier)} again", "an id used once", "drop or rename the repeat")
        else:
            queries[identifier] = text
    errors.raise_any()
    if not queries:
        raise InputError(f"{path}: got no queries; expected at least one; fix: write one a line")
    return queries
