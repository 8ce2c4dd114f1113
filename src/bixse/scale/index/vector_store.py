"""Vector databases: their names, the interface that bixse needs of them, and their approximate search."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
from pydantic import ValidationError

from bixse.errors import InputError, first_fault, shorten
from bixse.scale.index.index_files import IndexFiles, Manifest, is_index, open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from bixse.data.collection import Document
    from bixse.scale.index.index_files import AnnSettings

FORMS = {"lancedb": "lancedb:PATH/TABLE", "qdrant": "qdrant:URL/COLLECTION"}
"""Database -> form of the name of a table or collection."""
PACKAGES = {"lancedb": "lancedb", "qdrant": "qdrant_client"}
CLASSES = {"lancedb": "bixse.scale.index.lance:LanceStore", "qdrant": "bixse.scale.index.qdrant:QdrantStore"}
"""Database -> its class, imported on first use."""
KEY = "bixse"
"""Name of the manifest in the metadata of a database."""
Answers: TypeAlias = "tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]"
"""Scores and rows of documents, each (Q, k), in the order of `exact_search`."""
Nearest: TypeAlias = "Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.int64]]"


class StoreAddress(NamedTuple):
    """A table of LanceDB, or a collection of Qdrant."""

    database: str
    place: str
    """Folder or URL."""
    name: str

    def __str__(self) -> str:
        return f"{self.database}:{self.place}/{self.name}"


class VectorStore(Protocol):
    """The documents of one index in a database; a row is the position of a document in the corpus, from 0.

    Methods raise InputError if the database does not answer, or lacks a row that it once had.
    """

    address: StoreAddress
    together: int
    """Number of documents per write."""

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the index; raise InputError if there is nothing, or data that bixse did not write."""
        ...

    def exists(self) -> bool: ...

    def create(self, manifest: Manifest) -> None: ...

    def keep(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        ...

    def written(self) -> int:
        """Count the complete documents from the first on, after which a killed export continues."""
        ...

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: npt.NDArray[np.float32]) -> None:
        """Write ids, documents and (n, D) embeddings of the rows from `start` on, which is the result of `written`."""
        ...

    def build(self) -> AnnSettings | None:
        """Build the approximate index unless it exists; return None if every document is scored."""
        ...

    def nearest(self, queries: npt.NDArray[np.float32], top: int) -> npt.NDArray[np.int64]:
        """Return rows (Q, k) of most of the best documents for (Q, D) queries in any order; -1 fills a short row."""
        ...

    def exact(self, queries: npt.NDArray[np.float32], top: int) -> Answers: ...

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]: ...

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Return ids and documents of the rows, in the order of `rows`."""
        ...

    def ids(self, rows: Sequence[int]) -> list[str]: ...

    def check(self) -> None:
        """Raise InputError unless the database holds all documents."""
        ...

    def close(self) -> None: ...


def is_store(text: str) -> bool:
    """Return True if a text names a vector database.

    Example:
        >>> is_store("lancedb:runs/lance/documents"), is_store("runs/index")
        (True, False)
    """
    return text.partition(":")[0] in FORMS and ":" in text


def is_stored(name: str | Path) -> bool:
    """Return True for the folder of a finished index and for the name of a vector database."""
    return is_store(str(name)) or is_index(Path(name))


def address_of(text: str) -> StoreAddress:
    """Return the parts of a name; raise InputError for another form.

    Example:
        >>> address_of("qdrant:http://localhost:6333/documents").place
        'http://localhost:6333'
    """
    database, _, rest = text.partition(":")
    place, _, name = rest.rpartition("/")
    has_form = database in FORMS and place and re.fullmatch(r"[\w.-]+", name, re.ASCII)
    if not has_form or (database == "qdrant" and not re.match(r"https?://[^/]", place)):
        raise InputError(
            f"vector database: got {shorten(text)}; expected {FORMS.get(database) or ' or '.join(FORMS.values())} (the "
            "last name of letters, digits, _, - and .); fix: lancedb:runs/lance/documents, or "
            "qdrant:http://localhost:6333/documents"
        )
    return StoreAddress(database, place, name)


def connect(name: str) -> VectorStore:
    """Connect to a table or collection, which need not exist yet; raise InputError if the database cannot be used."""
    address = address_of(name)
    package = PACKAGES[address.database]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"{address}: got no package {package}; expected it for {address.database}; fix: pip install "
            f"'bixse[{address.database}]'"
        )
    module, _, kind = CLASSES[address.database].partition(":")
    store: VectorStore = getattr(import_module(module), kind)(address)
    return store


def open_stored(name: str | Path) -> IndexFiles | VectorStore:
    """Open the folder of an index, or a vector database with a complete one; raise InputError for anything else."""
    if not is_store(str(name)):
        return open_files(Path(name))
    store = connect(str(name))
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store


class Rescored:
    """An approximate search: `nearest` finds documents, and the embeddings in `files` give their scores."""

    def __init__(self, files: IndexFiles | VectorStore, nearest: Nearest) -> None:
        self.files, self.nearest = files, nearest

    def search(self, queries: npt.NDArray[np.float32], top: int) -> Answers:
        """Return most of the best documents of (Q, D) queries, and never fewer than exist."""
        top = min(top, self.files.manifest.documents)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = score_rows(queries, self.nearest(queries, top), self.files)
        unfilled = np.flatnonzero((rows < 0).any(axis=1))
        if len(unfilled):  # too few documents found: search these queries exactly
            scores[unfilled], rows[unfilled] = self.files.exact(queries[unfilled], top)
        return scores, rows


def score_rows(
    queries: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], files: IndexFiles | VectorStore
) -> Answers:
    """Return inner products of (Q, D) queries and the documents of (Q, k) rows, and the rows; the highest first."""
    embeddings = files.embeddings(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)  # -1 fills short rows
    scores = np.einsum("qd,qkd->qk", queries, embeddings)
    order = np.lexsort((rows, -scores), axis=1)  # ties by row, as in `exact_search`
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def manifest_of(address: StoreAddress, content: str | None) -> Manifest:
    """Read the manifest of a database; None stands for a missing one."""
    try:
        return Manifest.model_validate_json(content or "")
    except ValidationError as error:
        found = "no manifest" if content is None else f"one that is not valid ({first_fault(error)})"
        raise InputError(
            f"{address}: got {found}; expected what this version of `bixse index --to` writes; fix: another name, or "
            "delete it"
        ) from error


def nothing_there(address: StoreAddress) -> InputError:
    """Return the error for a table or collection that does not exist."""
    return InputError(
        f"{address}: got no such table or collection; expected one that `bixse index` wrote; fix: check the name, or "
        f"run `bixse index MODEL --collection DIR --to {address}`"
    )


def incomplete(address: StoreAddress, found: object, expected: object) -> InputError:
    """Return the error for missing documents."""
    return InputError(
        f"{address}: got {found}; expected {expected}; fix: run the same `bixse index ... --to {address}` again, which "
        "goes on where it stopped; if documents were deleted, delete the whole first"
    )
