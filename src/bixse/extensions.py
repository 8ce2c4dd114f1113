"""Objects of rooms below that are asked for by name and never imported: an index as a system, the report."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

EXTENSIONS = {"index": "bixse.index.search:open_index_system", "report": "bixse.reporting:report"}
"""Name -> module and object. A room above must not import it at the top: `extension` does on first use."""


def extension(name: str) -> Any:
    """Return the object of `EXTENSIONS` under a name."""
    return resolve_name(EXTENSIONS[name])
