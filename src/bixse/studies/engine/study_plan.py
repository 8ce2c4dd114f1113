"""What a study would cost: runs, steps, memory and GPU hours, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.io.parquet import row_count
from bixse.errors import InputError
from bixse.studies.engine.model_cost import EncoderSize, operations, state_bytes, weight_bytes
from bixse.studies.engine.study import chosen_values
from bixse.studies.engine.study_config import PYDOCS, merged, train_config
from bixse.studies.paper.known_studies import find_study

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bixse.experiments.arms import Arm
    from bixse.studies.engine.study_config import StudyConfig

DEMO = EncoderSize(parameters=22.7e6, layers=6, hidden=384, query_tokens=10, document_tokens=100)
"""The demo model and the sample collection."""
STATIC = EncoderSize(parameters=11.7e6, layers=1, hidden=384, query_tokens=10, document_tokens=100)
"""The static student."""


@dataclass(frozen=True)
class ArmPlan:
    """What one run of a trained arm takes."""

    name: str
    """Its labels."""
    rows: int
    """Training pairs."""
    steps: int
    """Optimizer steps."""
    tokens: float
    """Tokens read in training."""
    operations: float
    """Floating point operations of the whole training."""
    states: float
    """Bytes of the states of its largest batch."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study takes."""

    arms: list[ArmPlan]
    """The trained arms."""
    others: int
    """Arms without training."""
    seeds: int
    """Seeds of each trained arm."""
    missing: list[str]
    """Files and folders that are not there."""
    weights_gib: float
    """Weights, gradients and optimizer of one training, on its device."""
    activations_gib: float
    """States kept for the backward pass of the largest batch; `gradient_cache: true` keeps those of one pass alone."""
    hours: float
    """Device hours of all training, at the assumed speed."""
    devices: int = 1
    """Devices that runs are spread over, one each."""

    def lines(self, teraflops: float, utilisation: float) -> list[str]:
        """The plan in words."""
        most = max(self.arms, key=lambda plan: plan.steps, default=None)
        found = [f"{len(self.arms)} trained arms x {self.seeds} seeds, {self.others} other arms"]
        if most is not None:
            found.append(f"up to {most.rows:,} training rows and {most.steps:,} steps per run")
            found.append(
                f"memory of a training: {self.weights_gib:.1f} GiB for weights, gradients and optimizer, about "
                f"{self.activations_gib:.1f} GiB for the states of one batch, nothing for scores (the losses are tiled)"
            )
            side_by_side = f" ({self.hours / self.devices:,.1f} on {self.devices})" if self.devices > 1 else ""
            found.append(
                f"about {self.hours:,.1f} device hours{side_by_side} at {teraflops:g} teraflops and {utilisation:.0%} "
                "of them used; transforms that drop pairs, and encoding to measure, are not counted"
            )
        found += [f"not there: {name}" for name in self.missing] or ["all files are there"]
        return found


def plan_study(config: StudyConfig, devices: int = 1, teraflops: float = 400.0, utilisation: float = 0.35) -> StudyPlan:
    """Check every arm's settings and estimate what the study takes; nothing is loaded but small files.

    Args:
        config: the study; its `size` stands in where the encoder's files are not there.
        devices: devices that runs are spread over; each run takes one.
        teraflops: peak of one device in the number type of training.
        utilisation: share of the peak that is reached, in (0, 1].

    Raises:
        InputError: an unknown study, or a number that is not above 0.
        ConfigError: an arm's settings cannot be used.

    Example:
        >>> from bixse.studies.engine.study_config import StudyConfig
        >>> config = StudyConfig.load(None, {"study": "losses", "preset": "paper-qwen2.5-0.5b"})
        >>> plan = plan_study(config, devices=8)
        >>> len(plan.arms), plan.arms[0].steps > 1000
        (9, True)
    """
    if devices < 1 or not teraflops > 0 or not 0 < utilisation <= 1:
        raise InputError(
            f"plan: got {devices} devices of {teraflops:g} teraflops, {utilisation:g} of them used; expected numbers "
            "above 0; fix: give those of your machine"
        )
    study = find_study(config.study)
    arms = study.arms(config, chosen_values(study, config), None)
    trained = [arm for arm in arms if arm.trained]
    size = config.size or (STATIC if config.model == "static" else DEMO)
    rows, queries, missing = _rows_of(config, size)
    plans = [_plan(arm, config, size, rows, queries) for arm in trained]
    if config.model not in ("demo", "static") and not Path(config.model).exists():
        missing.append(f"{config.model} (fetched from the hub at the first run)")
    total = sum(plan.operations for plan in plans) * len(config.seeds)
    return StudyPlan(
        arms=plans,
        others=len(arms) - len(trained),
        seeds=len(config.seeds),
        missing=missing,
        weights_gib=weight_bytes(size) / 2**30,
        activations_gib=max((plan.states for plan in plans), default=0.0) / 2**30,
        hours=total / (teraflops * 1e12 * utilisation) / 3600,
        devices=devices,
    )


def _plan(arm: Arm, config: StudyConfig, size: EncoderSize, rows: float, queries: float) -> ArmPlan:
    settings = train_config({**merged(config.shared, arm.train or {}), "pairs": Path("pairs.parquet")})
    optimizer = settings.optimizer
    if "labels_per_query" in arm.pairs:  # what its budget of labels buys
        rows = arm.pairs["labels"] or queries
        queries = rows / arm.pairs["labels_per_query"]
    documents = min(rows / max(queries, 1), optimizer.documents_per_query or math.inf)
    batch = optimizer.batch_size * optimizer.gradient_accumulation_steps
    per_epoch = math.ceil(queries / optimizer.batch_size / optimizer.gradient_accumulation_steps)
    steps = min(optimizer.steps or math.inf, per_epoch * optimizer.epochs)
    seen = min(steps * batch, queries * optimizer.epochs)
    longest = min(settings.max_length or math.inf, settings.train_max_length or math.inf)
    texts = [
        (min(size.query_tokens, longest), seen),
        (min(size.document_tokens, longest), seen * documents),
    ]
    in_batch = optimizer.batch_size * (size.query_tokens + documents * size.document_tokens)
    return ArmPlan(
        name=", ".join(map(str, arm.labels.values())),
        rows=int(rows),
        steps=int(steps),
        tokens=sum(length * count for length, count in texts),
        operations=operations(size, texts, optimizer.gradient_checkpointing),
        states=state_bytes(size, in_batch, optimizer.gradient_checkpointing),
    )


def _rows_of(config: StudyConfig, size: EncoderSize) -> tuple[float, float, list[str]]:
    """Training rows, queries, and what is not there."""
    data = config.data
    missing = _absent(dict.fromkeys([*data.pairs, *data.dev, *data.test]))
    twice = {path.stem for path in data.pairs if [other.stem for other in data.pairs].count(path.stem) > 1}
    if twice:
        raise InputError(
            f"data.pairs: got two files named {sorted(twice)[0]!r}; expected names of their own, which become their "
            "tasks; fix: rename one"
        )
    if data.pairs:
        known = [path for path in data.pairs if path.suffix == ".parquet" and path.is_file()]
        if len(known) == len(data.pairs):
            rows = sum(row_count(path) for path in known)
            return rows, rows / 2, missing
        return size.training_rows, size.training_rows / 2, missing
    if data.collection == PYDOCS:
        return 2795, 239, missing
    qrels = Path(data.collection) / "qrels"
    missing += _absent([qrels])
    found = {path.stem: path.read_text(encoding="utf-8").splitlines()[1:] for path in qrels.glob("*.tsv")}
    split = data.splits[0] if data.splits else "train" if "train" in found else next(iter(found), "")
    lines, share = found.get(split, []), 1.0 if len(found) > 1 else data.shares[0]
    return len(lines) * share, max(1.0, len({line.split("\t")[0] for line in lines}) * share), missing


def _absent(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if not path.exists()]
