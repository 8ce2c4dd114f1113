"""Time and peak memory of jobs that go through an engine against the size of their input.

    python benchmarks/bench_jobs.py [JOB ...] [--sizes 10000 100000 1000000] [--out FILE]

One row per job and size, each in a process of its own; making the input is not counted. Peak memory is that of the
resident process, libraries included: of a job whose memory does not grow with its input it is the same for every size.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from measuring import make_parser, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bixse.grading.judge import Answer, Question

BLOCK = 50_000
"""Rows of the input that are made at a time."""


class Work(NamedTuple):
    """A job that is measured."""

    prepare: Callable[[Path, int], None]
    """Makes the input of a size in a folder."""
    run: Callable[[Path], None]
    """Does the job on what is in the folder."""


def write_pairs(folder: Path, size: int) -> None:
    """Pairs of 160 bytes, ten documents a query."""
    from bixse.data.io.parquet import save_table

    schema = pa.schema({name: pa.string() for name in ("query_id", "query", "document_id", "document")})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, size, BLOCK):
            numbers = range(start, min(size, start + BLOCK))
            columns = [
                [f"q{n // 10}" for n in numbers],
                [f"what is known of the matter with the number {n // 10}?" for n in numbers],
                [f"d{n}" for n in numbers],
                [
                    f"document {n} says this and that of the matter with the number {n // 10}, and more. "
                    for n in numbers
                ],
            ]
            yield pa.record_batch(columns, schema)

    save_table(pa.RecordBatchReader.from_batches(schema, batches()), folder / "pairs.parquet")


class InstantJudge:
    """Grades by the length of a document, at once; a replay judge would hold all its judgements in memory."""

    name, at_once, warnings = "instant", 1, ()
    identity = {"model": "instant", "mode": "verbal"}  # noqa: RUF012

    def __init__(self) -> None:
        from bixse.grading.judge import Answer, Usage
        from bixse.relevance import GradeScale

        self.scale = GradeScale(0, 3)
        self._answers = [
            Answer(
                "graded",
                "verbal",
                (0.1, 0.2, 0.3, 0.4),
                grade / 2,
                grade / 2,
                grade / 2,
                "2",
                Usage(300, 0, 1),
                0.0,
                self.name,
            )
            for grade in range(7)
        ]

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        for question in questions:
            yield question, self._answers[len(question.document) % 7]

    def count_tokens(self, questions: Any) -> None:
        """Nothing is sent anywhere."""

    def close(self) -> None:
        """Nothing is held open."""


def grade_pairs(folder: Path, out: str = "out") -> None:
    """Grade them in shards of 50,000, in this process, with a ledger in a folder."""
    from bixse.grading.open_judge import GradeConfig
    from bixse.grading.shards.grade_shards import grade_shards

    config = GradeConfig(judge="instant", pairs=folder / "pairs.parquet", ledger=folder / "ledger")
    assert grade_shards(config, folder / out, InstantJudge()).complete


def graded_before(folder: Path, size: int) -> None:
    """Pairs whose answers are all in the ledger."""
    write_pairs(folder, size)
    subprocess.run([sys.executable, __file__, "grade", "--run-in", str(folder)], check=True, capture_output=True)


JOBS = {
    "grade": Work(write_pairs, grade_pairs),
    "grade from ledger": Work(graded_before, lambda folder: grade_pairs(folder, "again")),
}
"""Name -> what is measured."""


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One table row a job and size."""
    for name in options.jobs or JOBS:
        for size in sorted(options.sizes):
            with tempfile.TemporaryDirectory() as folder:
                JOBS[name].prepare(Path(folder), size)
                command = [sys.executable, __file__, name, "--run-in", folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, peak = map(float, done.stdout.split())
            yield {
                "job": name,
                "size": size,
                "seconds": round(seconds, 1),
                "us_each": round(1e6 * seconds / size, 1),
                "peak_mib": round(peak),
            }


def main() -> None:
    """Measure and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"one of {', '.join(JOBS)}")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="of the input")
    parser.add_argument("--run-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.jobs) - set(JOBS)):
        parser.error(f"got {unknown[0]!r}; expected one of {', '.join(JOBS)}")
    if options.run_in is None:
        show(rows_of(options), options.out)
        return
    started = time.perf_counter()
    JOBS[options.jobs[0]].run(options.run_in)
    print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
