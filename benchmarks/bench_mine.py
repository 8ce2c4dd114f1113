"""Time and peak memory of `bixse mine` against the number of documents, each run in a process of its own.

    python benchmarks/bench_mine.py [--documents 10000 100000 1000000] [--queries 1000] [--out FILE] [--quick]

The encoder is the static student of the studies (128 dimensions), which encodes so fast that what is left shows. A
document has twelve words drawn from the encoder's vocabulary, a query four; embeddings are kept nowhere. One row a
number of documents and way: `model` encodes and searches, `index` searches an index that was made before. `seconds` and
`peak_mb` (of the resident memory, with all that is mapped) are of the whole command, its imports included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.studies.engine.static_student import save_static_student
from measuring import make_parser, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def write_collection(folder: Path, words: Sequence[str], documents: int, queries: int) -> Path:
    """Documents and queries of random words."""
    folder.mkdir()
    for name, rows, length in (("corpus", documents, 12), ("queries", queries, 4)):
        generator = np.random.default_rng(len(name))
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(rows):
                text = " ".join(words[place] for place in generator.integers(len(words), size=length))
                file.write(json.dumps({"_id": f"{name[0]}{number}", "title": "", "text": text}) + "\n")
    return folder


def command(*arguments: object) -> tuple[float, float]:
    """Seconds and peak memory in MB of a `bixse` command; on Linux alone."""
    started = time.perf_counter()
    child = f"import sys; from bixse.cli.main import main; code = main({list(map(str, arguments))!r}); "
    child += "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True)
    return time.perf_counter() - started, int(done.stdout.split()[-1]) * 1024 / 1e6


def rows(sizes: Sequence[int], queries: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Two rows a number of documents."""
    save_static_student(folder / "model")
    tokens = json.loads((folder / "model" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in tokens if word.isascii() and word.isalpha() and len(word) > 3)
    for size in sizes:
        collection = write_collection(folder / f"collection-{size}", words, size, queries)
        settings = ("--collection", collection, "--cache", "none", "--json", "--out")
        command("index", folder / "model", *settings, folder / f"index-{size}")
        for name, retriever in (("model", folder / "model"), ("index", folder / f"index-{size}")):
            found = command("mine", "--retriever", retriever, *settings, folder / f"mined-{name}-{size}")
            yield {
                "documents": size,
                "from": name,
                "queries": queries,
                "seconds": round(found[0], 1),
                "peak_mb": round(found[1]),
            }


def main() -> None:
    """Measure and show."""
    parser = make_parser(__doc__, quick="300 documents and 10 queries")
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=1_000)
    options = parser.parse_args()
    if min([*options.documents, options.queries]) < 1:
        parser.error("expected numbers of at least 1")
    sizes, queries = ([300], 10) if options.quick else (options.documents, options.queries)
    with tempfile.TemporaryDirectory() as folder:
        show(rows(sizes, queries, Path(folder)), options.out)


if __name__ == "__main__":
    main()
