"""Seconds and memory of loading graded pairs and drawing batches of them, without an encoder.

    python benchmarks/bench_pairs.py [--pairs 1000000] [--folder DIR] [--batches 2000]

Writes pairs of 300-byte texts as Parquet (eight documents per query, each document graded for two queries), then
loads them and collates batches of 64 queries with 4 documents each in a process of its own. The files stay for the next
call. Peak memory is that of the whole process, libraries and memory-mapped pages included.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PER_QUERY = 8
"""Graded documents of each query."""
TEXT_BYTES = 300
"""Length of each text."""
ROWS_PER_BLOCK = 100_000
"""Rows that are written at a time."""
BATCH_SIZE = 64
"""Queries of a batch."""


def write_pairs(path: Path, number: int) -> None:
    """Pairs in blocks, always the same ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"query": pa.string(), "document": pa.string(), "relevance": pa.float64()})
    filling = "".join(random.Random(0).choices("abcdefghij klmnop", k=TEXT_BYTES))
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, number, ROWS_PER_BLOCK):
            rows = range(start, min(start + ROWS_PER_BLOCK, number))
            documents = (row // (2 * PER_QUERY) * PER_QUERY + row % PER_QUERY for row in rows)
            columns = {
                "query": [f"query {row // PER_QUERY} {filling}"[:TEXT_BYTES] for row in rows],
                "document": [f"document {document} {filling}"[:TEXT_BYTES] for document in documents],
                "relevance": [row % 4 / 3 for row in rows],
            }
            writer.write_table(pa.table(columns, schema))


def measure(path: Path, batches: int) -> None:
    """Load and collate, and print what it took."""
    import torch

    from bixse.data.pairs_files import load_graded_pairs
    from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

    def preprocess(texts: Sequence[str], **_: Any) -> dict[str, torch.Tensor]:
        """Tokens are not what is measured."""
        return {"input_ids": torch.tensor([[len(text)] for text in texts])}

    started = last = time.perf_counter()

    def report(step: str) -> None:
        nonlocal last
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak = int(status["VmHWM"].split()[0]) / 2**10
        print(f"{step:24} {time.perf_counter() - last:8.2f} s   peak {peak:8.0f} MiB", flush=True)
        last = time.perf_counter()

    report("libraries")
    pairs = load_graded_pairs(path)
    report(f"load {len(pairs):,} pairs")
    dataset = GroupDataset(pairs, documents_per_query=4)
    plan = BatchPlan(pairs, BATCH_SIZE)
    report(f"group {len(dataset):,} queries")
    collate = GradedCollator(preprocess, pairs)
    report("known grades")
    drawn = sum(1 for numbers in islice(plan, batches) if collate([dataset[number] for number in numbers]))
    report(f"{drawn:,} batches")
    print(f"{'all':24} {time.perf_counter() - started:8.2f} s")


def main() -> None:
    """Write the pairs where they are not there, and measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bench-pairs")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    arguments = parser.parse_args()
    path = arguments.folder / f"{arguments.pairs}.parquet"
    if not path.is_file():
        write_pairs(path, arguments.pairs)
    if arguments.here:
        measure(path, arguments.batches)
    else:
        subprocess.run([sys.executable, *sys.argv, "--here"], check=True)


if __name__ == "__main__":
    main()
