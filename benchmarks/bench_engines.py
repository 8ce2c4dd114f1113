"""What an engine costs per shard: the local engine against a plain loop over the same shards.

    python benchmarks/bench_engines.py [--shards 100] [--seconds 0.05] [--work sleep] [--processes 2] [--rounds 3]
        [--out FILE] [--quick]

Each shard sleeps, or computes, for so many seconds and writes one small file; through an engine it is marked too. The
start of processes is counted. `overhead` is the time above that of shards x seconds / processes, in milliseconds per
shard: of the plain loop it is the writing alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import write_atomically
from bixse.engines.job import Job
from bixse.engines.processes import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def in_new_folder(shards: int, seconds: float, computes: bool, processes: int) -> None:
    """Do all shards; no processes: by a plain loop."""
    with tempfile.TemporaryDirectory() as folder:
        job = Wait(Path(folder), seconds, computes)
        if not processes:
            for shard in range(shards):
                job.run(shard, None)
            return
        failed = [ended.error for ended in LocalEngine(processes).map(job, range(shards)) if ended.error]
        if failed:
            raise SystemExit(failed[0])


def rows(shards: int, seconds: float, computes: bool, processes: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Median times."""
    from measuring import in_turn, middle  # here: processes import this script again, and need it not

    numbers = {"plain loop": 0, "local, 1 process": 1, f"local, {processes} processes": processes}
    given = {name: (shards, seconds, computes, number) for name, number in numbers.items()}
    methods = {name: lambda one=one: in_new_folder(*one) for name, one in given.items()}
    for name, runs in in_turn(methods, rounds).items():
        taken = middle(runs)
        alone = shards * seconds / max(1, numbers[name])
        yield {
            "method": name,
            "shards": shards,
            "work": f"{seconds:g} s {'computing' if computes else 'asleep'}",
            "seconds": taken,
            "overhead, ms a shard": round((taken - alone) / shards * 1000, 2),
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
    options = parser.parse_args()
    if min(options.shards, options.processes, options.rounds) < 1 or options.seconds < 0:
        parser.error("expected shards, processes and rounds of at least 1, and seconds of at least 0")
    shards, seconds, rounds = (10, 0.01, 1) if options.quick else (options.shards, options.seconds, options.rounds)
    show(rows(shards, seconds, options.work == "cpu", options.processes, rounds), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
