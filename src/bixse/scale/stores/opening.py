"""Connecting to a vector database; its package is imported only then."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from bixse.errors import InputError
from bixse.scale.stores.vector_store import PACKAGES, address_of

if TYPE_CHECKING:
    from bixse.scale.stores.vector_store import VectorStore


def connect(name: str) -> VectorStore:
    """A table or collection, which need not exist yet; raises InputError where its database cannot be used."""
    address = address_of(name)
    if importlib.util.find_spec(PACKAGES[address.database]) is None:
        raise InputError(
            f"{address}: got no package {PACKAGES[address.database]}; expected it for {address.database}; "
            f"fix: pip install 'bixse[{address.database}]'"
        )
    if address.database == "lancedb":
        from bixse.scale.stores.lance import LanceStore

        return LanceStore(address)
    from bixse.scale.stores.qdrant import QdrantStore

    return QdrantStore(address)


def open_store(name: str) -> VectorStore:
    """A table or collection that holds a whole index; raises InputError for anything else."""
    store = connect(name)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store
