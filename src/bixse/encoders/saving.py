"""Saving a model folder: whole or not there, with the hashes of its files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bixse.data.hashes import write_hashes

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer


def save_whole(model: SentenceTransformer, folder: Path) -> None:
    """Write a model and its hashes beside its place, then rename it; what was there is replaced.

    Raises:
        OSError: as the operating system says; see `bixse.data.files.storage_errors`.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(part))
    write_hashes(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
