"""The figures of the last steps, which stay on the device until they are read together."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from bixse.encoders.processes import all_reduce_sum, world_size
from bixse.training.loop.batches import COUNTS

if TYPE_CHECKING:
    from transformers import TrainerState

SECONDS_BETWEEN_READS: Mapping[str, float] = defaultdict(float, cuda=1.0)
"""Approximate seconds between two reads, per device type. A read waits until a GPU has done all its work."""


class Batch(NamedTuple):
    """A batch that was trained on."""

    step: int
    numbers: tuple[Tensor, Tensor]
    """Numbers of its groups and of its documents."""
    loss: Tensor


class Entry(NamedTuple):
    """An entry of the log; `values` are those of `names`, the first one is the sum of the losses of `steps` steps."""

    step: int
    epoch: float
    steps: int
    learning_rate: float
    names: list[str]
    values: Tensor
    counts: NDArray[np.int64]


class UnreadFigures:
    """The batches and log entries since the last read.

    Each read decides after how many steps the next one is due, so that all processes read after the same steps.
    """

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._entries: list[Entry] = []
        self._counts: NDArray[np.int64] = np.zeros(len(COUNTS), dtype=np.int64)
        self._next_read, self._interval = 0, 1
        self._unlogged_seconds = 0.0
        self.seconds = 0.0
        """Wall time of the steps that were read, without evaluation and saving."""
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave out the time since the last read."""
        self._since = time.perf_counter()

    def add_batch(self, batch: Batch, counts: Tensor) -> None:
        self._batches.append(batch)
        self._counts += counts.numpy()

    def add_entry(self, state: TrainerState, steps: int, learning_rate: float, figures: Mapping[str, Any]) -> None:
        """Add an entry of the log after a step; its counts are those of all batches since the entry before."""
        known = {name: torch.as_tensor(value).detach() for name, value in figures.items() if value is not None}
        scalars = [(part.full_tensor() if isinstance(part, DTensor) else part).reshape(()) for part in known.values()]
        # a copy, because the loss goes on to be summed
        values = torch.stack([part.to(scalars[0].device, non_blocking=True) for part in scalars])
        entry = Entry(state.global_step, state.epoch or 0.0, steps, learning_rate, list(known), values, self._counts)
        self._entries.append(entry)
        self._counts = np.zeros_like(self._counts)

    def is_due(self, step: int) -> bool:
        """Return True if the figures are to be read after this step."""
        return step >= self._next_read

    def read(
        self, device: torch.device
    ) -> tuple[list[tuple[Entry, dict[str, float], float]], list[tuple[Batch, float]], bool]:
        """Return new entries with their figures and sums of losses, broken batches, and True if any process has one.

        The loss of a broken batch is not finite.
        """
        batches, entries = self._batches, self._entries
        self._batches, self._entries = [], []
        parts = [*(batch.loss.reshape(1) for batch in batches), *(entry.values for entry in entries)]
        values = iter(torch.cat(parts).tolist() if parts else [])  # the only wait for the device
        losses = [next(values) for _ in batches]
        broken = [(batch, loss) for batch, loss in zip(batches, losses, strict=True) if not math.isfinite(loss)]
        rows = [{name: next(values) for name in entry.names} for entry in entries]
        elapsed = time.perf_counter() - self._since
        self.restart_clock()
        counts = [count for entry in entries for count in entry.counts]
        mine = np.array([bool(broken), elapsed, *(row["loss"] for row in rows), *counts])
        # one message for all processes
        total = all_reduce_sum(torch.from_numpy(mine).to(device)).cpu().numpy() if world_size() > 1 else mine
        self._plan_next_read([batch.step for batch in batches], float(total[1]) / world_size(), device)
        summed = total[2 + len(rows) :].reshape(len(rows), len(COUNTS))
        rates = {}
        if rows:  # pairs and tokens per second over all processes since the last read with an entry
            together = dict(zip(COUNTS, summed.sum(axis=0).tolist(), strict=True))
            seconds, self._unlogged_seconds = self._unlogged_seconds, 0.0
            rates = {f"train_{name}_per_second": round(together[name] / seconds, 1) for name in ("pairs", "tokens")}
        read = []
        for entry, row, losses_sum, numbers in zip(entries, rows, total[2:] / world_size(), summed, strict=False):
            first = {"loss": float(losses_sum) / entry.steps} | {n: row.pop(n) for n in ("grad_norm",) if n in row}
            others = {**row, **dict(zip(COUNTS[2:5], map(float, numbers[2:5]), strict=True)), **rates}
            del others["loss"]
            finite = {name: value for name, value in others.items() if math.isfinite(value)}
            figures = {**first, "learning_rate": entry.learning_rate, **finite}
            read.append((entry, figures, float(losses_sum)))
        return read, broken, bool(total[0])

    def _plan_next_read(self, steps: list[int], elapsed: float, device: torch.device) -> None:
        """Read again after the steps of the wanted seconds, and at most twice as many as planned before."""
        if steps:
            wanted = len(set(steps)) * SECONDS_BETWEEN_READS[device.type] / elapsed
            self._interval = max(1, min(2 * self._interval, int(wanted)))
            self._next_read = steps[-1] + self._interval
        self.seconds += elapsed
        self._unlogged_seconds += elapsed
