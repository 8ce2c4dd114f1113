"""What an engine costs per shard: the engines against a plain loop over the same shards.

    python benchmarks/bench_engines.py [--shards 100] [--seconds 0.05] [--work sleep] [--processes 2] [--rounds 3]
        [--ray] [--no-loop] [--out FILE] [--quick]

Each shard sleeps, or computes, for so many seconds and writes one small file; through an engine it is marked too. The
start of processes is counted, that of the Ray cluster (`--ray`, one on this machine with a core for each process) is
not. `overhead_percent` is the time above that of shards x seconds / processes, over that time, and `overhead_ms` the
same in milliseconds per shard: of the plain loop it is the writing alone. Processes that sleep need no cores of their
own, so there may be more of them than cores. `--no-loop` leaves out what has one process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.files.files import write_atomically
from bixse.scale.engines.job import Job
from bixse.scale.engines.process_engines import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.scale.engines.job import Engine


LOOP = "plain loop"


@dataclass(frozen=True)
class Wait(Job[int, None]):
    """Takes a time per shard and writes a file."""

    folder: Path
    seconds: float
    computes: bool

    def run(self, shard: int, kept: Any) -> None:
        if self.computes:
            end = time.process_time() + self.seconds
            while time.process_time() < end:
                sum(range(1000))
        else:
            time.sleep(self.seconds)
        write_atomically(self.output(shard), str(shard))

    def output(self, shard: int) -> Path:
        return self.folder / str(shard)


def engine_of(method: str, processes: int) -> Engine:
    """The engine of a row; the local one with more processes than cores too."""
    if method.startswith("ray"):
        from bixse.scale.engines.ray_cluster import RayEngine

        return RayEngine(processes=processes)
    engine = LocalEngine(1)
    engine.processes, engine.here = processes, processes == 1
    return engine


def in_new_folder(method: str, shards: int, seconds: float, computes: bool, processes: int) -> None:
    """Do all shards by a plain loop or an engine."""
    with tempfile.TemporaryDirectory() as folder:
        job = Wait(Path(folder), seconds, computes)
        if method == LOOP:
            for shard in range(shards):
                job.run(shard, None)
            return
        ended = engine_of(method, processes).map(job, range(shards))
        if failed := [one.error for one in ended if one.error]:
            raise SystemExit(failed[0])


def rows(methods: dict[str, int], shards: int, seconds: float, computes: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Median times; `methods` are names with their numbers of processes."""
    from measuring import in_turn, middle  # here: processes import this script again, and need it not

    given = {name: (name, shards, seconds, computes, processes) for name, processes in methods.items()}
    for name, runs in in_turn(
        {name: lambda one=one: in_new_folder(*one) for name, one in given.items()}, rounds
    ).items():
        taken = middle(runs)
        alone = shards * seconds / methods[name]
        yield {
            "method": name,
            "shards": shards,
            "work": f"{seconds:g} s {'computing' if computes else 'asleep'}",
            "seconds": taken,
            "overhead_ms": round((taken - alone) / shards * 1000, 2),
            "overhead_percent": round(100 * (taken / alone - 1), 2) if alone else "",
        }


def main() -> int:
    """Measure and show."""
    from measuring import make_parser, show

    parser = make_parser(__doc__, "10 shards of 10 ms, once")
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.05, help="of work in each shard")
    parser.add_argument("--work", choices=["sleep", "cpu"], default="sleep")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true", help="measure a Ray cluster on this machine too")
    parser.add_argument("--no-loop", action="store_true", help="leave out what has one process")
    options = parser.parse_args()
    if min(options.shards, options.processes, options.rounds) < 1 or options.seconds < 0:
        parser.error("expected shards, processes and rounds of at least 1, and seconds of at least 0")
    shards, seconds, rounds = (10, 0.01, 1) if options.quick else (options.shards, options.seconds, options.rounds)
    methods = {} if options.no_loop else {LOOP: 1, "local, 1 process": 1}
    methods[f"local, {options.processes} processes"] = options.processes
    if options.ray:
        import ray

        ray.init(num_cpus=options.processes, include_dashboard=False, log_to_driver=False)
        methods[f"ray, {options.processes} processes"] = options.processes
    show(rows(methods, shards, seconds, options.work == "cpu", rounds), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
