"""The satellites that the core asks for by name and never imports: an index as a system."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

EXTENSIONS = {"index": "bixse.index.search:open_index_system"}
"""Name -> module and object of a satellite. The core must not import it at the top: `extension` does on first use."""


def extension(name: str) -> Any:
    """Return the object of `EXTENSIONS` under a name."""
    return resolve_name(EXTENSIONS[name])
