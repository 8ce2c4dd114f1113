"""Vector databases: what bixse needs of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeAlias

from pydantic import ValidationError

from bixse.errors import InputError, first_fault, needs_extra, shorten
from bixse.index.index_files import IndexFiles, Manifest, is_index, open_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bixse.data.corpus import Document
    from bixse.search.hits import Match

FORMS = {"lancedb": "lancedb:PATH/TABLE", "qdrant": "qdrant:URL/COLLECTION"}
"""Database -> form of the name of a table or collection."""
CLASSES = {"lancedb": "bixse.index.lance:LanceStore", "qdrant": "bixse.index.qdrant:QdrantStore"}
"""Database -> its class, imported on first use."""
PREFIXES = tuple(f"{database}:" for database in FORMS)
KEY = "bixse"
"""Name of the manifest in the metadata of a database."""
Answers: TypeAlias = "list[list[tuple[float, int, str, Document]]]"
"""Per query the score, row, id and text of documents."""


class VectorStore(ABC):
    """The documents of one index in a table or collection; a row is the position of a document in the corpus, from 0.

    Methods raise InputError if the database does not answer.
    """

    label: str
    """Database, place and name, as given."""
    exists = False
    """True if there is a table or collection of this name, with a manifest."""
    manifest: Manifest
    approximate: str
    """Kind of approximate search; "" if every document is scored."""
    together: int
    """Number of documents per write."""

    @abstractmethod
    def create(self, manifest: Manifest) -> None: ...

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: NDArray[np.float32]) -> None: ...

    @abstractmethod
    def build(self) -> None:
        """Build the approximate index unless it exists."""

    @abstractmethod
    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        """Return the best documents of (Q, D) queries, in any order; an approximate search may find fewer."""

    def close(self) -> None:  # noqa: B027 (most databases hold no connection)
        """Close the connection, if there is one."""

    def search(
        self, queries: NDArray[np.float32], top: int, exact: bool = False, texts: bool = True
    ) -> list[list[Match]]:
        """Return most of the best documents of (Q, D) queries, highest first, and never fewer than exist."""
        top = min(top, self.manifest.documents)
        answers = self.best(queries, top, exact, texts)
        # An approximate search visits a part of the index, and may find fewer documents.
        short = [number for number, line in enumerate(answers) if len(line) < top]
        if short and not exact:
            for number, line in zip(short, self.best(queries[short], top, True, texts), strict=True):
                answers[number] = line
        ordered = (sorted(line, key=lambda hit: (-hit[0], hit[1])) for line in answers)
        return [[(name, score, document) for score, _, name, document in line] for line in ordered]

    def check(self) -> None:
        """Raise InputError unless the database holds all documents of an index."""
        if not self.exists:
            raise InputError(
                f"{self.label}: got no such table or collection; expected one that `bixse index` wrote; fix: check the "
                f"name, or run `bixse index MODEL --collection DIR --to {self.label}`"
            )
        if (count := self.count()) != (documents := self.manifest.documents):
            raise InputError(
                f"{self.label}: got {count} documents; expected {documents}; fix: run the same `bixse index ... --to "
                f"{self.label}` again, which continues where it stopped; if documents were deleted, delete it first"
            )

    def read(self, content: str | None) -> None:
        """Read the manifest from its JSON; raise InputError for data that bixse did not write."""
        try:
            self.manifest, self.exists = Manifest.model_validate_json(content or ""), True
        except ValidationError as error:
            got = "no manifest" if content is None else f"one that is not valid ({first_fault(error)})"
            raise InputError(
                f"{self.label}: got {got}; expected what this version of `bixse index --to` writes; fix: another "
                "name, or delete it (a Qdrant server keeps manifests from version 1.16 on)"
            ) from error


def is_stored(name: str | Path) -> bool:
    """Return True for the folder of a finished index and for the name of a vector database.

    Example:
        >>> is_stored("lancedb:runs/lance/documents"), is_stored("runs/no-index")
        (True, False)
    """
    return str(name).startswith(PREFIXES) or is_index(Path(name))


def connect(name: str) -> VectorStore:
    """Connect to a table or collection, which need not exist yet; raise InputError if the database cannot be used."""
    form = re.fullmatch(r"(lancedb):(.+)/([\w.-]+)|(qdrant):(https?://[^/].*)/([\w.-]+)", name, re.ASCII)
    if form is None:
        raise InputError(
            f"vector database: got {shorten(name)}; expected {' or '.join(FORMS.values())} (the last name of letters, "
            "digits, _, - and .); fix: lancedb:runs/lance/documents, or qdrant:http://localhost:6333/documents"
        )
    database, address, table = (part for part in form.groups() if part is not None)
    with needs_extra(database, name):
        store: VectorStore = resolve_name(CLASSES[database])(name, address, table)
    return store


def open_stored(name: str | Path) -> IndexFiles | VectorStore:
    """Open the folder of an index, or a vector database with a complete one; raise InputError for anything else."""
    if not str(name).startswith(PREFIXES):
        return open_files(Path(name))
    store = connect(str(name))
    store.check()
    return store
