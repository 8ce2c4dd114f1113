"""`extract_documents`: the docstrings of this Python's standard library, read in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from bixse.data.collection import Document
from bixse.errors import BixseError, StorageError

SCRIPT = Path(__file__).with_name("_introspect.py")
"""The stand-alone script that does the reading."""
WITHHELD_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Environment variables the reading process does not see, beside all that start with PYTHON."""


def extract_documents(cache: Path | None = None, timeout_seconds: float = 60.0) -> dict[str, Document]:
    """Read the documents of the Python that runs this.

    A child process imports every public standard module with nothing to read from, nowhere to print, no display and
    a temporary working folder; a guard inside it refuses connections, new processes and changes to files. The result
    depends on the Python version and the modules it was built with, not on hash seed, machine or time.
    It takes about a second.

    Args:
        cache: file to keep the result in; one written by another Python or another bixse is replaced.
        timeout_seconds: how long the child may take.

    Returns:
        Id -> document, sorted by id (about 4,500).

    Raises:
        BixseError: if the child cannot be started, fails or takes too long.
        StorageError: if the cache cannot be written.

    Example:
        >>> documents = extract_documents()
        >>> documents["bisect.insort"].text.split(", ")[0]
        'Insert item x in list a'
    """
    stamp = f"{platform.python_implementation()} {sys.version} {hashlib.sha256(SCRIPT.read_bytes()).hexdigest()}"
    documents = read_cache(cache, stamp) if cache is not None else None
    if documents is None:
        documents = run_script(timeout_seconds)
        if cache is not None:
            write_cache(cache, stamp, documents)
    return {identifier: Document(title, text) for identifier, (title, text) in documents.items()}


def run_script(timeout_seconds: float) -> dict[str, list[str]]:
    """Id -> [title, text] as written by the child process; raises BixseError when there is no usable answer."""
    with tempfile.TemporaryDirectory(prefix="bixse-pydocs-") as folder:
        output = Path(folder) / "documents.json"
        # -I: no user site, no PYTHON variables; -S: no .pth files; -B: no .pyc files.
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(SCRIPT), str(output)]
        try:
            child = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=child_environment(folder),
                timeout=timeout_seconds,
            )
        except subprocess.TimeoutExpired:
            raise failure(f"no answer after {timeout_seconds:g} s", "try again on a less busy machine") from None
        except OSError as error:
            raise failure(f"{sys.executable!r} does not start ({error})", "run bixse with a regular Python") from error
        if child.returncode != 0:
            last_line = child.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise failure(f"exit status {child.returncode} ({last_line})", "reinstall Python's standard library")
        try:
            documents: dict[str, list[str]] = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise failure(f"an unreadable answer ({error})", "free space in the temporary folder") from error
    if not documents:
        raise failure("no documents", "use a Python that keeps its docstrings")
    return documents


def child_environment(home: str) -> dict[str, str]:
    """This process's environment without display, browser and Python settings, with a home folder that is empty."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in WITHHELD_VARIABLES and not name.startswith("PYTHON")
    }
    return kept | {"HOME": home, "USERPROFILE": home}


def failure(found: str, fix: str) -> BixseError:
    """The error for a child process that gave no documents."""
    return BixseError(
        f"reading the documentation of Python {platform.python_version()}: got {found}; "
        f"expected its docstrings; fix: {fix}, or give a collection of your own"
    )


def read_cache(path: Path, stamp: str) -> dict[str, list[str]] | None:
    """The documents kept in `path`, or None when it is missing, damaged or written under another stamp."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        documents: dict[str, list[str]] = kept["documents"]
        usable = kept["stamp"] == stamp and all(len(document) == 2 for document in documents.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return documents if usable else None


def write_cache(path: Path, stamp: str, documents: dict[str, list[str]]) -> None:
    """Keep the documents in `path`, written beside it and moved into place; raises StorageError."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"stamp": stamp, "documents": documents}), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(
            f"{path}: got {error}; expected a file that can be written; fix: choose another place or free space"
        ) from error
