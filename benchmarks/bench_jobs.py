"""Time, memory and disk of every job that may be large, against the size of its input, with growth exponents.

    python benchmarks/bench_jobs.py [JOB ...] [--sizes 10000 100000 1000000] [--out FILE]

One row per job and size. Making the input and doing the job are processes of their own, of which the second counts:
its seconds, those on the processor (`cpu_seconds`, which other programs change little), the imports of the job
included, and the peak of its resident memory, with libraries and mapped pages. Texts are short and the judge answers at
once, so that what is measured is bixse.

- `convert`: rows of JSONL with grades to pairs.parquet.
- `load`: graded pairs as training reads them: load, group, index the known grades, draw 2,000 batches of 64 queries.
- `index`: encode documents of twelve words with a static encoder of 128 dimensions, and write the index.
- `mine`: search that corpus for 1,000 queries and write pairs; `mine from index`: the same by the index.
- `grade`: grade pairs in shards; `grade from ledger`: the same once all answers are known.

The growth exponent is the slope of log(time) or log(memory) over log(size) between the two largest sizes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import exponent, make_parser, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bixse.judging.judge import Answer, Question

BLOCK = 50_000
"""Rows of the input that are made at a time."""
QUERIES = 1_000
"""That are searched for."""
PER_QUERY = 8
"""Graded documents of a query that is loaded."""
TEXT_BYTES = 300
"""Length of each text that is loaded."""
BATCHES, BATCH_SIZE = 2_000, 64
"""Batches that are drawn, and queries of one."""


class Work(NamedTuple):
    """A job that is measured."""

    prepare: Callable[[Path, int], object]
    """Makes the input of a size in a folder."""
    run: Callable[[Path], str]
    """Does the job on what is in the folder; says what its time or its files consist of."""


def blocks_of(size: int) -> Iterator[range]:
    """Numbers of rows, a block at a time."""
    for start in range(0, size, BLOCK):
        yield range(start, min(size, start + BLOCK))


def rows_to_grade(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Pairs of 160 bytes, ten documents a query."""
    return {
        "query_id": [f"q{n // 10}" for n in numbers],
        "query": [f"what is known of the matter with the number {n // 10}?" for n in numbers],
        "document_id": [f"d{n}" for n in numbers],
        "document": [
            f"document {n} says this and that of the matter with the number {n // 10}, and more. " for n in numbers
        ],
    }


def rows_to_load(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Pairs of two texts of 300 bytes with a relevance, each document graded for two queries."""
    filling = "abcdefghij klmnop" * (TEXT_BYTES // 17)
    documents = (n // (2 * PER_QUERY) * PER_QUERY + n % PER_QUERY for n in numbers)
    return {
        "query": [f"query {n // PER_QUERY} {filling}"[:TEXT_BYTES] for n in numbers],
        "document": [f"document {document} {filling}"[:TEXT_BYTES] for document in documents],
        "relevance": [n % 4 / 3 for n in numbers],
    }


def rows_to_convert(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """The pairs to grade, with grades from 0 to 3."""
    return rows_to_grade(numbers) | {"grade": [n % 4 for n in numbers]}


def write_pairs(
    folder: Path, size: int, rows: Callable[[Sequence[int]], dict[str, list[Any]]], name: str = "pairs.parquet"
) -> None:
    """Pairs in a file whose name says the format."""
    import pyarrow as pa

    from bixse.files.rows import write_rows

    schema = pa.RecordBatch.from_pydict(rows([0])).schema
    batches = (pa.RecordBatch.from_pydict(rows(numbers), schema) for numbers in blocks_of(size))
    write_rows(pa.RecordBatchReader.from_batches(schema, batches), folder / name)


def convert_rows(folder: Path) -> str:
    """Convert them."""
    from bixse.preparing.convert import convert
    from bixse.preparing.convert_settings import ConvertSettings

    convert(ConvertSettings(source="table", path=folder / "rows.jsonl", scale=(0, 3)), folder / "out")
    return bytes_of(folder / "out")


def load_pairs(folder: Path) -> str:
    """Load and collate, without an encoder."""
    import torch

    from bixse.data.pairs_files import load_graded_pairs
    from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

    def preprocess(texts: Sequence[str], **_: Any) -> dict[str, torch.Tensor]:
        """Tokens are not what is measured."""
        return {"input_ids": torch.tensor([[len(text)] for text in texts])}

    times = [time.perf_counter()]
    pairs = load_graded_pairs(folder / "pairs.parquet")
    times.append(time.perf_counter())
    dataset, plan = GroupDataset(pairs, documents_per_query=4), BatchPlan(pairs, BATCH_SIZE)
    collate = GradedCollator(preprocess, pairs)
    times.append(time.perf_counter())
    drawn = sum(1 for numbers in islice(plan, BATCHES) if collate([dataset[number] for number in numbers]))
    times.append(time.perf_counter())
    load, group, batches = (round(after - before, 1) for before, after in pairwise(times))
    return f"load {load} s, group {group} s, {drawn} batches {batches} s"


def write_corpus(folder: Path, size: int) -> None:
    """A static encoder, and documents and queries of twelve and four words of its vocabulary."""
    import numpy as np

    from bixse.lab.studies.study_inputs import save_static_student

    save_static_student(folder / "model")
    tokens = json.loads((folder / "model" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in tokens if word.isascii() and word.isalpha() and len(word) > 3)
    for name, rows, length in (("corpus", size, 12), ("queries", QUERIES, 4)):
        generator = np.random.default_rng(len(name))
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(rows):
                text = " ".join(words[place] for place in generator.integers(len(words), size=length))
                file.write(json.dumps({"_id": f"{name[0]}{number}", "title": "", "text": text}) + "\n")


def write_index(folder: Path) -> str:
    """Encode the corpus and write the index."""
    from bixse.scale.index.index_settings import IndexSettings
    from bixse.scale.index.make_index import make_index

    make_index(IndexSettings(model=str(folder / "model"), collection=folder, cache="none"), folder / "index")
    return bytes_of(folder / "index")


def indexed_before(folder: Path, size: int) -> None:
    """A corpus with its index."""
    write_corpus(folder, size)
    write_index(folder)


def mine_pairs(folder: Path, retriever: str) -> str:
    """Mine with the encoder or with the index."""
    from bixse.preparing.mine import mine
    from bixse.preparing.mine_settings import MineConfig

    config = MineConfig(collection=folder, retrievers=(str(folder / retriever),), cache="none")
    return f"{mine(config, folder / 'out').pairs} pairs"


def bytes_of(*places: Path) -> str:
    """What is on disk: name -> bytes."""
    sizes = {place.name: sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) for place in places}
    return ", ".join(f"{name} {size:,} bytes" for name, size in sizes.items())


class InstantJudge:
    """Draws probabilities and grades at once; a replay judge would hold all its judgements in memory."""

    name, at_once, warnings = "instant", 1, ()
    identity = {"model": "instant", "mode": "verbal"}  # noqa: RUF012

    def __init__(self) -> None:
        from bixse.relevance import GradeScale

        self.scale = GradeScale(0, 3)

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        import numpy as np

        from bixse.judging.judge import Answer, Usage

        generator, drawn = np.random.default_rng(0), []
        for question in questions:
            drawn = drawn or generator.dirichlet([0.5] * 4, BLOCK).tolist()
            shares = drawn.pop()
            grade = sum(place * share for place, share in enumerate(shares))
            usage = Usage(300, 0, 1)
            yield question, Answer("graded", "verbal", tuple(shares), grade, grade, grade, "2", usage, 0.0, self.name)

    def count_tokens(self, questions: Any) -> None:
        """Nothing is sent anywhere."""

    def close(self) -> None:
        """Nothing is held open."""


def grade_pairs(folder: Path, out: str = "out") -> str:
    """Grade them in shards of 50,000, in this process, with a ledger in a folder."""
    from bixse.judging.grade_shards import grade_shards
    from bixse.judging.open_judge import GradeConfig

    config = GradeConfig(judge="instant", pairs=folder / "pairs.parquet", ledger=folder / "ledger")
    assert grade_shards(config, folder / out, InstantJudge()).complete
    return bytes_of(folder / "ledger", *(folder / out / name for name in ("judgements.parquet", "pairs.parquet")))


def graded_before(folder: Path, size: int) -> None:
    """Pairs whose answers are all in the ledger."""
    write_pairs(folder, size, rows_to_grade)
    grade_pairs(folder)


JOBS = {
    "convert": Work(partial(write_pairs, rows=rows_to_convert, name="rows.jsonl"), convert_rows),
    "load": Work(partial(write_pairs, rows=rows_to_load), load_pairs),
    "index": Work(write_corpus, write_index),
    "mine": Work(write_corpus, partial(mine_pairs, retriever="model")),
    "mine from index": Work(indexed_before, partial(mine_pairs, retriever="index")),
    "grade": Work(partial(write_pairs, rows=rows_to_grade), grade_pairs),
    "grade from ledger": Work(graded_before, partial(grade_pairs, out="again")),
}
"""Name -> what is measured."""


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One table row a job and size."""
    for name in options.jobs or JOBS:
        for size in sorted(options.sizes):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, name, "--in-folder", folder]
                subprocess.run([*command, "--prepare", str(size)], check=True, stdout=subprocess.PIPE)
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds, cpu_seconds, peak, said = done.stdout.splitlines()[-1].split(maxsplit=3)
            yield {
                "job": name,
                "size": size,
                "seconds": round(float(seconds), 1),
                "cpu_seconds": round(float(cpu_seconds), 1),
                "us_each": round(1e6 * float(seconds) / size, 1),
                "peak_mib": round(float(peak)),
                "said": said,
            }


def main() -> None:
    """Measure and print the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"one of {', '.join(JOBS)}")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="of the input")
    parser.add_argument("--in-folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.jobs) - set(JOBS)):
        parser.error(f"got {unknown[0]!r}; expected one of {', '.join(JOBS)}")
    if min(options.sizes) < 1:
        parser.error(f"got the size {min(options.sizes)}; expected at least 1")
    if options.in_folder is None:
        rows = show(rows_of(options), options.out)
        print(f"\n{'job':<18} {'time grows as N^':>16} {'processor as N^':>16} {'memory as N^':>13}")
        for job in dict.fromkeys(row["job"] for row in rows):
            own = [row for row in rows if row["job"] == job]
            sizes, what = [row["size"] for row in own], ("seconds", "cpu_seconds", "peak_mib")
            grown = [exponent(sizes, [row[name] for row in own], 2) for name in what]
            print(f"{job:<18} {grown[0]:>16.2f} {grown[1]:>16.2f} {grown[2]:>13.2f}")
    elif options.prepare is not None:
        JOBS[options.jobs[0]].prepare(options.in_folder, options.prepare)
    else:
        started = time.perf_counter()
        said = JOBS[options.jobs[0]].run(options.in_folder)
        took, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(took, time.process_time(), peak, said)


if __name__ == "__main__":
    main()
