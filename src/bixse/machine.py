"""The machine of this process: cores, the cache folder, and numbers that a launcher set."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bixse.errors import InputError

CACHE_VARIABLE = "BIXSE_CACHE_DIR"
"""Environment variable that names the cache folder, or is `NO_CACHE`."""
NO_CACHE = "none"
EMBEDDINGS_FOLDER = "embeddings"
"""Folder of the cache for document embeddings, see `bixse.search.store`."""
KEPT_SUFFIXES = (".sqlite", ".sqlite-journal", ".safetensors")
"""Files of that folder; the last ones are of earlier versions."""


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched_number(name: str, least: int) -> int:
    """Return a whole number that a launcher (torchrun, accelerate launch) sets in the environment; else the least."""
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"{name}: got {text!r} in the environment; expected a whole number from {least} on, as torchrun sets it; "
            f"fix: unset {name}, or let a launcher set it"
        )
    return int(text)


def cache_folder(choice: str | Path | None = None) -> Path | None:
    """The cache folder, which need not exist; None where nothing is to be kept.

    `choice` is a folder or "none"; without it BIXSE_CACHE_DIR says the same, else it is the user's cache folder.
    """
    found = str(choice) if choice is not None else os.environ.get(CACHE_VARIABLE, "")
    if found == NO_CACHE:
        return None
    if found:
        return Path(found).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("bixse", appauthor=False)


def cached_files(folder: Path) -> list[Path]:
    """The files that bixse keeps in a cache folder; what else lies there is none of its business."""
    found = sorted((folder / EMBEDDINGS_FOLDER).glob("*"))
    return [path for path in found if path.is_file() and path.suffix in KEPT_SUFFIXES]


def clear_cache(folder: Path) -> int:
    """Delete the files that bixse keeps in a cache folder."""
    freed = 0
    for path in cached_files(folder):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            size = path.stat().st_size
            path.unlink()
            freed += size
    for empty in (folder / EMBEDDINGS_FOLDER, folder):
        with contextlib.suppress(OSError):
            empty.rmdir()
    return freed
