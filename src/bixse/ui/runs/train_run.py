"""`TrainRun`: the log of a training run as it grows, and what run.json says when it ends."""

from __future__ import annotations

import json
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.run import RUN_FILE
from bixse.errors import InputError
from bixse.report.schema import MergeCurve, MergeScore
from bixse.report.training_log import training_curve
from bixse.training.config import LOG_FILE, REGRADE_FOLDER
from bixse.ui.runs.run_list import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.report.plots import Plot
    from bixse.report.schema import TrainingCurve

LONGEST_CURVE = 1000
"""Points of a curve; a plot of them is thinned further."""


class TrainRun:
    """A run folder of `bixse train`; each look reads what was added since the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()
        self._lock = threading.Lock()
        self._drawn: tuple[str, dict[str, Plot]] = ("", {})

    def _begin(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        """Field -> its newest value."""
        self.logged: dict[str, tuple[list[int], list[float]]] = {}
        """Field -> steps and finite values, in the order of the log."""
        self._read = 0

    @property
    def version(self) -> str:
        """Changes with the files."""
        paths = (self.folder / LOG_FILE, self.folder / RUN_FILE)
        found = [path.stat() for path in paths if path.is_file()]
        return "-".join(f"{one.st_size}.{one.st_mtime_ns}" for one in found)

    def look(self) -> list[dict[str, Any]]:
        """All entries so far; a line that is being written counts when it is whole, a damaged one never."""
        path = self.folder / LOG_FILE
        with self._lock:
            size = path.stat().st_size if path.is_file() else 0
            if size < self._read:  # begun anew
                self._begin()
            if size > self._read:
                with path.open("rb") as file:
                    file.seek(self._read)
                    new = file.read()
                whole = new.rfind(b"\n") + 1
                self._read += whole
                found = filter(None, map(_entry, new[:whole].splitlines()))
                added = [entry for entry in found if isinstance(entry.get("step"), int)]
                self.entries = [*self.entries, *added]
                for entry in added:
                    self.last.update((name, value) for name, value in entry.items() if value is not None)
                    for name, value in entry.items():
                        if isinstance(value, int | float) and math.isfinite(value):
                            steps, values = self.logged.setdefault(name, ([], []))
                            steps.append(entry["step"])
                            values.append(value)
            return self.entries

    @property
    def record(self) -> dict[str, Any]:
        """run.json; nothing where it is not there or not readable."""
        try:
            return read_record(self.folder)
        except InputError:
            return {}

    def curve(self) -> TrainingCurve:
        """The log, thinned where it is long: a curve is drawn anew whenever a line comes."""
        self.look()
        best = (self.record.get("results") or {}).get("best_step")
        thin = [
            {"step": step, name: value} for name, own in list(self.logged.items()) for step, value in _thinned(*own)
        ]
        return training_curve(self.folder.resolve().name, thin, best)

    def merged(self) -> dict[str, Any] | None:
        """What was scored when the weights were merged."""
        found: dict[str, Any] | None = (self.record.get("results") or {}).get("merge")
        return found

    def merge_curve(self) -> MergeCurve | None:
        merged = self.merged()
        if not merged or not merged["points"]:
            return None
        return MergeCurve(
            system=self.folder.resolve().name,
            weight=merged["weight"],
            points=[MergeScore(**point) for point in merged["points"]],
            guards=sorted({change["collection"] for change in merged["changes"] if change["role"] == "guard"}),
        )

    def regraded(self) -> list[dict[str, Any]]:
        """What came of the questions after each epoch so far."""
        files = (self.folder / REGRADE_FOLDER).glob("epoch-*.json")
        found = [entry for path in files if (entry := _entry(path.read_bytes())) is not None]
        return sorted(found, key=lambda entry: entry.get("epoch", 0))

    def plots(self) -> dict[str, Plot]:
        """Title -> plot, drawn once for each state of the files; matplotlib is for one thread at a time."""
        from bixse.report.plots import merge_plot, training_plots

        version = self.version
        if version != self._drawn[0]:
            drawn = training_plots([self.curve()])
            merge = self.merge_curve()
            if merge is not None:
                drawn["Dev and guard against the weight of the tuned model"] = merge_plot(merge)
            self._drawn = (version, drawn)
        return self._drawn[1]


def _thinned(steps: list[int], values: list[float]) -> Iterator[tuple[int, float]]:
    """At most LONGEST_CURVE points, by means of neighbours."""
    if len(steps) <= LONGEST_CURVE:
        yield from zip(steps, values, strict=False)  # another thread may be adding to them
        return
    count = len(values)
    edges = np.linspace(0, count, LONGEST_CURVE + 1).astype(int)
    sums = (np.add.reduceat(np.array(own[:count], dtype=np.float64), edges[:-1]) for own in (steps, values))
    at, mean = (own / np.diff(edges) for own in sums)
    yield from zip(at.round().astype(int).tolist(), mean.tolist(), strict=True)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("step" in found or "epoch" in found) else None
