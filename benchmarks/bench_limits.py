"""What grows faster than the data, or ends at a size: the figures of docs/cost.md that no job of moderate size shows.

    python benchmarks/bench_limits.py [--rows 50000] [--out FILE]

Seconds are those of the processor; memory is what Python holds at the peak. One row per figure:

- an answer of an earlier shard that a shard of grading looks through for its own keys, its hash the first time, and
  a key that is looked for;
- an answer that is claimed and written in a ledger;
- a row group in the footer of the texts of an index, of which each shard of `index` and `mine` reads all;
- a file of embeddings, all of which each shard of `mine --retriever INDEX` opens;
- a document, a known pair (`--known`) and a chosen pair of `mine`.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from safetensors import safe_open

from bixse.data.collection import Collection, Document, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.files.parquet import table_writer
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import OPEN, StoredRow, make_folder, seal
from bixse.preparing.mine_settings import MineConfig, read_inputs
from bixse.preparing.mined_pairs import MinedPair, save_mined_pairs
from bixse.scale.index.index_files import GROUP_ROWS, MOST_GROUPS, SCHEMA, TENSOR, embeddings_content, read_texts
from measuring import OUT, Option, options, show, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT = "says this and that of the matter, and what else there is to say of it, and more. " * 4
"""Of a document, with its number before it: some 330 bytes."""
SEGMENTS = 20
"""Sealed segments that are looked through."""
TRIES = 10
"""Times that this is done; the fastest counts."""
FILES = 400
"""Files of embeddings that are opened."""


def key(number: int) -> str:
    """Of a question."""
    return sha256(str(number).encode()).hexdigest()


def looked_through(folder: Path, rows: int) -> tuple[float, float, float]:
    """Seconds an answer of others, for a shard of as many rows as a segment; of its hash; of a key of the shard."""
    make_folder(folder)
    answer = Answer("graded", "verbal", (0.1, 0.2, 0.3, 0.4), 2.0, 2.0, 2.0, "2").to_json()
    wanted = [key(number) for number in range(rows)]

    def look() -> float:
        return timed(lambda: Ledger(folder).load(wanted)).cpu_seconds

    first, looks = 0.0, []
    for segment in range(1, SEGMENTS + 1):
        numbers = range(segment * rows, (segment + 1) * rows)
        stored = [StoredRow(key(n), f"q{n}", f"d{n}", "v", 0, "graded", "verbal", answer, 0.0) for n in numbers]
        seal(stored, folder / f"segment-{segment:016x}{OPEN}")
        if segment in (1, SEGMENTS):
            first = look()
            looks.append(min(look() for _ in range(TRIES)))
    few, many = looks
    answers = (SEGMENTS - 1) * rows
    each = (many - few) / answers
    return each, (first - many) / answers, few / rows - each


def claimed_and_written(folder: Path, rows: int) -> float:
    """Seconds an answer that is claimed and written, on the clock: the disk counts."""
    answer = Answer("graded", "verbal", grade=2.0)
    with Ledger(folder) as ledger:
        ledger.load(map(key, range(rows // 10)))
        started = time.perf_counter()
        for number in range(rows // 10):
            ledger.claim(key(number))
            ledger.write(key(number), answer)
        return (time.perf_counter() - started) / (rows // 10)


def footer(folder: Path, groups: int) -> tuple[float, float]:
    """Bytes of a row group in the footer, and seconds it takes to read them, without the one group that is wanted."""
    folder.mkdir()
    path, few = folder / "documents.parquet", folder / "few.parquet"
    for file, number in ((path, groups), (few, 1)):
        with table_writer(file, SCHEMA) as writer:
            for group in range(number):
                writer.write_table(pa.table([[f"d{group}"], [""], [f"{group} {TEXT}"]], SCHEMA))
    with path.open("rb") as written:
        written.seek(-8, 2)
        size = int.from_bytes(written.read(4), "little")
    seconds = [timed(lambda path=path: read_texts(path, 0, 1)).cpu_seconds for path in (few, path, few, path)]
    return size / groups, max(0.0, min(seconds[1::2]) - min(seconds[::2])) / groups


def opened(folder: Path) -> tuple[float, float]:
    """Seconds a file of embeddings, and places in the memory map of the process that it keeps."""
    folder.mkdir()
    content = embeddings_content(np.zeros((GROUP_ROWS, 64), dtype=np.float32), "float16")
    for number in range(FILES):
        (folder / f"{number}.safetensors").write_bytes(content)
    maps, held = Path("/proc/self/maps"), []
    before = len(maps.read_text().splitlines()) if maps.exists() else 0

    def open_all() -> None:
        for number in range(FILES):
            with safe_open(str(folder / f"{number}.safetensors"), framework="pt") as file:
                held.append(file.get_tensor(TENSOR))

    seconds = timed(open_all).cpu_seconds / FILES
    return seconds, (len(maps.read_text().splitlines()) - before) / FILES if maps.exists() else 0.0


def held_by(work: Callable[[], object]) -> float:
    """Bytes that Python holds at the peak of a call, beyond those it held before."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak)


def mining(folder: Path, rows: int) -> tuple[float, float, float]:
    """Bytes of memory a document, a known pair and a chosen pair; each pair has a document of its own.

    Blocks of the files that are read count too, so it takes many rows.
    """
    texts = {f"d{number}": Document("", f"{number} {TEXT}") for number in range(rows)}
    save_collection(Collection("limits", texts, {f"q{n}": f"query {n}" for n in range(rows // 10)}), folder)
    known = [
        {"query_id": f"q{number // 10}", "query": f"query {number // 10}", "document_id": f"d{number}"}
        | {"document": texts[f"d{number}"].content, "relevance": 1.0}
        for number in range(rows // 10 * 10)
    ]
    save_graded_pairs(GradedPairs.from_rows(known), folder / "known.parquet")
    config = MineConfig(collection=folder)
    with_known = config.model_copy(update={"known": folder / "known.parquet"})
    read_inputs(config)  # what is imported then does not count
    less, more = (held_by(lambda config=config: read_inputs(config)) for config in (config, with_known))

    def chosen() -> None:
        pairs = [MinedPair(f"q{n}", f"query {n}", f"d{n}", f"{n} {TEXT}", None, "demo:1", 1) for n in range(rows)]
        save_mined_pairs(pairs, folder / "pairs.parquet")

    return less / rows, (more - less) / rows, held_by(chosen) / rows


def rows_of(rows: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one table row per figure."""
    look, first, own = looked_through(folder / "ledger", rows)
    group, read = footer(folder / "texts", MOST_GROUPS if rows >= 50_000 else rows)
    file, maps = opened(folder / "files")
    document, known, chosen = mining(folder / "mining", 10 * rows)
    for what, value, unit in (
        ("answer looked through", 1e6 * look, "us"),
        ("answer looked through, once its hash", 1e6 * first, "us"),
        ("key that is looked for", 1e6 * own, "us"),
        ("answer claimed and written", 1e6 * claimed_and_written(folder / "own", rows), "us"),
        ("row groups of the texts of an index, at most", MOST_GROUPS, "groups"),
        ("row group in the footer of the texts", group, "bytes"),
        ("row group in the footer of the texts, read", 1e6 * read, "us"),
        ("file of embeddings opened", 1e6 * file, "us"),
        ("file of embeddings opened, memory maps", maps, "maps"),
        ("document of mine", document, "bytes"),
        ("known pair of mine", known, "bytes"),
        ("chosen pair of mine", chosen, "bytes"),
    ):
        yield {"value": float(f"{value:.3g}"), "unit": unit, "what": what}


def main() -> None:
    """Measure and show."""
    given = options(__doc__, out=OUT, rows=Option(50_000, "answers of a segment, documents, pairs"))
    if given.rows < 100:
        raise SystemExit(f"got {given.rows} rows; expected at least 100")
    with tempfile.TemporaryDirectory() as folder:
        show(rows_of(given.rows, Path(folder)), given.out)


if __name__ == "__main__":
    main()
