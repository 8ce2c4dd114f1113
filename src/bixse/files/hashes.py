"""Hashes of the files of a folder, kept beside them: a bit that was flipped since is noticed when they are read."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from bixse.files.files import file_hash, storage_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HASHES_FILE = "SHA256SUMS"
"""Name of the file inside the folder; `sha256sum -c SHA256SUMS` reads it too."""
FOR_PEOPLE = (".md",)
"""Suffixes of pages that people edit and no program reads: they have no hash."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files below a folder: the last step of writing it."""
    with storage_errors(folder):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        hashes = {
            path.relative_to(folder).as_posix(): file_hash(path)
            for path in files
            if path.suffix not in FOR_PEOPLE and path != folder / HASHES_FILE
        }
    _save(folder, hashes)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has hashes, in words; None where nothing is, or the folder has none.

    Files that were added since are not looked at.
    """
    try:
        hashes = _load(folder)
        for name, expected in (hashes or {}).items():
            if not (folder / name).is_file():
                return f"no {name}"
            if file_hash(folder / name) != expected:
                return f"{name} with other bytes than were written"
    except (OSError, ValueError) as error:
        return f"a file that cannot be read ({error})"
    return None


def write_with_hash(path: Path, content: str, folder: Path | None = None) -> None:
    """Replace a file as `write_atomically` does, and its hash where `folder` (default: the file's own) has hashes.

    Stopped between the two, the file has no hash, and the folder is still read.
    """
    folder = folder or path.parent
    name = path.relative_to(folder).as_posix()
    try:
        hashes = _load(folder)
    except (OSError, ValueError):
        hashes = None  # damaged: whoever reads the folder says so
    if hashes is None:
        write_atomically(path, content)
        return
    if hashes.pop(name, None) is not None:
        _save(folder, hashes)
    write_atomically(path, content)
    _save(folder, {**hashes, name: file_hash(path)})


def drop_hashes(folder: Path) -> None:
    """Delete the hashes of a folder: before its files are replaced."""
    with storage_errors(folder):
        (folder / HASHES_FILE).unlink(missing_ok=True)


def _save(folder: Path, hashes: Mapping[str, str]) -> None:
    write_atomically(folder / HASHES_FILE, "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)))


def _load(folder: Path) -> dict[str, str] | None:
    path = folder / HASHES_FILE
    if not path.is_file():
        return None
    hashes = {}
    for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        found = _LINE.fullmatch(line)
        if found is None or not _is_inside(found[2]):
            raise ValueError(f"{HASHES_FILE}: no hash and path inside the folder in a line")
        hashes[found[2]] = found[1]
    return hashes


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
