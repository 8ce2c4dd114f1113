"""Which queries stand together in a batch: of one task, shuffled by seed and epoch alone, each once an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from torch.utils.data import Sampler

from bixse.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs

EpochIndex: TypeAlias = tuple[int, int]
"""(epoch, group): which documents of a group are drawn depends on both and on the seed alone."""


class BatchPlan(Sampler[list[EpochIndex]]):
    """Batches of query groups of one task each; a function of (seed, epoch), the same on every process.

    Several processes all read the same plan and each takes its part of every batch, so that tasks agree at every step
    and the result does not depend on the number of processes.

    Args:
        pairs: the graded pairs.
        batch_size: queries of a batch, over all processes, at least 1; a task's last batch may be smaller.
        seed: of the order.
        shares: task -> share of its queries that stand in an epoch, in (0, 1], drawn anew each time; 1 for others.

    Raises:
        InputError: a share is outside (0, 1] or of an unknown task.
    """

    def __init__(
        self, pairs: GradedPairs, batch_size: int, seed: int = 0, shares: Mapping[str, float] | None = None
    ) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        tasks = pairs.groups().tasks
        self.members: dict[str | None, NDArray[np.int64]] = {
            name: np.flatnonzero(tasks == number) for number, name in enumerate(pairs.tasks[0])
        }
        self.shares = dict(shares or {})
        _check_shares(self.shares, [task for task in self.members if task is not None])

    def queries_per_epoch(self, task: str | None) -> int:
        """Queries of a task that stand in one epoch: its share, rounded, at least one."""
        return max(1, round(len(self.members[task]) * self.shares.get(task or "", 1.0)))

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer at the start of each epoch, also after a resume."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(-(-self.queries_per_epoch(task) // self.batch_size) for task in self.members)

    def __iter__(self) -> Iterator[list[EpochIndex]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        queries, starts, ends = [], [], []
        begin = 0
        for task, own in self.members.items():
            queries.append(own[generator.permutation(len(own))][: self.queries_per_epoch(task)])
            end = begin + len(queries[-1])
            starts.append(np.arange(begin, end, self.batch_size))
            ends.append(np.minimum(starts[-1] + self.batch_size, end))
            begin = end
        drawn, bounds = np.concatenate(queries), np.stack([np.concatenate(starts), np.concatenate(ends)], axis=1)
        if len(self.members) > 1:
            bounds = bounds[generator.permutation(len(bounds))]
        for start, end in bounds:
            yield [(self.epoch, int(number)) for number in drawn[start:end]]

    def check_sizes(self, where: object) -> None:
        """Refuse batches that are larger than a task.

        Raises:
            InputError: names the tasks and how many queries an epoch holds of each.
        """
        sizes = {task: self.queries_per_epoch(task) for task in self.members}
        small = {task: size for task, size in sizes.items() if size < self.batch_size}
        if small:
            found = ", ".join(f"{size} of task {task!r}" if task else f"{size} in all" for task, size in small.items())
            raise InputError(
                f"{where}: got fewer queries than one batch ({found}); expected at least batch_size = "
                f"{self.batch_size} of each task; fix: set batch_size to {min(small.values())} or less, or leave the "
                "task out"
            )


def _check_shares(shares: Mapping[str, float], known: Sequence[str]) -> None:
    for task, share in shares.items():
        if task not in known:
            hint = did_you_mean(task, known, otherwise="check the column `task` of the pairs")
            raise InputError(
                f"task_shares: got task {task!r}; expected one of {', '.join(known) or 'no task at all'}; fix: {hint}"
            )
        if not 0 < share <= 1:
            raise InputError(f"task_shares: got {share} for task {task!r}; expected a share in (0, 1]")
