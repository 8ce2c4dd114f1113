"""The engine `ranks`: the same command is started n times, by any launcher, and each does every n-th shard."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from bixse.errors import InputError
from bixse.scale.engines.processes import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bixse.scale.engines.job import Shard

LAUNCHED = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")
"""Environment variables by which a launcher tells processes that they are one job."""


class RanksEngine(LocalEngine):
    """Shard i, i + n, i + 2 n, ... of the rank i of n; they know of each other by the marks of what is complete.

    Raises:
        InputError: the environment names no rank, or one that cannot be.
    """

    def __init__(self, processes: int | None = 1, num_gpus: int = 0) -> None:
        super().__init__(processes, num_gpus)
        self.rank, self.number = rank_of(os.environ)
        self.shared = self.number > 1

    def share(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        return islice(shards, self.rank, None, self.number)


@contextmanager
def without_launcher() -> Iterator[None]:
    """Inside the block libraries take this process for one alone: ranks do their shards each by itself."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if LAUNCHED.fullmatch(name)}
    try:
        yield
    finally:
        os.environ |= hidden


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and number of ranks, by RANK and WORLD_SIZE or by a Slurm array; where both are set, ranks within tasks.

    Example:
        >>> rank_of({"RANK": "1", "WORLD_SIZE": "4"})
        (1, 4)
        >>> rank_of({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "3"})
        (2, 3)
    """
    array = {name: environment.get(f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "COUNT", "MIN", "STEP")}
    launched = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE")}
    if array["ID"] is None and launched["RANK"] is None:
        raise InputError(
            "engine ranks: got no rank in the environment; expected RANK and WORLD_SIZE, or SLURM_ARRAY_TASK_ID and "
            "SLURM_ARRAY_TASK_COUNT; fix: start it with torchrun or as a Slurm array, or set RANK (0, 1, ...) and "
            "WORLD_SIZE yourself"
        )
    try:
        within, size = int(launched["RANK"] or 0), int(launched["WORLD_SIZE"] or 1)
        step = int(array["STEP"] or 1)
        task, tasks = (int(array["ID"] or 0) - int(array["MIN"] or 0)) // step, int(array["COUNT"] or 1)
    except (ValueError, ZeroDivisionError):
        within, size, task, tasks = -1, 0, -1, 0
    if not (0 <= within < size and 0 <= task < tasks):
        found = {**launched, **{f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}}
        said = ", ".join(f"{name}={value}" for name, value in found.items() if value is not None)
        raise InputError(
            f"engine ranks: got {said}; expected ranks from 0 on below WORLD_SIZE, or an array of evenly spaced tasks; "
            "fix: give each process its own RANK, or the array a range such as --array=0-7"
        )
    return task * size + within, tasks * size
