"""Settings of `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bixse.settings import Flag, Settings


class GenerateConfig(Settings):
    """What queries are written for, and how many."""

    corpus: Annotated[Path, Flag(metavar="FILE")]
    """JSONL file of documents: {_id, title, text}."""
    documents: int | None = Field(default=None, ge=1)
    """Write for N documents drawn by the seed (default: all)."""
    per_document: int = Field(default=1, ge=1)
    """Queries per document."""
    document_characters: int = Field(default=4000, ge=1)
    """Show the model the first N characters of a document."""
    task: str | None = None
    """Name of the task, written beside every pair."""
    seed: int = 0
    """Of the choice of documents."""
