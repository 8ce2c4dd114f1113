"""How long `bixse index` takes to build each kind of index, how fast each answers, and how much of the best it finds.

    python benchmarks/bench_search_index.py [--documents 100000] [--dimensions 384] [--queries 200] [--out FILE]

Embeddings are synthetic: a document is a normalised random mixture of `--rank` random directions with a tenth as much
noise in all dimensions, and queries are drawn alike. Embeddings of texts lie near such a space of fewer dimensions;
for points without any structure in 384 dimensions no approximate search works well, and none is needed. Encoding is
not timed, as it depends on the model alone: everything else is what `bixse index` and `bixse search` do. Times are
processor times, over all threads, from which other programs take little away; OMP_NUM_THREADS sets the threads (1
without it), and with one they are what a user waits on an idle machine with a warm disk.

Columns:

- `kind`, and its `settings` as the index keeps them; of hnsw and ivf the defaults and others;
- `build_seconds`: shards and texts for the first row; then the change into this kind, its recall measured on 200 titles
  included; a second row of a kind keeps what was built, and only measures;
- `megabytes` on the disk; `open_seconds`: `SearchIndex` without loading a model, and a first search with its checksums;
- `query_ms`, `query_ms_p95`: median and 95th percentile of the time of one query alone, its ten documents with titles
  and texts; `batch_ms`: of a query among all;
- `recall_at_10`, `recall_at_100`: against exact search, on queries that no title is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import faiss
import numpy as np
import torch

from bixse.retrieval.approximate import SAME_SCORE
from bixse.retrieval.index import SearchIndex
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import rewrite_index
from bixse.retrieval.index_kind import KindSettings
from bixse.retrieval.index_manifest import Knobs, ModelIdentity
from measuring import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMNS = (
    "kind", "settings", "documents", "dimensions", "build_seconds", "megabytes", "open_seconds", "query_ms",
    "query_ms_p95", "batch_ms", "recall_at_10", "recall_at_100",
)  # fmt: skip
SETTINGS: tuple[KindSettings, ...] = (
    KindSettings("hnsw", Knobs(ef_search=64), target=0.0),
    KindSettings("hnsw", Knobs(ef_search=128), target=0.0),
    KindSettings("hnsw", Knobs(ef_search=512), target=0.0),
    KindSettings("ivf", Knobs(), target=0.0),
    KindSettings("ivf", Knobs(nprobe=64), target=0.0),
)


class SyntheticEncoder:
    """Embeddings by the number at the end of a text; queries have other numbers than documents."""

    head = None

    def __init__(self, dimensions: int, rank: int) -> None:
        self.directions = np.random.default_rng(0).standard_normal((rank, dimensions)).astype(np.float32)
        self.identity = ModelIdentity(
            name="synthetic",
            weights=f"rank {rank}",
            prompts="",
            document_prompt=None,
            task=None,
            max_length=None,
            dimensions=dimensions,
        )

    def encode(self, texts: Sequence[str], kind: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """(N, D), normalised."""
        drawn = np.empty((len(texts), self.directions.shape[1]), dtype=np.float32)
        for row, text in enumerate(texts):
            generator = np.random.default_rng([int(text.split()[-1]), kind == "query"])
            mixture = generator.standard_normal(len(self.directions), dtype=np.float32)
            noise = generator.standard_normal(self.directions.shape[1], dtype=np.float32)
            drawn[row] = mixture @ self.directions + 0.1 * len(self.directions) ** 0.5 * noise
        if progress is not None:
            progress(len(texts))
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def main() -> int:
    """Print the table as it grows, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="2,000 documents of 64 dimensions, one setting a kind")
    args = parser.parse_args()
    if min(args.documents, args.dimensions, args.rank, args.queries) < 1:
        parser.error("sizes must be at least 1")
    if args.quick:
        args.documents, args.dimensions, args.queries = 2_000, 64, 20
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(args, Path(folder), SETTINGS[1:4:2] if args.quick else SETTINGS):
            print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)
            rows.append(row)
    if args.out is not None:
        write_table(args.out, COLUMNS, rows)
    return 0


def measure(args: argparse.Namespace, folder: Path, settings: Sequence[KindSettings]):
    """A row a setting, the exact index first."""
    encoder = SyntheticEncoder(args.dimensions, args.rank)
    (folder / "corpus").mkdir()
    with (folder / "corpus" / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for number in range(args.documents):
            text = f"{'a text of some length ' * 20}{number}"
            file.write(json.dumps({"_id": f"d{number}", "title": f"title {number}", "text": text}) + "\n")
    drawn = Timed(encoder)
    start = time.process_time()
    make_index(drawn, folder / "corpus", folder / "index")
    built = time.process_time() - start - drawn.seconds
    queries = encoder.encode([f"query {number}" for number in range(args.queries)], "query")
    row, scores = searched(folder, encoder, queries, None)
    yield {**row, "build_seconds": round(built, 1)}
    for asked in settings:
        start = time.process_time()
        rewrite_index(folder / "index", kind=asked, model=encoder)
        built = time.process_time() - start
        row, _ = searched(folder, encoder, queries, scores)
        yield {**row, "build_seconds": round(built, 1)}


class Timed:
    """An encoder whose own time is told apart."""

    def __init__(self, encoder: SyntheticEncoder) -> None:
        self.encoder, self.identity, self.head, self.seconds = encoder, encoder.identity, None, 0.0

    def encode(self, texts: Sequence[str], kind: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """As the encoder."""
        start = time.process_time()
        found = self.encoder.encode(texts, kind, progress)
        self.seconds += time.process_time() - start
        return found


def searched(
    folder: Path, encoder: SyntheticEncoder, queries: np.ndarray, exact: np.ndarray | None
) -> tuple[dict[str, object], np.ndarray]:
    """What searching an index costs and finds; the scores of the best hundred."""
    start = time.process_time()
    with SearchIndex(folder / "index", encoder) as index:
        index.ids(index.search_embeddings(queries[:1], 10)[1][0].tolist())
        opened = time.process_time() - start
        alone = []
        for query in queries:
            start = time.process_time()
            _, found = index.search_embeddings(query[None], 10)
            index.ids(found[0].tolist())
            alone.append(time.process_time() - start)
        start = time.process_time()
        index.search_embeddings(queries, 10)
        batch = time.process_time() - start
        scores, manifest = index.search_embeddings(queries, 100)[0], index.manifest
        top = index.search_embeddings(queries, 10)[0]
    exact = scores if exact is None else exact
    recall = [float((s >= exact[:, k - 1 : k] - SAME_SCORE).mean()) for s, k in ((top, 10), (scores, scores.shape[1]))]
    names = {"exact": (), "hnsw": ("links", "ef_construction", "ef_search"), "ivf": ("lists", "nprobe")}[manifest.kind]
    return {
        "kind": manifest.kind,
        "settings": " ".join(f"{name}={getattr(manifest.graph.knobs, name)}" for name in names),
        "documents": manifest.rows,
        "dimensions": manifest.model.dimensions,
        "megabytes": round(sum(file.size for file in manifest.files()) / 1e6),
        "open_seconds": round(opened, 2),
        "query_ms": round(1000 * statistics.median(alone), 2),
        "query_ms_p95": round(1000 * float(np.percentile(alone, 95)), 2),
        "batch_ms": round(1000 * batch / len(queries), 2),
        "recall_at_10": round(recall[0], 3),
        "recall_at_100": round(recall[1], 3),
    }, scores


if __name__ == "__main__":
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    sys.exit(main())
