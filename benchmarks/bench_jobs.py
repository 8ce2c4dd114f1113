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

import json
import resource
import tempfile
import time
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import OUT, Option, alone, options, show, show_growth

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bixse.judging.judge import Answer, Question

BLOCK = 50_000
"""Rows of the input that are made at a time."""
QUERIES = 1_000
"""Queries that are searched for."""
PER_QUERY = 8
"""Graded documents of a query that is loaded."""
TEXT_BYTES = 300
"""Length of each text that is loaded."""
BATCHES, BATCH_SIZE = 2_000, 64
"""Batches that are drawn, and queries of one."""


class Work(NamedTuple):
    """A job that is measured: a function that makes the input of a size in a folder, and one that does the job there.

    The second says what its time or its files consist of.
    """

    prepare: Callable[[Path, int], object]
    run: Callable[[Path], str]


def rows_to_grade(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Make pairs of 160 bytes, ten documents per query."""
    document = "document {} says this and that of the matter with the number {}, and more. "
    return {
        "query_id": [f"q{n // 10}" for n in numbers],
        "query": [f"what is known of the matter with the number {n // 10}?" for n in numbers],
        "document_id": [f"d{n}" for n in numbers],
        "document": [document.format(n, n // 10) for n in numbers],
    }


def rows_to_convert(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Make the pairs to grade, with grades from 0 to 3."""
    return rows_to_grade(numbers) | {"grade": [n % 4 for n in numbers]}


def rows_to_load(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Make pairs of two texts of 300 bytes with a relevance, each document graded for two queries."""
    filling = "abcdefghij klmnop" * (TEXT_BYTES // 17)
    documents = (n // (2 * PER_QUERY) * PER_QUERY + n % PER_QUERY for n in numbers)
    return {
        "query": [f"query {n // PER_QUERY} {filling}"[:TEXT_BYTES] for n in numbers],
        "document": [f"document {document} {filling}"[:TEXT_BYTES] for document in documents],
        "relevance": [n % 4 / 3 for n in numbers],
    }


def write_pairs(
    folder: Path, size: int, rows: Callable[[Sequence[int]], dict[str, list[Any]]], name: str = "pairs.parquet"
) -> None:
    """Write pairs to a file whose name says the format."""
    import pyarrow as pa

    from bixse.files.rows import write_rows

    schema = pa.RecordBatch.from_pydict(rows([0])).schema
    blocks = (range(start, min(size, start + BLOCK)) for start in range(0, size, BLOCK))
    batches = (pa.RecordBatch.from_pydict(rows(block), schema) for block in blocks)
    write_rows(pa.RecordBatchReader.from_batches(schema, batches), folder / name)


def convert_rows(folder: Path) -> str:
    """Convert rows of JSONL."""
    from bixse.converting.convert import convert
    from bixse.converting.convert_settings import ConvertSettings

    convert(ConvertSettings(source="table", path=folder / "rows.jsonl", scale=(0, 3)), folder / "out")
    return bytes_of(folder / "out")


def load_pairs(folder: Path) -> str:
    """Load and collate, without an encoder."""
    import torch

    from bixse.data.pairs_files import load_graded_pairs
    from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

    def preprocess(texts: Sequence[str], **_: Any) -> dict[str, torch.Tensor]:
        """Make tokens of no meaning: they are not what is measured."""
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


def write_corpus(folder: Path, size: int, indexed: bool = False) -> None:
    """Write a static encoder, and documents and queries of twelve and four words of its vocabulary."""
    import numpy as np

    from bixse.encoders.loading.build import build_encoder
    from bixse.encoders.loading.static import static_encoder
    from bixse.encoders.relevance_model import save_whole

    save_whole(static_encoder(build_encoder("demo", device="cpu"), 128), folder / "model")
    tokens = json.loads((folder / "model" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in tokens if word.isascii() and word.isalpha() and len(word) > 3)
    for name, rows, length in (("corpus", size, 12), ("queries", QUERIES, 4)):
        generator = np.random.default_rng(len(name))
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(rows):
                text = " ".join(words[position] for position in generator.integers(len(words), size=length))
                file.write(json.dumps({"_id": f"{name[0]}{number}", "title": "", "text": text}) + "\n")
    if indexed:
        write_index(folder)


def write_index(folder: Path) -> str:
    """Encode the corpus and write the index."""
    from bixse.index.index_settings import IndexSettings
    from bixse.index.make_index import make_index

    make_index(IndexSettings(model=str(folder / "model"), collection=folder, cache="none"), folder / "index")
    return bytes_of(folder / "index")


def mine_pairs(folder: Path, retriever: str) -> str:
    """Mine with the encoder or with the index."""
    from bixse.mining.mine import mine_into
    from bixse.mining.mine_settings import MineConfig

    config = MineConfig(collection=folder, retrievers=(str(folder / retriever),), cache="none")
    return f"{mine_into(config, folder / 'out').pairs} pairs"


def bytes_of(*places: Path) -> str:
    """Say how many bytes files or folders have."""
    sizes = {path.name: sum(f.stat().st_size for f in (path, *path.rglob("*")) if f.is_file()) for path in places}
    return ", ".join(f"{name} {size:,} bytes" for name, size in sizes.items())


class InstantJudge:
    """A judge that draws probabilities and grades at once; a replay judge would hold all its judgements in memory."""

    name, at_once, warnings, doubts = "instant", 1, (), ()
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
            grade = sum(position * share for position, share in enumerate(shares))
            usage = Usage(300, 0, 1)
            yield question, Answer("graded", "verbal", tuple(shares), grade, grade, grade, "2", usage, 0.0, self.name)

    def count_tokens(self, questions: Any) -> None:
        """Nothing is sent anywhere."""

    def close(self) -> None:
        """Nothing is held open."""


def grade_pairs(folder: Path, out: str = "out") -> str:
    """Grade pairs in shards of 50,000, in this process, with a ledger in a folder."""
    from bixse.data.pairs_files import parquet_pairs
    from bixse.judging.grade import ROWS, grade_into
    from bixse.judging.open_judge import GradeConfig

    pairs = folder / "pairs.parquet"
    engine = {"shards": -(-parquet_pairs(pairs)[1] // ROWS)}
    config = GradeConfig(judge={"name": "instant"}, pairs=pairs, ledger=folder / "ledger", engine=engine)
    assert grade_into(config, InstantJudge(), folder / out).complete
    return bytes_of(folder / "ledger", *(folder / out / name for name in ("judgements.parquet", "pairs.parquet")))


def graded_before(folder: Path, size: int) -> None:
    """Write pairs whose answers are all in the ledger."""
    write_pairs(folder, size, rows_to_grade)
    grade_pairs(folder)


JOBS = {
    "convert": Work(partial(write_pairs, rows=rows_to_convert, name="rows.jsonl"), convert_rows),
    "load": Work(partial(write_pairs, rows=rows_to_load), load_pairs),
    "index": Work(write_corpus, write_index),
    "mine": Work(write_corpus, partial(mine_pairs, retriever="model")),
    "mine from index": Work(partial(write_corpus, indexed=True), partial(mine_pairs, retriever="index")),
    "grade": Work(partial(write_pairs, rows=rows_to_grade), grade_pairs),
    "grade from ledger": Work(graded_before, partial(grade_pairs, out="again")),
}
"""Name -> what is measured."""


def measure(name: str, folder: Path) -> tuple[float, float, float, str]:
    """Do a job in this (fresh) process: seconds, those of the process, its peak in MiB, and what the job said."""
    started = time.perf_counter()
    summary = JOBS[name].run(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.perf_counter() - started, time.process_time(), peak, summary


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one table row per job and size."""
    for name in given.jobs:
        for size in sorted(given.sizes):
            with tempfile.TemporaryDirectory() as folder:
                alone(JOBS[name].prepare, Path(folder), size)
                seconds, cpu_seconds, peak, summary = alone(measure, name, Path(folder))
            yield {
                "job": name,
                "size": size,
                "seconds": round(seconds, 1),
                "cpu_seconds": round(cpu_seconds, 1),
                "us_each": round(1e6 * seconds / size, 1),
                "peak_mib": round(peak),
                "said": summary,
            }


def main() -> None:
    """Measure and print the tables."""
    given = options(
        __doc__,
        out=OUT,
        jobs=Option(list(JOBS), f"of {', '.join(JOBS)}", list(JOBS), positional=True),
        sizes=Option([10_000, 100_000, 1_000_000], "of the input"),
    )
    rows = show(rows_of(given), given.out)
    headings = {"seconds": "time grows as N^", "cpu_seconds": "processor as N^", "peak_mib": "memory as N^"}
    show_growth(rows, "job", headings, 2)


if __name__ == "__main__":
    main()
