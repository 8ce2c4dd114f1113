"""The page of a training run: its curves, from a log that may still grow."""

from __future__ import annotations

import json
import math
import shlex
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.run import RUN_FILE
from bixse.errors import InputError
from bixse.training.config import LOG_FILE, REGRADE_FOLDER
from bixse.ui.workspace import Page, read_record

if TYPE_CHECKING:
    from bixse.report.plots import Plot
    from bixse.report.schema import MergeCurve, TrainingCurve
    from bixse.ui.workspace import Visit, Workspace

LONGEST_CURVE = 1000
"""Maximum number of points of a curve, as a long log is drawn again for every new line; plots thin it further."""
PANELS = {
    "loss": ("Training loss", "loss"),
    "dev": ("nDCG@10", "eval_dev_ndcg@10"),
    "bias": ("Logit bias", "logit_bias"),
    "logits": ("Mean logit", "mean_logit_relevant"),
    "merge": ("Dev and guard", ""),
}
"""Name of a plot -> start of its title, and the log field that it needs."""
FIGURES = {
    "loss": "loss",
    "logit bias (beta)": "logit_bias",
    "logit scale (alpha)": "logit_scale",
    "mean target": "mean_target",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
    "pairs per second": "train_pairs_per_second",
}


class TrainRun:
    """A run folder of `bixse train`; each look reads the lines added since the last look."""

    def __init__(self, workspace: Workspace) -> None:
        self.folder, self.name = workspace.run, workspace.run.resolve().name
        self._begin()
        self._lock = threading.Lock()
        self._drawn: tuple[str, dict[str, Plot]] = ("", {})

    def _begin(self) -> None:
        self.last: dict[str, Any] = {}
        """Field -> newest value."""
        self.logged: dict[str, list[tuple[int, float]]] = {}
        """Field -> steps and finite values, in the order of the log."""
        self._read = 0

    @property
    def version(self) -> str:
        """A text that changes with the log and the record."""
        paths = (self.folder / LOG_FILE, self.folder / RUN_FILE)
        return "-".join(f"{(now := path.stat()).st_size}.{now.st_mtime_ns}" for path in paths if path.is_file())

    def look(self) -> None:
        """Read the log; a line counts once it is complete, and a damaged line never counts."""
        path = self.folder / LOG_FILE
        with self._lock:
            size = path.stat().st_size if path.is_file() else 0
            if size < self._read:  # the run was restarted
                self._begin()
            if size == self._read:
                return
            with path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if line.endswith(b"\n"):
                        self._read += len(line)
                        self._take(_entry(line))

    def _take(self, entry: dict[str, Any]) -> None:
        if not isinstance(entry.get("step"), int):
            return
        for name, value in entry.items():
            if value is not None:
                self.last[name] = value
            if isinstance(value, int | float) and math.isfinite(value):
                self.logged.setdefault(name, []).append((entry["step"], value))

    @property
    def record(self) -> dict[str, Any]:
        """The content of run.json; empty if the file is missing or damaged."""
        try:
            return read_record(self.folder)
        except InputError:
            return {}

    def curve(self) -> TrainingCurve:
        """The log as a curve; a long log is thinned by means of neighbours."""
        from bixse.report.schema import training_curve

        self.look()
        entries = []
        for name, logged in list(self.logged.items()):
            points = np.array(logged, dtype=np.float64)
            if len(points) > LONGEST_CURVE:
                points = np.array([part.mean(axis=0) for part in np.array_split(points, LONGEST_CURVE)])
            entries += [{"step": round(step), name: value} for step, value in points.tolist()]
        return training_curve(self.name, entries, (self.record.get("results") or {}).get("best_step"))

    def merge_curve(self) -> MergeCurve | None:
        """The scores of the tried merge weights; None if the model was not merged."""
        from bixse.report.schema import MergeCurve

        merged = (self.record.get("results") or {}).get("merge")
        if not merged or not merged["points"]:
            return None
        guards = sorted({change["collection"] for change in merged["changes"] if change["role"] == "guard"})
        return MergeCurve(system=self.name, weight=merged["weight"], points=merged["points"], guards=guards)

    def regraded(self) -> list[dict[str, Any]]:
        """The results of regrading after each epoch so far."""
        found = [_entry(path.read_bytes()) for path in (self.folder / REGRADE_FOLDER).glob("epoch-*.json")]
        return sorted((entry for entry in found if "epoch" in entry), key=lambda entry: entry["epoch"])

    def plots(self) -> dict[str, Plot]:
        """Title -> plot, drawn once per state of the files; call it in one thread at a time, as matplotlib requires."""
        from bixse.report.plots import merge_plot, training_plots

        version = self.version
        if version != self._drawn[0]:
            drawn = training_plots([self.curve()])
            merge = self.merge_curve()
            if merge is not None:
                drawn["Dev and guard against the weight of the tuned model"] = merge_plot(merge)
            self._drawn = (version, drawn)
        return self._drawn[1]


def _entry(line: bytes) -> dict[str, Any]:
    """Parse a line or a file; a damaged one is empty."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def training(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The current state of the run's files."""
    run = workspace.once(TrainRun)
    run.look()
    record, last = run.record, run.last
    results, status = record.get("results") or {}, record.get("status", "running")
    optimizer = (record.get("config") or {}).get("optimizer") or {}
    epochs, steps = optimizer.get("epochs"), optimizer.get("steps")
    return {
        "status": status,
        "is_live": status == "running",
        "version": run.version,
        "step": last.get("step", 0),
        "share": last.get("step", 0) / steps if steps else (last.get("epoch", 0.0) / epochs if epochs else None),
        "figures": {title: last[field] for title, field in FIGURES.items() if field in last},
        "panels": {
            name: title
            for name, (title, field) in PANELS.items()
            if field in last or (name == "merge" and run.merge_curve())
        },
        "dev": run.logged.get("eval_dev_ndcg@10", []),
        "best": results.get("best_step"),
        "merged": results.get("merge"),
        "regraded": run.regraded(),
        "command": shlex.join(["tail", "-f", str(workspace.run / LOG_FILE)]),
    }


def _panel(name: str, workspace: Workspace, visit: Visit) -> str | None:
    plots = workspace.once(TrainRun).plots()
    return next((plot.svg for title, plot in plots.items() if title.startswith(PANELS[name][0])), None)


def _is_training(workspace: Workspace) -> bool:
    return (workspace.run / LOG_FILE).is_file()


PICTURES = {name: partial(_panel, name) for name in PANELS}
PAGES = (Page("training", "Training", training, _is_training, parts={"now": training}, pictures=PICTURES),)
