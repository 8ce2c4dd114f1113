"""What bixse asks of a vector database, and how one is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydantic import ValidationError

from bixse.errors import InputError, first_fault, shorten
from bixse.scale.index.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from bixse.data.collection import Document
    from bixse.scale.index.manifest import AnnSettings

FORMS = {"lancedb": "lancedb:PATH/TABLE", "qdrant": "qdrant:URL/COLLECTION"}
"""Database -> how a table or collection of it is named."""
PACKAGES = {"lancedb": "lancedb", "qdrant": "qdrant_client"}
"""Database -> the module that talks to it."""
KEY = "bixse"
"""Under this name the manifest is kept with the embeddings."""


class StoreAddress(NamedTuple):
    """A table of LanceDB, or a collection of Qdrant."""

    database: str
    place: str
    """Folder or URL."""
    name: str

    def __str__(self) -> str:
        return f"{self.database}:{self.place}/{self.name}"


class VectorStore(Protocol):
    """The documents of one index in a database; a row is a document's place in the corpus, from 0.

    Methods raise InputError where the database gives no answer, or lacks a row that it once had.
    """

    address: StoreAddress
    together: int
    """Documents that are written at once."""

    @property
    def manifest(self) -> Manifest:
        """Of what is here; raises InputError where there is nothing, or something that bixse did not write."""
        ...

    def exists(self) -> bool: ...

    def create(self, manifest: Manifest) -> None: ...

    def keep(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        ...

    def written(self) -> int:
        """Documents from the first on that are all here: where a killed export goes on."""
        ...

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: npt.NDArray[np.float32]) -> None:
        """Write the ids, documents and (n, D) embeddings of the rows from `start` on, which is what `written` gave."""
        ...

    def build(self) -> AnnSettings | None:
        """Build the approximate index unless it is there; None where every document is scored."""
        ...

    def nearest(self, queries: npt.NDArray[np.float32], top: int) -> npt.NDArray[np.int64]:
        """Rows (Q, k) of most of the best documents of (Q, D) queries in any order; -1 where fewer were found."""
        ...

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and rows, each (Q, k), of the best documents of (Q, D) queries, as `exact_search`."""
        ...

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]: ...

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Ids and documents of the rows, in their order."""
        ...

    def ids(self, rows: Sequence[int]) -> list[str]: ...

    def check(self) -> None:
        """Raise InputError unless all documents are here."""
        ...

    def close(self) -> None: ...


def is_store(text: str) -> bool:
    """Whether a text names a vector database.

    Example:
        >>> is_store("lancedb:runs/lance/documents"), is_store("runs/index")
        (True, False)
    """
    return text.partition(":")[0] in FORMS and ":" in text


def address_of(text: str) -> StoreAddress:
    """The parts of a name; raises InputError for one of another form.

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


def manifest_of(address: StoreAddress, content: str | None) -> Manifest:
    """Read the manifest kept in a database; None: there is none."""
    try:
        return Manifest.model_validate_json(content or "")
    except ValidationError as error:
        found = "no manifest" if content is None else f"one that is not valid ({first_fault(error)})"
        raise InputError(
            f"{address}: got {found}; expected what this version of `bixse index --to` writes; fix: another name, or "
            "delete it"
        ) from error


def nothing_there(address: StoreAddress) -> InputError:
    """The error for a table or collection that does not exist."""
    return InputError(
        f"{address}: got no such table or collection; expected one that `bixse index` wrote; fix: check the name, or "
        f"run `bixse index MODEL --collection DIR --to {address}`"
    )


def incomplete(address: StoreAddress, found: object, expected: object) -> InputError:
    """The error for documents that are missing."""
    return InputError(
        f"{address}: got {found}; expected {expected}; fix: run the same `bixse index ... --to {address}` again, which "
        "goes on where it stopped; if documents were deleted, delete the whole first"
    )
