"""Vector databases: their names, what bixse needs of them, and an index written into one."""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from contextlib import closing
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pydantic import ValidationError

from bixse.errors import InputError, OutputExistsError, first_fault, shorten
from bixse.files.files import alone_in
from bixse.scale.index.index_files import IndexFiles, Manifest, is_index, open_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bixse.data.collection import Document
    from bixse.progress import ProgressBars
    from bixse.search.search_collection import Found

FORMS = {"lancedb": "lancedb:PATH/TABLE", "qdrant": "qdrant:URL/COLLECTION"}
"""Database -> form of the name of a table or collection."""
PACKAGES = {"lancedb": "lancedb", "qdrant": "qdrant_client"}
CLASSES = {"lancedb": "bixse.scale.index.lance:LanceStore", "qdrant": "bixse.scale.index.qdrant:QdrantStore"}
"""Database -> its class, imported on first use."""
KEY = "bixse"
"""Name of the manifest in the metadata of a database."""
Answers: TypeAlias = "list[list[tuple[float, int, str, Document]]]"
"""Per query the score, row, id and text of documents."""


class StoreAddress(NamedTuple):
    """A table of LanceDB, or a collection of Qdrant."""

    database: str
    place: str
    """Folder or URL."""
    name: str

    def __str__(self) -> str:
        return f"{self.database}:{self.place}/{self.name}"


class VectorStore(ABC):
    """The documents of one index in a database; a row is the position of a document in the corpus, from 0.

    Methods raise InputError if the database does not answer.
    """

    address: StoreAddress
    exists: bool
    """True if there is a table or collection of this name."""
    together: int
    """Number of documents per write."""

    @property
    @abstractmethod
    def approximate(self) -> str:
        """Return the kind of approximate search; "" if every document is scored."""

    @abstractmethod
    def recorded(self) -> str | None:
        """Return the JSON of the manifest, or None for data that bixse did not write."""

    @abstractmethod
    def create(self, manifest: Manifest) -> None:
        """Make an empty table or collection."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: NDArray[np.float32]) -> None:
        """Write ids, documents and (n, D) embeddings of the rows from `start` on."""

    @abstractmethod
    def build(self) -> None:
        """Build the approximate index unless it exists."""

    @abstractmethod
    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        """Return the best documents of (Q, D) queries, in any order; an approximate search may find fewer."""

    def close(self) -> None:
        """Close the connection."""

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the index; an InputError if there is nothing, or data that bixse did not write."""
        if not self.exists:
            raise InputError(
                f"{self.address}: got no such table or collection; expected one that `bixse index` wrote; fix: check "
                f"the name, or run `bixse index MODEL --collection DIR --to {self.address}`"
            )
        content = self.recorded()
        try:
            return Manifest.model_validate_json(content or "")
        except ValidationError as error:
            found = "no manifest" if content is None else f"one that is not valid ({first_fault(error)})"
            raise InputError(
                f"{self.address}: got {found}; expected what this version of `bixse index --to` writes; fix: another "
                "name, or delete it"
            ) from error

    def search(
        self, queries: NDArray[np.float32], top: int, exact: bool = False, texts: bool = True
    ) -> list[list[Found]]:
        """Return most of the best documents of (Q, D) queries, highest first, and never fewer than exist."""
        top = min(top, self.manifest.documents)
        answers = self.best(queries, top, exact, texts)
        short = [number for number, line in enumerate(answers) if len(line) < top]
        if short and not exact:
            for number, line in zip(short, self.best(queries[short], top, True, texts), strict=True):
                answers[number] = line
        ordered = (sorted(line, key=lambda own: (-own[0], own[1])) for line in answers)
        return [[(name, score, document) for score, _, name, document in line] for line in ordered]

    def check(self) -> None:
        """Raise InputError unless the database holds all documents."""
        documents = self.manifest.documents
        if (found := self.count()) != documents:
            raise self.incomplete(f"{found} documents", f"{documents}")

    def incomplete(self, found: object, expected: object) -> InputError:
        """Return the error for missing documents."""
        return InputError(
            f"{self.address}: got {found}; expected {expected}; fix: run the same `bixse index ... --to {self.address}`"
            " again, which goes on where it stopped; if documents were deleted, delete the whole first"
        )


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


def export_index(index: str | Path, to: str, progress: ProgressBars | None = None) -> int:
    """Write embeddings, ids, titles and texts of an index into a vector database; return the number written now.

    Existing documents stay: a stopped export continues, and a finished one does nothing. `to` is
    "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION". InputError: the database cannot be used. OutputExistsError: the
    database holds something else.
    """
    folder = Path(index)
    with closing(open_files(folder)) as files, closing(connect(to)) as store, alone_in(folder):
        wanted = files.manifest
        if not store.exists:
            store.create(wanted)
        elif different := store.manifest.differences(wanted, {"corpus", "documents", "precision"}):
            raise OutputExistsError(
                f"{to}: got an index of {store.manifest.encoder.name!r} with another {' and '.join(different)}; "
                "expected one of the same corpus, encoder and settings; fix: choose another name, or delete it"
            )
        first = store.count()
        if first < wanted.documents:
            first -= first % store.together  # a killed write may be there in part
        step = progress(f"write to {to}", wanted.documents - first) if progress is not None else None
        for start in range(first, wanted.documents, store.together):
            stop = min(start + store.together, wanted.documents)
            store.write(start, files.documents(range(start, stop)), files.embeddings(start, stop))
            if step is not None:
                step(stop - start)
        store.check()
        store.build()
    return wanted.documents - first
