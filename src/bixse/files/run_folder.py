"""The files that the folder of a run holds: its record, and what other commands take from it by the folder's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bixse.files.files import Use

RUN_FILE = "run.json"
PAIRS = ("pairs.parquet",)
HELD: Mapping[str, tuple[str, ...]] = {
    "model": ("model",),
    "system": ("model",),
    "index": ("model",),
    "training": (*PAIRS, "train.parquet"),
    "graded": PAIRS,
    "pairs": PAIRS,
    "judgements": ("judgements.parquet",),
    "queries": ("queries.jsonl",),
}
"""Use of a file -> its names in the folder of a run, the first that exists counts."""
PathType = TypeVar("PathType", str, Path)


def in_run(path: PathType, use: Use) -> PathType:
    """Return the file that the folder of a run holds for a use, such as its model; any other path as it is.

    Example:
        >>> in_run("demo", "model")
        'demo'
    """
    folder = Path(path)
    names = HELD.get(use, ()) if (folder / RUN_FILE).is_file() else ()
    return next((type(path)(folder / name) for name in names if (folder / name).exists()), path)
