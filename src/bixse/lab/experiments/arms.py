"""An experiment's arms and runs, as data: what varies, with which seed, and the result that each run leaves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bixse.training.config import TrainConfig

ArmLabels: TypeAlias = Mapping[str, Any]
"""What distinguishes the arms of an experiment: label -> value."""
Measure: TypeAlias = "Callable[[ArmRun, Any, Path], Measured]"
"""Does a run, a function of a module: (the run, what all runs read, the run's own folder) -> its figures."""
RunStatus: TypeAlias = Literal["finished", "diverged", "failed", "interrupted"]
"""`diverged` would only diverge again and stands; `failed` and `interrupted` are taken up again by the next call."""
PATHS = ("model", *TrainConfig.path_settings())
"""Settings of training that say where an input lies."""
NAME_LENGTH = 80
"""Characters of an arm's folder at most."""


@dataclass(frozen=True)
class Arm:
    """One way to train or to measure, which is run with every seed.

    Example:
        >>> arm = Arm({"loss": "bixse", "optimizer.learning_rate": 1e-4}, train={"loss": "bixse"})
        >>> arm.label, arm.folder, arm.trained
        ('loss=bixse, learning_rate=0.0001', 'loss=bixse,learning_rate=0.0001', True)
    """

    labels: ArmLabels
    """What it is called in tables and plots."""
    train: Mapping[str, Any] | None = None
    """Settings of `TrainConfig` on top of those that all arms share; None: nothing is trained, seeds do not matter."""
    pairs: Mapping[str, Any] = field(default_factory=dict)
    """Transforms of the training pairs: what is done -> its argument."""
    measure: Measure | None = None
    """Does its runs; None: what the experiment does with all arms."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else `measure` is told."""

    @property
    def trained(self) -> bool:
        """Whether its figures depend on a training seed."""
        return self.train is not None

    @property
    def label(self) -> str:
        """The labels in words; a dotted one without its section where that leaves it distinct."""
        short = [key.rpartition(".")[2] for key in self.labels]
        names = [name if short.count(name) == 1 else key for key, name in zip(self.labels, short, strict=True)]
        return ", ".join(f"{name}={show(value)}" for name, value in zip(names, self.labels.values(), strict=True))

    @property
    def folder(self) -> str:
        """Name of its folder: readable, and a hash where that is too long or holds signs no folder may."""
        plain = self.label.replace(", ", ",")
        name = re.sub(r"[^\w.+=,-]", "_", plain, flags=re.ASCII)
        if name == plain and len(name) <= NAME_LENGTH:
            return name
        return f"{name[: NAME_LENGTH - 9]}-{hashlib.sha256(plain.encode('utf-8', 'replace')).hexdigest()[:8]}"


@dataclass(frozen=True)
class ArmRun:
    """An arm with one training seed."""

    arm: Arm
    seed: int
    measure: Measure
    """What does it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All its settings of training: those that arms share, and the arm's own on top."""

    @property
    def name(self) -> str:
        """Its folder below that of all runs."""
        return f"{self.arm.folder}/seed-{self.seed}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what the run is among those of its experiment; where its inputs lie does not count."""
        own = {key: value for key, value in (self.arm.train or {}).items() if key not in PATHS}
        known = [self.arm.labels, own, self.arm.pairs, self.measure.__name__, self.arm.options, self.seed]
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Measured:
    """The figures of a run."""

    metrics: Mapping[str, float]
    """Metric -> value; of several queries their mean, of several collections the mean of their means."""
    per_query: Mapping[str, float] = field(default_factory=dict)
    """`collection/query` -> the primary metric."""
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of what no claim rests on (other collections, the model before it was merged): its name -> as `per_query`."""
    rows: int | None = None
    precision: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class RunResult(Measured):
    """What a run came to, as it stands in its `result.json`."""

    labels: ArmLabels = field(default_factory=dict)
    seed: int = 0
    status: RunStatus = "finished"
    reason: str = ""
    """Why it did not finish, in one line."""
    seconds: float = 0.0
    """Wall time of training and measuring; of an interrupted run the calls before are counted too."""
    fingerprint: str = ""
    version: str = ""
    """Of bixse."""

    @property
    def label(self) -> str:
        """Arm and seed in words."""
        return f"{Arm(self.labels).label}, seed {self.seed}"

    @property
    def stands(self) -> bool:
        """Whether another call would come to the same."""
        return self.status in ("finished", "diverged")


def show(value: Any) -> str:
    """A setting's value in a table, a label or a name."""
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return json.dumps(value, default=str)
