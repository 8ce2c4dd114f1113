"""What an engine costs per shard: the engines against a plain loop over the same shards.

    python benchmarks/bench_engines.py [--shards 100] [--seconds 0.05] [--processes 2] [--rounds 3] [--ray] [--no-loop]

Each shard sleeps for so many seconds and writes one small file; through an engine its completion is marked too. The
start of processes is counted, that of the Ray cluster (`--ray`, one on this machine with a core for each process) is
not. `overhead_percent` is the time above that of shards x seconds / processes, over that time, and `overhead_ms` the
same in milliseconds per shard: of the plain loop it is the writing alone. Processes that sleep need no cores of their
own, so there may be more of them than cores. `--no-loop` leaves out what has one process.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.files.files import write_atomically
from bixse.scale.engines.job import Job
from bixse.scale.engines.processes import LocalEngine
from measuring import OUT, Option, in_turn, middle, options, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.scale.engines.job import Engine

LOOP = "plain loop"


@dataclass(frozen=True)
class Wait(Job[int, None]):
    """A job that takes a time per shard and writes a file."""

    folder: Path
    seconds: float

    def run(self, shard: int, kept: Any) -> None:
        time.sleep(self.seconds)
        write_atomically(self.output(shard), str(shard))

    def output(self, shard: int) -> Path:
        return self.folder / str(shard)


def engine_of(method: str, processes: int) -> Engine:
    """Return the engine of a row; the local one with more processes than cores too."""
    if method.startswith("ray"):
        from bixse.scale.engines.ray_cluster import RayEngine

        return RayEngine(processes=processes)
    engine = LocalEngine(1)
    engine.processes, engine.here = processes, processes == 1
    return engine


def in_new_folder(method: str, shards: int, seconds: float, processes: int) -> None:
    """Do all shards by a plain loop or an engine."""
    with tempfile.TemporaryDirectory() as folder:
        job = Wait(Path(folder), seconds)
        if method == LOOP:
            for shard in range(shards):
                job.run(shard, None)
            return
        ended = engine_of(method, processes).map(job, range(shards))
        if failed := [one.error for one in ended if one.error]:
            raise SystemExit(failed[0])


def rows(methods: dict[str, int], shards: int, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield median times; `methods` are names with their numbers of processes."""
    work = {name: partial(in_new_folder, name, shards, seconds, processes) for name, processes in methods.items()}
    for name, runs in in_turn(work, rounds).items():
        took, least = middle(runs), shards * seconds / methods[name]
        yield {
            "method": name,
            "shards": shards,
            "work": f"{seconds:g} s",
            "seconds": took,
            "overhead_ms": round((took - least) / shards * 1000, 2),
            "overhead_percent": round(100 * (took / least - 1), 2),
        }


def main() -> None:
    """Measure and show."""
    given = options(
        __doc__,
        quick={"shards": 10, "seconds": 0.01, "rounds": 1},
        out=OUT,
        shards=100,
        seconds=Option(0.05, "that each shard sleeps"),
        processes=2,
        rounds=3,
        ray=Option(False, "measure a Ray cluster on this machine too"),
        no_loop=Option(False, "leave out what has one process"),
    )
    methods = {} if given.no_loop else {LOOP: 1, "local, 1 process": 1}
    methods[f"local, {given.processes} processes"] = given.processes
    if given.ray:
        import ray

        ray.init(num_cpus=given.processes, include_dashboard=False, log_to_driver=False)
        methods[f"ray, {given.processes} processes"] = given.processes
    show(rows(methods, given.shards, given.seconds, given.rounds), given.out)


if __name__ == "__main__":
    main()
