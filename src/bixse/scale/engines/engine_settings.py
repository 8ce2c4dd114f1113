"""The settings that say where the shards of a job run."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from bixse.errors import InputError
from bixse.machine import launched_number
from bixse.scale.engines.engine import Engine, rank_of
from bixse.settings import Settings


class PlaceSettings(Settings):
    """The setting of verbs that may run as several processes of a launcher."""

    engine: Literal["local", "ranks"] = "local"
    """local: all of the work on this machine; ranks: the share of this process, while others that a launcher started
    (torchrun, a Slurm array) do theirs."""

    def engine_of(self, processes: int | None) -> Engine:
        """Return the engine for this number of concurrent processes; None means as many as fit."""
        if self.engine == "ranks":
            return Engine(processes, *rank_of(os.environ))
        if (size := launched_number("WORLD_SIZE", 1)) > 1:
            raise InputError(
                f"engine local: got WORLD_SIZE={size}, processes of a launcher that would all do the same; expected "
                "one; fix: --engine ranks, or start it without the launcher"
            )
        return Engine(processes)


class EngineSettings(PlaceSettings):
    """The settings of work that may be cut into any number of shards.

    Example:
        >>> EngineSettings(processes=1).chosen_engine().processes
        1
    """

    shards: int | None = Field(default=None, ge=1)
    """Cut the work into about N shards; null: as few as there may be."""
    processes: int = Field(default=1, ge=1)
    """Processes on this machine, each with one shard at a time and in turn one of the GPUs that CUDA_VISIBLE_DEVICES
    names."""

    @property
    def in_shards(self) -> bool:
        """Return True if a setting asks for several processes or shards."""
        return self.engine != "local" or self.shards is not None or self.processes > 1

    def chosen_engine(self) -> Engine:
        """Return the engine."""
        return self.engine_of(self.processes)
