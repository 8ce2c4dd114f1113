"""The cost of a study before training, by arithmetic alone: runs, steps, memory and GPU hours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.errors import InputError
from bixse.files.parquet import column_names, read_table
from bixse.lab.lab_config import PYDOCS, EncoderSize, merged, train_config
from bixse.lab.studies.paper import find_study
from bixse.lab.studies.study import chosen_values
from bixse.report.table import format_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bixse.lab.experiments import Arm
    from bixse.lab.lab_config import StudyConfig


BYTES_PER_TRAINED = 16
"""A float32 weight, its gradient, and Adam's two moments."""
BYTES_PER_FROZEN = 2
"""A weight in bf16."""
LAYER_STATES = 34
"""Bytes per token and hidden unit that one layer keeps for its backward pass in bf16 (Korthikanti et al. 2022,
arXiv:2205.05198, without dropout and attention matrices)."""


def weight_bytes(size: EncoderSize) -> float:
    """Return the bytes of weights, gradients and optimizer. Frozen weights are in bf16.

    Example:
        >>> weight_bytes(EncoderSize(parameters=100, trained=10, layers=1, hidden=8))
        340.0
    """
    trained = size.trained or size.parameters
    return trained * BYTES_PER_TRAINED + (size.parameters - trained) * BYTES_PER_FROZEN


def state_bytes(size: EncoderSize, tokens: float, checkpointing: bool) -> float:
    """Return the bytes that a pass over `tokens` keeps in bf16 for its backward pass."""
    whole_layers = 1 if checkpointing else size.layers  # checkpointing also keeps the input of every layer, 2 bytes
    return tokens * size.hidden * (2 * size.layers * checkpointing + LAYER_STATES * whole_layers)


def operations(
    size: EncoderSize, texts: Sequence[tuple[float, float]], checkpointing: bool, gradient_cache: bool = False
) -> float:
    """Return the floating point operations of training once on `texts`, given as (length in tokens, count)."""
    # per weight and token 6 forward and backward (Kaplan et al. 2020, arXiv:2001.08361), 2 per second forward pass
    each = 6 + 2 * checkpointing + 2 * gradient_cache
    tokens = sum(length * count for length, count in texts)
    squares = sum(length**2 * count for length, count in texts)  # for attention
    return each * (size.multiplied or size.parameters) * tokens + 12 * size.layers * size.hidden * squares


DEMO = EncoderSize(parameters=22.7e6, layers=6, hidden=384, query_tokens=10, document_tokens=100)
"""The demo model with the lengths of the sample collection."""
STATIC = EncoderSize(parameters=11.7e6, layers=1, hidden=384, query_tokens=10, document_tokens=100)
"""The static student with the lengths of the sample collection."""


@dataclass(frozen=True)
class ArmPlan:
    """The cost of one run of a trained arm."""

    name: str
    rows: int
    steps: int
    tokens: float
    operations: float
    states: float
    """Bytes of the states of the largest batch."""


@dataclass(frozen=True)
class StudyPlan:
    """The cost of a study."""

    arms: list[ArmPlan]
    others: int
    """Number of arms without training."""
    seeds: int
    missing: list[str]
    weights_gib: float
    """Weights, gradients and optimizer of one training, on its device."""
    activations_gib: float
    """States kept for the backward pass of the largest batch. `gradient_cache: true` keeps only those of one pass."""
    hours: float
    """Device hours of all training, at the assumed speed."""
    teraflops: float
    utilisation: float

    @property
    def runs(self) -> int:
        return len(self.arms) * self.seeds + self.others

    def text(self, devices: int = 1) -> str:
        """Return the plan in words. Each of `devices` runs one training at a time."""
        lines = []
        if self.arms:
            rows: list[list[str | int | float | None]] = [
                [arm.name, arm.rows, arm.steps, f"{arm.tokens:.3g}"] for arm in self.arms
            ]
            lines += [format_table(rows, ["arm", "rows", "steps", "tokens"]), ""]
        lines.append(f"{len(self.arms)} trained arms x {self.seeds} seeds, {self.others} other arms")
        if self.arms:
            side_by_side = f" ({self.hours / devices:,.1f} on {devices})" if devices > 1 else ""
            lines += [
                f"memory of a training: {self.weights_gib:.1f} GiB for weights, gradients and optimizer, about "
                f"{self.activations_gib:.1f} GiB for the states of one batch, nothing for scores (the losses are "
                "tiled)",
                f"about {self.hours:,.1f} device hours{side_by_side} at {self.teraflops:g} teraflops and "
                f"{self.utilisation:.0%} of them used; transforms that drop pairs, and encoding to measure, are not "
                "counted",
            ]
        lines += [f"not there: {name}" for name in self.missing] or ["all files are there"]
        return "\n".join(lines)


def plan_study(config: StudyConfig, teraflops: float = 400.0, utilisation: float = 0.35) -> StudyPlan:
    """Check every arm's settings and estimate the cost of the study. Only small files are loaded.

    `teraflops` is the peak of one device in the dtype of training, `utilisation` the share in (0, 1] that is reached.
    """
    if not teraflops > 0 or not 0 < utilisation <= 1:
        raise InputError(
            f"plan: got {teraflops:g} teraflops, {utilisation:g} of them used; expected numbers above 0; fix: give "
            "those of your machine"
        )
    study = find_study(config.study)
    size = config.size or (STATIC if config.model == "static" else DEMO)
    rows, queries, missing = _rows_of(config, size)
    values = chosen_values(study, config)
    if "labels" in values:
        values["labels"] = values["labels"] or int(queries)
    arms = study.arms(config, values, None)
    trained = [arm for arm in arms if arm.trained]
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
        teraflops=teraflops,
        utilisation=utilisation,
    )


def _plan(arm: Arm, config: StudyConfig, size: EncoderSize, rows: float, queries: float) -> ArmPlan:
    settings = train_config({**merged(config.shared, arm.train or {}), "pairs": Path("pairs.parquet")})
    optimizer = settings.optimizer
    if kept := arm.pairs.get("labels_per_query"):  # the budget of labels limits the rows and the queries
        rows = arm.pairs.get("labels") or min(rows, queries * kept)
        queries = min(queries, rows / kept)
    documents = min(rows / max(queries, 1), optimizer.documents_per_query or math.inf)
    batch = optimizer.batch_size * optimizer.gradient_accumulation_steps
    per_epoch = math.ceil(queries / optimizer.batch_size / optimizer.gradient_accumulation_steps)
    steps = optimizer.steps or per_epoch * optimizer.epochs
    seen = steps * batch if optimizer.steps else queries * optimizer.epochs
    longest = min(settings.max_length or math.inf, settings.train_max_length or math.inf)
    texts = [(min(size.query_tokens, longest), seen), (min(size.document_tokens, longest), seen * documents)]
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
    data = config.data
    missing = _absent(dict.fromkeys([*data.pairs, *data.dev, *data.test, *data.beside]))
    if data.pairs:
        there = all(path.suffix == ".parquet" and path.is_file() for path in data.pairs)
        if not there:
            return size.training_rows, size.training_rows / 2, missing
        counted = [_counted(path) for path in data.pairs]
        return sum(rows for rows, _ in counted), sum(queries for _, queries in counted), missing
    if data.collection == PYDOCS:
        return 7961, 679, missing
    qrels = Path(data.collection) / "qrels"
    missing += _absent([qrels])
    found = {path.stem: path.read_text(encoding="utf-8").splitlines()[1:] for path in qrels.glob("*.tsv")}
    split = data.splits[0] if data.splits else "train" if "train" in found else next(iter(found), "")
    lines, share = found.get(split, []), 1.0 if len(found) > 1 else data.shares[0]
    return len(lines) * share, max(1.0, len({line.split("\t")[0] for line in lines}) * share), missing


def _counted(path: Path) -> tuple[int, int]:
    """Return the numbers of rows and queries in a Parquet file of pairs."""
    name = "query_id" if "query_id" in column_names(path) else "query"
    column = read_table(path, [name])[name]
    return len(column), len(column.unique())


def _absent(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if not path.exists()]
