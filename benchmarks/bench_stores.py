"""How long an index takes to be written to a vector database, how fast it answers there, and how much it finds.

    python benchmarks/bench_stores.py [--documents 100000] [--dimensions 384] [--queries 100] [--qdrant URL]

Documents and queries are random unit vectors, without any structure: the hardest case of approximate search. Those of
texts lie near a space of fewer dimensions, where more is found: `bixse index --to` measures it on yours. What is timed
is what `bixse index --to` and `bixse search` do, without encoding. LanceDB is written to a temporary folder; Qdrant is
left out unless a server is named, where a collection `bixse-bench` is made and deleted.

Columns:

- `store`, and `search`: `exact`, or the `approximate` one with its settings;
- `write_seconds`: vectors, ids and texts; `build_seconds`: the approximate index; `megabytes`, on this disk;
- `query_ms`, `query_ms_p95`: median and 95th percentile of a query alone, its ten documents with titles and texts;
- `recall_at_10`, `recall_at_100`: against the exact search in memory.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.collection import Document
from bixse.scale.index import lance
from bixse.scale.index.export_index import SAME_SCORE
from bixse.scale.index.index_files import EncoderIdentity, Manifest
from bixse.scale.index.vector_store import Rescored, connect
from bixse.search.exact import exact_search
from measuring import make_parser, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from bixse.scale.index.vector_store import VectorStore

QDRANT_NAME = "bixse-bench"


def main() -> None:
    """Print the table as it grows, and write it."""
    parser = make_parser(__doc__, quick="2,000 documents of 32 dimensions, with an approximate index all the same")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--qdrant", metavar="URL", help="also measure the server there")
    args = parser.parse_args()
    if min(args.documents, args.dimensions, args.queries) < 1:
        parser.error("got a size below 1; expected at least 1; fix: leave it out")
    if args.quick:
        args.documents, args.dimensions, args.queries = 2_000, 32, 10
        lance.INDEXED_FROM = 1
    with tempfile.TemporaryDirectory() as folder:
        names = [f"lancedb:{folder}/documents", *([f"qdrant:{args.qdrant}/{QDRANT_NAME}"] if args.qdrant else [])]
        show((row for name in names for row in measure(name, args, Path(folder))), args.out)
    if args.qdrant:
        from bixse.scale.index.qdrant import connected

        connected(args.qdrant).delete_collection(QDRANT_NAME)


def measure(name: str, args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for the exact search and, where there is one, for the approximate."""
    drawn = np.random.default_rng(0).standard_normal((args.documents + args.queries, args.dimensions), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    documents, queries = drawn[: args.documents], drawn[args.documents :]
    best, _ = exact_search(queries, documents, 100)
    store, started = connect(name), time.perf_counter()
    store.create(manifest_of(args))
    for start in range(0, args.documents, store.together):
        rows = range(start, min(start + store.together, args.documents))
        texts = [(f"d{row}", Document(f"title {row}", "a text of some length " * 20)) for row in rows]
        store.write(start, texts, documents[rows.start : rows.stop])
    written, started = time.perf_counter() - started, time.perf_counter()
    ann = store.build()
    built = time.perf_counter() - started
    ways = {"exact": store.exact}
    if ann is not None:
        ways[f"{ann.factory} {ann.parameters}"] = Rescored(store, store.nearest).search
    for number, (search, way) in enumerate(ways.items()):
        yield {
            "store": name.partition(":")[0],
            "search": search,
            "documents": args.documents,
            "dimensions": args.dimensions,
            "write_seconds": round(written, 1),
            "build_seconds": round(built, 1) if number else 0.0,
            "megabytes": round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6),
            **asked(store, way, queries, best),
        }
    store.close()


def asked(store: VectorStore, way: Callable[..., Any], queries: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Times and recall of one way to search."""
    alone = []
    for query in queries:
        start = time.perf_counter()
        _, found = way(query[None], 10)
        store.documents(found[0].tolist())
        alone.append(time.perf_counter() - start)
    recall = {
        f"recall_at_{depth}": round(float((way(queries, depth)[0] >= best[:, depth - 1, None] - SAME_SCORE).mean()), 3)
        for depth in (10, 100)
    }
    times = {"query_ms": statistics.median(alone), "query_ms_p95": float(np.percentile(alone, 95))}
    return {**{name: round(1000 * value, 2) for name, value in times.items()}, **recall}


def manifest_of(args: argparse.Namespace) -> Manifest:
    """As of an encoder that there is not."""
    encoder = EncoderIdentity(
        name="random", weights="", prompts="", document_prompt=None, task=None, max_length=None,
        dimensions=args.dimensions,
    )  # fmt: skip
    return Manifest(
        created="", encoder=encoder, corpus="", dtype="float32", precision="float32", documents=args.documents
    )


if __name__ == "__main__":
    main()
