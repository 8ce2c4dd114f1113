"""The extensions of the core, imported by name: indexes as systems, regrading, sharded training."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTENSIONS = {
    "index": "bixse.scale.index.index_system:open_index_system",
    "regrade": "bixse.judging.regrade:Regrading",
    "sharding": "bixse.scale.sharding:ShardedTrainer",
}  # names: the core must not import modules that build on it


def extension(name: str) -> Any:
    """Import and return an extension."""
    module, _, attribute = EXTENSIONS[name].partition(":")
    return getattr(import_module(module), attribute)
