"""Settings of the place where work runs, which verbs inherit, and the engine that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from bixse.errors import InputError
from bixse.machine import launched_number
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from bixse.scale.engines.job import Engine


class PlaceSettings(Settings):
    """The settings of the machines that work."""

    engine: Literal["local", "ranks", "ray"] = "local"
    """local: on this machine; ranks: this process does its share, others (torchrun, a Slurm array) theirs; ray: on a
    Ray cluster."""
    ray_address: Annotated[str, Flag(metavar="HOST:PORT")] = "auto"
    """Of the Ray cluster; auto: the one that this machine belongs to."""
    num_cpus: int = Field(default=1, ge=1)
    """With Ray: processor cores of each process."""
    num_gpus: int = Field(default=0, ge=0)
    """GPUs of each process; with Ray, 0 computes on the processor."""

    def engine_of(self, processes: int | None) -> Engine:
        """Return the engine for this number of concurrent processes; None means as many as fit."""
        if self.engine != "ranks" and (size := launched_number("WORLD_SIZE", 1)) > 1:
            raise InputError(
                f"engine {self.engine}: got WORLD_SIZE={size}, processes of a launcher that would "
                "all do the same; expected one; fix: --engine ranks, or start it without the launcher"
            )
        if self.engine == "ray":
            from bixse.scale.engines.ray_cluster import RayEngine

            return RayEngine(self.ray_address, processes, self.num_cpus, self.num_gpus)
        if self.engine == "ranks":
            from bixse.scale.engines.process_engines import RanksEngine

            return RanksEngine(processes, self.num_gpus)
        from bixse.scale.engines.process_engines import LocalEngine

        return LocalEngine(processes, self.num_gpus)


class EngineSettings(PlaceSettings):
    """The settings of work that may be cut into any number of parts.

    Example:
        >>> EngineSettings(engine="local", processes=1).chosen_engine().processes
        1
    """

    shards: int | None = Field(default=None, ge=1)
    """Cut the work into about N parts; null: as few as there may be."""
    processes: int | None = Field(default=None, ge=1)
    """Processes at once; null: as many as fit."""

    @property
    def in_shards(self) -> bool:
        """Return True if a setting asks for several processes or parts."""
        return self.engine != "local" or self.shards is not None or (self.processes or 1) > 1

    def chosen_engine(self, here: bool = False) -> Engine:
        """Return the engine; with `here`, work on one machine stays in this process."""
        return self.engine_of(1 if here and self.engine != "ray" else self.processes)
