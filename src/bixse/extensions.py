"""The satellites that the core asks for by name and never imports: indexes as systems, regrading, sharded training."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTENSIONS = {
    "index": "bixse.scale.index.index_system:open_index_system",
    "regrade": "bixse.judging.regrade:Regrading",
    "sharding": "bixse.scale.sharding:ShardedTrainer",
}
"""Name -> module and object of a satellite; it is imported where it is asked for."""


def extension(name: str) -> Any:
    """Return the object of `EXTENSIONS` under a name."""
    module, _, attribute = EXTENSIONS[name].partition(":")
    return getattr(import_module(module), attribute)
