"""What a study would cost: cells, steps, memory and GPU hours, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.io.parquet import row_count
from bixse.errors import InputError
from bixse.studies.engine.study import chosen_values, find_study
from bixse.studies.engine.study_config import PYDOCS, EncoderSize, merged, train_config
from bixse.studies.paper.rankers import has_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bixse.studies.engine.cells import Cell
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.training.config import TrainConfig

BYTES_PER_TRAINED = 16
"""A float32 weight, its gradient, and Adam's two moments."""
BYTES_PER_FROZEN = 2
"""A weight in bf16."""


@dataclass(frozen=True)
class CellPlan:
    """What one trained cell takes."""

    name: str
    """Its labels."""
    rows: int
    """Training pairs."""
    steps: int
    """Optimizer steps."""
    tokens: float
    """Tokens read in training."""
    floating_point_operations: float
    """Of the whole training."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study takes."""

    cells: list[CellPlan]
    """The trained cells of one seed."""
    others: int
    """Cells without training."""
    seeds: int
    """Seeds of each trained cell."""
    missing: list[str]
    """Files and folders that are not there."""
    weights_gib: float
    """Weights, gradients and optimizer of one training, on its device."""
    activations_gib: float
    """States kept for the backward pass of the largest batch; `gradient_cache: true` keeps those of one pass alone."""
    hours: float
    """Device hours of all training, at the assumed speed."""
    devices: int = 1
    """Devices that cells run on side by side, each cell on one."""

    def lines(self, teraflops: float, utilisation: float) -> list[str]:
        """The plan in words."""
        most = max(self.cells, key=lambda plan: plan.steps, default=None)
        found = [f"{len(self.cells)} trained cells x {self.seeds} seeds, {self.others} other cells"]
        if most is not None:
            found.append(f"up to {most.rows:,} training rows and {most.steps:,} steps per cell")
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


def plan_study(
    name: str, config: StudyConfig, devices: int = 1, teraflops: float = 400.0, utilisation: float = 0.35
) -> StudyPlan:
    """Check every cell's settings and estimate what the study takes; nothing is loaded but small files.

    A forward and backward pass takes 6 operations a weight and token, 8 with gradient checkpointing (Kaplan et al.
    2020, arXiv:2001.08361), and attention 12 * layers * width * tokens^2 a text on top. Adam keeps 16 bytes a trained
    weight.

    Args:
        name: the study.
        config: its configuration; its `size` stands in where the encoder's files are not there.
        devices: devices that cells run on side by side; each cell takes one.
        teraflops: peak of one device in the number type of training.
        utilisation: share of the peak that is reached, in (0, 1].

    Raises:
        InputError: an unknown study.
        ConfigError: a cell's settings cannot be used.

    Example:
        >>> from bixse.studies.engine.study_config import load_study_config
        >>> plan = plan_study("losses", load_study_config("losses", "paper-qwen2.5-0.5b", None), devices=8)
        >>> len(plan.cells), plan.cells[0].steps > 1000
        (9, True)
    """
    study = find_study(name)
    values = chosen_values(study, config)
    cells = study.cells(config, values, None)
    trained = [cell for cell in cells if has_seeds(cell)]
    size = _size_of(config)
    rows, queries, lacking = _rows_of(config, size)
    plans, states = [], 0.0
    for cell in trained:
        settings = train_config({**merged(config.train, cell.train), "pairs": Path("pairs.parquet")})
        own_rows, own_queries = _left(cell, rows, queries)
        plans.append(_plan(cell, settings, size, own_rows, own_queries))
        states = max(states, _activations(settings, size, own_rows / max(own_queries, 1)))
    if config.model not in ("demo", "static") and not Path(config.model).exists():
        lacking.append(f"{config.model} (fetched from the hub at the first cell)")
    trained_weights = size.trained or size.parameters
    frozen = size.parameters - trained_weights
    total = sum(plan.floating_point_operations for plan in plans) * len(config.seeds)
    return StudyPlan(
        cells=plans,
        others=len(cells) - len(trained),
        seeds=len(config.seeds),
        missing=lacking,
        weights_gib=(trained_weights * BYTES_PER_TRAINED + frozen * BYTES_PER_FROZEN) / 2**30,
        activations_gib=states / 2**30,
        hours=total / (teraflops * 1e12 * utilisation) / 3600,
        devices=devices,
    )


def _plan(cell: Cell, settings: TrainConfig, size: EncoderSize, rows: float, queries: float) -> CellPlan:
    optimizer = settings.optimizer
    documents = min(rows / max(queries, 1), optimizer.documents_per_query or math.inf)
    per_epoch = math.ceil(queries / optimizer.batch_size / optimizer.gradient_accumulation_steps)
    steps = min(optimizer.steps or math.inf, per_epoch * optimizer.epochs)
    seen = min(steps * optimizer.batch_size * optimizer.gradient_accumulation_steps, queries * optimizer.epochs)
    longest = min(settings.max_length or 10**9, settings.train_max_length or 10**9)
    lengths = {"query": min(size.query_tokens, longest), "document": min(size.document_tokens, longest)}
    tokens = seen * (lengths["query"] + documents * lengths["document"])
    each = 8 if optimizer.gradient_checkpointing else 6
    attention = 12 * size.layers * size.hidden * seen * (lengths["query"] ** 2 + documents * lengths["document"] ** 2)
    label = ", ".join(map(str, cell.labels.values()))
    return CellPlan(label, int(rows), int(steps), tokens, each * size.parameters * tokens + attention)


def _left(cell: Cell, rows: float, queries: float) -> tuple[float, float]:
    """Training rows and queries of a cell: what its budget of labels buys, or all."""
    if "labels_per_query" not in cell.pairs:
        return rows, queries
    labels = cell.pairs["labels"] or queries
    return labels, labels / cell.pairs["labels_per_query"]


def _activations(settings: TrainConfig, size: EncoderSize, documents: float) -> float:
    """Bytes of the states of one batch: a state a layer with checkpointing, some 17 without."""
    optimizer = settings.optimizer
    queries = optimizer.batch_size
    drawn = min(documents, optimizer.documents_per_query or math.inf)
    tokens = queries * (size.query_tokens + drawn * size.document_tokens)
    kept = 1 if optimizer.gradient_checkpointing else 17
    return tokens * size.hidden * size.layers * kept * 2 + tokens * size.hidden * 34


def _size_of(config: StudyConfig) -> EncoderSize:
    """The size that the configuration tells, or that of the demo model."""
    if config.size is not None:
        return config.size
    if config.model == "static":
        return EncoderSize(parameters=11.7e6, layers=1, hidden=384, query_tokens=10, document_tokens=100)
    return EncoderSize(parameters=22.7e6, layers=6, hidden=384, query_tokens=10, document_tokens=100)


def _rows_of(config: StudyConfig, size: EncoderSize) -> tuple[float, float, list[str]]:
    """Training rows, queries, and what is not there."""
    data = config.data
    lacking = _absent(dict.fromkeys([*data.pairs, *data.dev, *data.test]))
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
            return rows, rows / 2, lacking
        return size.training_rows, size.training_rows / 2, lacking
    if data.collection == PYDOCS:
        return 2795, 239, lacking
    qrels = Path(data.collection) / "qrels"
    lacking += _absent([qrels])
    found = {path.stem: path.read_text(encoding="utf-8").splitlines()[1:] for path in qrels.glob("*.tsv")}
    split = data.splits[0] if data.splits else "train" if "train" in found else next(iter(found), "")
    lines, share = found.get(split, []), 1.0 if len(found) > 1 else data.shares[0]
    return len(lines) * share, max(1.0, len({line.split("\t")[0] for line in lines}) * share), lacking


def _absent(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if not path.exists()]
