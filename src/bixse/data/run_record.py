"""`run.json`: what a command did, with which settings and inputs, and whether it may go on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from bixse.data.files import read_text, write_atomically
from bixse.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUN_FILE = "run.json"
"""Name of the record in an output folder."""
PACKAGES = ("bixse", "torch", "sentence-transformers", "transformers", "numpy", "bm25s")
"""Packages whose versions are recorded."""

Status = Literal["running", "interrupted", "failed", "finished"]


@dataclass
class RunRecord:
    """The record of one run in its output folder."""

    folder: Path
    """The output folder."""
    command: str
    """The verb: train, evaluate, ..."""
    config: Mapping[str, Any]
    """Every setting, defaults resolved."""
    inputs: Mapping[str, str]
    """Input name -> hash of its content."""
    status: Status = "running"
    """How far it came."""
    timings: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds of wall time."""
    results: dict[str, Any] = field(default_factory=dict)
    """Figures and paths the command reports."""
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    """UTC time of the first start."""

    @property
    def fingerprint(self) -> str:
        """Hash of command, settings and inputs: equal when a rerun would do the same."""
        content = json.dumps([self.command, self.config, self.inputs], sort_keys=True, default=str)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def save(self, status: Status | None = None) -> None:
        """Write run.json, with a new status when given.

        Raises:
            StorageError: the folder cannot be written.
        """
        self.status = status or self.status
        write_atomically(
            self.folder / RUN_FILE,
            json.dumps(
                {
                    "command": self.command,
                    "status": self.status,
                    "started": self.started,
                    "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    "fingerprint": self.fingerprint,
                    "config": self.config,
                    "inputs": self.inputs,
                    "results": self.results,
                    "timings": {name: round(seconds, 2) for name, seconds in self.timings.items()},
                    "versions": _versions(),
                },
                indent=2,
                default=str,
            )
            + "\n",
        )


def open_run(folder: Path, command: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> RunRecord:
    """Claim an output folder: new, to continue, or finished already; never another run's.

    Returns:
        A record whose status is "running" (new or to continue) or "finished" (the same run is done; reuse it).

    Raises:
        OutputExistsError: the folder holds another run, or files that no run left there.
        InputError: run.json is damaged.
    """
    record = RunRecord(folder, command, config, inputs)
    path = folder / RUN_FILE
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found = "files that are no run of bixse" if folder.is_dir() else "a file"
            raise OutputExistsError(
                f"{folder}: got {found}; expected a new or empty folder; to mend: choose another --out"
            )
        record.save()
        return record
    try:
        earlier = json.loads(read_text(path))
        same, status = earlier["fingerprint"] == record.fingerprint, earlier["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: got a damaged record; expected JSON; to mend: choose another --out") from error
    if not same:
        changed = _changes(earlier, record)
        raise OutputExistsError(
            f"{folder}: got the folder of another run ({changed}); expected a new folder or the same settings; "
            "to mend: choose another --out, or delete the folder"
        )
    record.started = earlier.get("started", record.started)
    record.results = earlier.get("results", {})
    record.timings = earlier.get("timings", {})
    if status == "finished":
        record.status = "finished"
    else:
        record.save("running")
    return record


def _changes(earlier: Mapping[str, Any], record: RunRecord) -> str:
    """What differs between two runs, in words."""
    if earlier.get("command") != record.command:
        return f"`bixse {earlier.get('command')}`, now `bixse {record.command}`"
    now = json.loads(json.dumps({"config": record.config, "inputs": record.inputs}, default=str))
    names = [
        name
        for part in ("config", "inputs")
        for name in sorted({*earlier.get(part, {}), *now[part]})
        if earlier.get(part, {}).get(name) != now[part].get(name)
    ]
    return f"changed: {', '.join(names)}" if names else "changed settings"


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
