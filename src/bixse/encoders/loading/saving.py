"""Saving a model folder: whole or not there, with the hashes of its files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bixse.data.io.files import write_atomically
from bixse.data.io.hashes import write_hashes

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer


def save_whole(model: SentenceTransformer, folder: Path, card: str = "") -> None:
    """Write a model and its hashes beside its place, then rename it; what was there is replaced.

    Args:
        model: the encoder.
        folder: its place.
        card: a section (Markdown) for the end of its model card.

    Raises:
        OSError: as the operating system says; see `bixse.data.io.files.storage_errors`.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(part))
    if card:
        path = part / "README.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        write_atomically(path, f"{text.rstrip()}\n\n{card}".lstrip())
    write_hashes(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
