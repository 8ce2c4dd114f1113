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
- `build_seconds`: files of embeddings and texts, for hnsw and ivf also the FAISS index and its recall on 200 titles;
- `megabytes` on the disk; `open_seconds`: opening the files, and a first search with its checksums;
- `query_ms`, `query_ms_p95`: median and 95th percentile of the time of one query alone, its ten documents with titles
  and texts; `batch_ms`: of a query among all;
- `recall_at_10`, `recall_at_100`: against exact search, on queries that no title is.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import faiss
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bixse.encoders.encode import encode_texts
from bixse.retrieval.index.approximate import SAME_SCORE
from bixse.retrieval.index.index_files import open_files
from bixse.retrieval.index.make_index import make_index
from bixse.retrieval.index.search import SearchIndex
from bixse.retrieval.store import EmbeddingStore
from measuring import make_parser, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SETTINGS = (("exact", None), ("hnsw", "efSearch=64"), ("hnsw", None), ("hnsw", "efSearch=512"), ("ivf", None),
            ("ivf", "nprobe=64"))  # fmt: skip


class Synthetic(torch.nn.Module):
    """A module of sentence-transformers that embeds by the number at the end of a text; queries have other numbers."""

    def __init__(self, dimensions: int, rank: int) -> None:
        super().__init__()
        directions = np.random.default_rng(0).standard_normal((rank, dimensions)).astype(np.float32)
        self.directions = torch.nn.Parameter(torch.from_numpy(directions))

    def preprocess(self, texts: Sequence[str], task: str | None = None, **_: object) -> dict[str, torch.Tensor]:
        """The numbers of the texts."""
        return {"numbers": torch.tensor([[int(text.split()[-1]), task == "query"] for text in texts])}

    def forward(self, features: dict[str, torch.Tensor], **_: object) -> dict[str, torch.Tensor]:
        """(N, D) embeddings."""
        rank, dimensions = self.directions.shape
        drawn = np.empty((len(features["numbers"]), dimensions), dtype=np.float32)
        for row, seeds in enumerate(features["numbers"].tolist()):
            generator = np.random.default_rng(seeds)
            mixture = generator.standard_normal(rank, dtype=np.float32)
            noise = generator.standard_normal(dimensions, dtype=np.float32)
            drawn[row] = mixture @ self.directions.detach().numpy() + 0.1 * rank**0.5 * noise
        return {**features, "sentence_embedding": torch.from_numpy(drawn)}

    def get_embedding_dimension(self) -> int:
        """D."""
        return int(self.directions.shape[1])


def main() -> None:
    """Print the table as it grows, and write it."""
    parser = make_parser(__doc__, quick="2,000 documents of 64 dimensions, one setting a kind")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--queries", type=int, default=200)
    args = parser.parse_args()
    if min(args.documents, args.dimensions, args.rank, args.queries) < 1:
        parser.error("sizes must be at least 1")
    if args.quick:
        args.documents, args.dimensions, args.queries = 2_000, 64, 20
    with tempfile.TemporaryDirectory() as folder:
        show(measure(args, Path(folder), SETTINGS[:5:2] if args.quick else SETTINGS), args.out)


def measure(args: argparse.Namespace, folder: Path, settings: Sequence[tuple[str, str | None]]):
    """A row a setting, the exact index first."""
    encoder = SentenceTransformer(modules=[Synthetic(args.dimensions, args.rank)], device="cpu")
    (folder / "corpus").mkdir()
    texts = [f"{'a text of some length ' * 20}{number}" for number in range(args.documents)]
    with (folder / "corpus" / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"_id": f"d{number}", "title": f"title {number}", "text": text}) + "\n")
    EmbeddingStore(encoder, folder / "cache").encode([f"title {n} {text}" for n, text in enumerate(texts)])
    queries = encode_texts(encoder, [f"query {number}" for number in range(args.queries)], "query")
    scores = None
    for kind, parameters in settings:
        start = time.process_time()
        make_index(encoder, folder / "corpus", folder / "index", kind, parameters, cache=folder / "cache")
        built = time.process_time() - start
        row, found = searched(folder, encoder, queries, scores)
        scores = found if scores is None else scores
        yield {"kind": kind, "build_seconds": round(built, 1), **row}


def searched(
    folder: Path, encoder: SentenceTransformer, queries: np.ndarray, exact: np.ndarray | None
) -> tuple[dict[str, object], np.ndarray]:
    """What searching an index costs and finds; the scores of the best hundred."""
    start = time.process_time()
    files = open_files(folder / "index")
    with SearchIndex(files, encoder) as index:
        files.documents(index.search_embeddings(queries[:1], 10)[1][0].tolist())
        opened = time.process_time() - start
        alone = []
        for query in queries:
            start = time.process_time()
            _, found = index.search_embeddings(query[None], 10)
            files.documents(found[0].tolist())
            alone.append(time.process_time() - start)
        start = time.process_time()
        index.search_embeddings(queries, 10)
        batch = time.process_time() - start
        scores, manifest = index.search_embeddings(queries, 100)[0], index.manifest
        top = index.search_embeddings(queries, 10)[0]
    exact = scores if exact is None else exact
    recall = [float((s >= exact[:, k - 1 : k] - SAME_SCORE).mean()) for s, k in ((top, 10), (scores, scores.shape[1]))]
    return {
        "settings": "" if manifest.ann is None else f"{manifest.ann.factory} {manifest.ann.parameters}",
        "documents": manifest.documents,
        "dimensions": manifest.encoder.dimensions,
        "megabytes": round(sum(file.size for file in manifest.files) / 1e6),
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
    main()
