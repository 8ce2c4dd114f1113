"""`--overwrite NAME`: the folder of an earlier run makes room for a new one, and comes back if that is refused."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bixse.data.run import SPENT_FILE
from bixse.errors import IncompleteError, InputError, InterruptedRunError
from bixse.files.files import LOCK_FILE, alone_in, read_text, storage_errors
from bixse.files.run_folder import RUN_FILE

log = logging.getLogger(__name__)

WRITTEN = (
    ".json", ".jsonl", ".csv", ".tsv", ".trec", ".parquet", ".yaml", ".html", ".svg", ".py", ".npz", ".npy",
    ".safetensors", ".pt", ".pth", ".bin", ".model", ".onnx", ".data", ".xml", ".jinja", ".sqlite",
    ".complete", ".distcp",
)  # fmt: skip
"""Suffixes of the files that runs write."""
WRITTEN_NAMES = ("README.md", "findings.md", "vocab.txt", "merges.txt", "SHA256SUMS")
"""Further names of such files; tensorboard's and hidden files count too."""


@contextlib.contextmanager
def overwritten(folder: Path, name: str, inputs: Iterable[Path]) -> Iterator[None]:
    """Put the folder of a run, called by its `name`, aside; delete it once the new run is finished or interrupted.

    A refusal brings the old run back. After another error both runs are kept, and a warning names the old one.

    Raises:
        InputError: another name, no run of bixse, or a folder that holds an input, the home or the working folder,
            labels of people, paid answers, files of other programs or runs that its record does not name.
        OutputExistsError: a process writes to the folder.
    """
    whole = folder.resolve()
    if name != whole.name:
        raise InputError(
            f"--overwrite: got {name!r}; expected the name of the folder to delete, {whole.name!r}; fix: --overwrite "
            f"{whole.name}, or another --out"
        )
    if not folder.exists():
        yield
        return
    _check_deletable(folder, inputs)
    old = whole.with_name(f".{name}.{secrets.token_hex(4)}")
    with storage_errors(folder), contextlib.ExitStack() as locks:
        for lock in {folder / LOCK_FILE, *filter(_is_lock, folder.rglob("*lock"))}:
            locks.enter_context(alone_in(lock.parent, lock.name))
        folder.rename(old)
    try:
        yield
    except BaseException as error:
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not _is_lock(path)]
        is_refusal = isinstance(error, InputError) and not any(_cost(path, folder) for path in files)
        if is_refusal or not files:
            shutil.rmtree(folder, ignore_errors=True)
            old.rename(folder)
        elif isinstance(error, KeyboardInterrupt | InterruptedRunError | IncompleteError):
            shutil.rmtree(old)
        else:
            log.warning("%s: the new run failed; the earlier one is kept in %s", folder, old)
        raise
    shutil.rmtree(old)


def _check_deletable(folder: Path, inputs: Iterable[Path]) -> None:
    whole = folder.resolve()
    inside = [path for path in (*inputs, Path.home(), Path.cwd()) if whole in (path.resolve(), *path.resolve().parents)]
    content = _content(folder)
    is_run = "fingerprint" in content or {"encoder", "corpus"} <= content.keys()  # run.json of an index: its manifest
    if folder.is_symlink() or not is_run:
        fault = "a link" if folder.is_symlink() else "no run of bixse"
    elif inside:
        fault = f"a folder that holds {inside[0]}"
    else:  # of a run alone: this looks through the whole folder
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        costly = [f"a run with {path}, which people made or paid for" for path in files if _cost(path, folder)]
        others = [f"a folder with {path}, which the run did not write" for path in files if not _wrote(path, folder)]
        fault = next(iter(costly + others), "")
    if fault:
        raise InputError(
            f"{folder}: got {fault}; expected a run that can be deleted; fix: choose another --out, or move the files "
            "that you need and delete it"
        )


def _is_lock(path: Path) -> bool:
    """Return True for the files of `alone_in`; another program's lock is not opened, since that would empty it."""
    return path.name in ("lock", LOCK_FILE) or (path.name.startswith(".") and path.suffix == ".lock")


def _cost(path: Path, folder: Path) -> bool:
    """Return True for a file that cost people's time or money: labels, answers of a ledger, or what requests cost."""
    if path.name.endswith(SPENT_FILE) or any(part.startswith("ledger") for part in path.parts):
        return True
    if path.name.startswith("labels") and ".jsonl" in path.suffixes:
        return True
    if path.suffix != ".jsonl":
        return False
    with (folder / path).open(encoding="utf-8", errors="replace") as file:
        start = file.read(1000)
    return '"event":' in start and '"person":' in start  # labels under any name


def _wrote(path: Path, folder: Path) -> bool:
    """Return True for a file that the run in `folder` writes; a run inside it counts if the record names it."""
    if path.name == RUN_FILE and len(path.parts) > 1:
        outer, nested = _content(folder), _content(folder / path.parent)
        command, top = str(outer.get("command")).partition(" ")[0], path.parts[0]
        if command in ("sweep", "study", "quickstart"):
            return top == "runs" if command != "quickstart" else nested.get("command") == "train"
        suite = outer.get("config", {}).get("suite")
        is_named = top in outer.get("results", {}).get("folders", ()) or (
            suite is not None and suite == nested.get("config", {}).get("suite")
        )
        return command == nested.get("command") == "evaluate" and is_named
    is_hidden = any(part.startswith(".") and part != ".git" for part in path.parts)
    is_known = path.suffix in WRITTEN or path.name in WRITTEN_NAMES or path.name.startswith("events.out.tfevents")
    return is_hidden or is_known


def _content(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's run.json; empty if it is no JSON object."""
    try:
        content = json.loads(read_text(folder / RUN_FILE))
    except (InputError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
