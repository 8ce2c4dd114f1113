"""`run.json`: the record of a command with its settings and inputs, and the check that a run may continue."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from bixse.errors import LAST_VERSION, InputError, InterruptedRunError, OutputExistsError, shorten
from bixse.files.files import read_text, storage_errors, write_atomically
from bixse.files.run_folder import RUN_FILE

SPENT_FILE = "spent.jsonl"
"""The file of what requests have cost; a command that failed before it had a record may have written it."""
PACKAGES = ("bixse", "torch", "sentence-transformers", "transformers", "numpy", "bm25s")
T = TypeVar("T")
Status = Literal["running", "interrupted", "failed", "finished"]


@dataclass
class Run:
    """The record of a run in its output folder."""

    folder: Path
    command: str
    config: Mapping[str, Any]
    """All settings, defaults resolved."""
    inputs: Mapping[str, str]
    """Input name -> hash of its content."""
    paths: Collection[str] = ()
    """Settings left out of the comparison: `inputs` holds a hash of the file that each one names."""
    status: Status = "running"
    timings: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Stage -> seconds of wall time, with the time of interrupted calls."""
    results: dict[str, Any] = field(default_factory=dict)
    saved: str = ""
    """The finished part of the work, in words, for the message after Ctrl-C."""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def fingerprint(self) -> str:
        """The hash of command, settings and inputs: equal if a rerun would do the same."""
        content = json.dumps([self.command, _identity(self.config, self.inputs, self.paths)], sort_keys=True)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def result(self, kind: type[T], needed: Callable[[T], Iterable[str]]) -> T:
        """Return the results of a finished run with `reused` set; refuse them if `needed` files are missing."""
        try:
            result = TypeAdapter(kind).validate_python({**self.results, "reused": True})
            missing = [name for name in needed(result) if not (self.folder / name).is_file()]
        except ValidationError:
            missing = ["its results in run.json"]
        if missing:
            raise InputError(
                f"{self.folder}: got missing or damaged results, a finished run without {', '.join(missing)}; expected "
                f"the files that the run wrote; fix: delete the folder and run `bixse {self.command}` again"
            )
        return result

    @contextlib.contextmanager
    def ending(self, timing: str = "") -> Iterator[None]:
        """Save how the block ends: finished (or the status that it sets), interrupted by Ctrl-C, or failed.

        The seconds of the block count as `timing`. Ctrl-C becomes an InterruptedRunError that names what is `saved`.
        """
        started = time.perf_counter()
        ended: Status = "failed"
        try:
            yield
            ended = "finished" if self.status == "running" else self.status
        except (KeyboardInterrupt, InterruptedRunError) as error:
            ended = "interrupted"
            if isinstance(error, InterruptedRunError):  # of a run inside this one, such as training
                raise
            raise InterruptedRunError(
                f"stopped by Ctrl-C or SIGTERM: {self.saved} in {self.folder}; the same command continues from there"
            ) from error
        finally:
            if timing:
                self.timings[timing] += time.perf_counter() - started
            self.save(ended)

    def save(self, status: Status | None = None) -> None:
        """Write run.json, with a new status if given."""
        self.status = status or self.status
        content = {
            "command": self.command,
            "status": self.status,
            "started": self.started,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": self.fingerprint,
            "config": self.config,
            "inputs": self.inputs,
            "results": self.results,
            "timings": {name: round(seconds, 2) for name, seconds in self.timings.items()},
            "versions": _versions(),
        }
        write_atomically(self.folder / RUN_FILE, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def open_run(
    folder: Path, command: str, config: Mapping[str, Any], inputs: Mapping[str, str], paths: Collection[str] = ()
) -> Run:
    """Return the record of an output folder: new, to continue ("running") or "finished"; refuse that of another run.

    Nothing is written: call `save` once the inputs are checked, so that a refused command leaves no folder. 1
    and 1.0 are the same setting. The settings in `paths` are not compared: `inputs` holds the hashes of their files.
    """
    record = Run(folder, command, config, inputs, paths=paths)
    with storage_errors(folder):
        is_file = folder.exists() and not folder.is_dir()
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    visible = sorted(name for name in names if not (name.startswith(".") or name.endswith(SPENT_FILE)))
    if is_file or (visible and RUN_FILE not in visible):
        got = "a file" if is_file else f"files that are no run of bixse ({', '.join(visible[:3])})"
        raise OutputExistsError(f"{folder}: got {got}; expected a new or empty folder; fix: choose another --out")
    if not visible:
        return record
    earlier = read_record(folder / RUN_FILE)
    if changed := _changes(earlier, record):
        raise OutputExistsError(
            f"{folder}: got the folder of another run ({changed}); expected a new folder or the same settings; "
            f"fix: choose another --out, or delete this one with --overwrite {folder.resolve().name}"
        )
    record.started, record.results = earlier["started"], earlier["results"]
    record.timings.update(earlier["timings"])
    record.status = "finished" if earlier["status"] == "finished" else "running"
    return record


def read_record(path: Path) -> dict[str, Any]:
    """Return the content of a run.json; raises InputError if it is damaged."""
    kinds: dict[str, type] = dict.fromkeys(("fingerprint", "status", "started", "command"), str)
    kinds |= dict.fromkeys(("config", "inputs", "results", "timings"), dict)
    try:
        earlier = json.loads(read_text(path))
        faults = [key for key, kind in kinds.items() if not isinstance(earlier[key], kind)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        faults = [f"{type(error).__name__}: {error}"]
    if faults:
        raise InputError(
            f"{path}: got a damaged record ({', '.join(faults)}); expected the JSON that bixse wrote; "
            "fix: copy the run folder again, or choose another --out"
        )
    return dict(earlier)


REPORTED = ("quickstart", "grade", "train", "merge", "evaluate", "calibrate", "sweep", "study")
"""Commands whose run folders `bixse.report` reads."""


def finished_runs(path: Path) -> dict[Path, dict[str, Any]]:
    """Return folder -> record of a finished run; an evaluation of several systems has one folder for each.

    Raises InputError for any other path, and says what it is. A run of grading counts as soon as it has grades.
    """
    file, several = path / RUN_FILE, sorted(path.glob(f"*/{RUN_FILE}")) if (path / "results.json").is_file() else []
    if not file.is_file() and several:
        return {folder: record for each in several for folder, record in finished_runs(each.parent).items()}
    kinds = {path: "a file", path / "corpus.jsonl": "a collection", path / "modules.json": "a model"}
    fix = "name the --out folder of the run"
    if not file.is_file():
        got = next((kind for part, kind in kinds.items() if part.is_file()), "a folder without run.json")
        got = got if path.exists() else "nothing there"
        fix = f"name {path.parent}" if (path.parent / RUN_FILE).is_file() else fix
    else:
        record = read_record(file)
        command, status = record["command"].split(), record["status"]
        done = status == "finished" or "summary" in record["results"]
        if done and (names := record["results"].get("folders")):
            return {folder: each for name in names for folder, each in finished_runs(path / name).items()}
        if done and command[0] in REPORTED and (command[0] == "study" or len(command) == 1):
            return {path: record}
        got = f"a run of `bixse {record['command']}`" + (f" that is {status}" if not done else "")
        fix = "run the same command again, which continues it" if not done else fix
    raise InputError(f"{path}: got {got}; expected a finished run of {', '.join(REPORTED)}; fix: {fix}")


LEFT: Mapping[str, Any] = {
    "frozen_layers": None,
    "kind": "encoder",
    "max_distance": None,
    "negatives": None,
    "regrade": None,
    "unlabelled": "zero",
    "unlabelled_weight": 1.0,
}
"""Setting that an earlier version had -> the default it had. A record that holds the default is of the same run."""
TEN_WEIGHTS = [*(step / 10 for step in range(1, 10)), 1]
REPLACED: Mapping[str, Any] = {"merge.weights": TEN_WEIGHTS, "candidates": TEN_WEIGHTS}
"""Setting whose default is null now -> the default that earlier versions recorded: it is of the same run as null."""


def _changes(earlier: Mapping[str, Any], record: Run) -> str:
    if earlier["command"] != record.command:
        return f"`bixse {earlier['command']}`, now `bixse {record.command}`"
    before = _identity(earlier["config"], earlier["inputs"], record.paths)
    now = _identity(record.config, record.inputs, record.paths)
    (old, new), (read_before, read_now) = ((before[part], now[part]) for part in ("config", "inputs"))
    left = {name: part for name in old.keys() - new.keys() for part in name.split(".") if part in LEFT}
    old = {name: value for name, value in old.items() if name not in left or value != LEFT[left[name]]}
    for name in new.keys() & old.keys():
        if new[name] is None and any(name.endswith(part) and old[name] == REPLACED[part] for part in REPLACED):
            old[name] = None
    words = [
        f"{name} (was {_shown(old, name)}, "
        + (f"which bixse {LAST_VERSION} alone has" if name in left else f"now {_shown(new, name)}")
        + ")"
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]
    words += [
        f"{name} ({'its content' if name in read_before and name in read_now else 'read by only one of the two runs'})"
        for name in sorted({**read_before, **read_now})
        if read_before.get(name) != read_now.get(name)
    ]
    return f"changed: {', '.join(words)}" if words else ""


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return shorten(settings[name]) if name in settings else "not set"


def _identity(config: Mapping[str, Any], inputs: Mapping[str, str], paths: Collection[str]) -> dict[str, Any]:
    counted = {name: value for name, value in config.items() if name not in paths}
    return {"config": _flat(_plain(counted, integers=True)), "inputs": dict(inputs)}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= {f"{name}.{inner}": entry for inner, entry in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def _plain(value: Any, integers: bool = False) -> Any:
    """Return a value as JSON can hold it: null for NaN and infinity, text for a path; `integers` writes 1.0 as 1."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry, integers) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, integers) for entry in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if integers and value.is_integer() else float(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)


@cache  # a record is written several times per run
def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
