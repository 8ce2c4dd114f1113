"""`QuickstartConfig`: the few things that a quick start can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bixse.errors import SEEDS
from bixse.settings import Flag, Settings


class QuickstartConfig(Settings):
    """Settings of `bixse quickstart`; also the keys of its YAML file."""

    fast: bool = False
    """A smaller run for a quick look."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Of training."""
    cache: Annotated[str | None, Flag(metavar="DIR")] = None
    """Folder for document embeddings, so that a corpus is encoded once a model; "none" keeps nothing. Null:
    BIXSE_CACHE_DIR, else the user's cache folder, see `bixse doctor`."""
