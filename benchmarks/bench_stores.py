"""How long an index takes to be written to a vector database, how fast it answers there, and how much it finds.

    python benchmarks/bench_stores.py [--documents 100000] [--dimensions 384] [--queries 100] [--qdrant URL]

Documents and queries are random unit vectors: the hardest case of approximate search. Timed is what `bixse index --to`
and `bixse search` do, without encoding. LanceDB is written to a temporary folder; Qdrant takes part if a server is
named, where a collection `bixse-bench` is made and deleted.

- `store`, and `search`: `exact`, or the `approximate` one with its settings;
- `write_seconds`: vectors, ids and texts; `build_seconds`: the approximate index; `megabytes`, on this disk;
- `query_ms`, `query_ms_p95`: median and 95th percentile of a query alone, its ten documents with titles and texts;
- `recall_at_10`, `recall_at_100`: against the exact search in memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.corpus import Document
from bixse.index import lance
from bixse.index.index_files import EncoderIdentity, Manifest
from bixse.index.vector_store import connect
from bixse.search.exact import exact_search
from measuring import OUT, Option, middle, options, show, timed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from bixse.index.vector_store import VectorStore

QDRANT_NAME = "bixse-bench"
SAME_SCORE = 1e-6
"""Difference of scores that rounding alone can make: it does not matter which copy of a text is found."""


def main() -> None:
    """Print the table as it grows, and write it."""
    given = options(
        __doc__,
        quick={"documents": 2_000, "dimensions": 32, "queries": 10},
        out=OUT,
        documents=100_000,
        dimensions=384,
        queries=100,
        qdrant=Option(str, "address of a server that is measured too"),
    )
    if given.quick:
        lance.INDEXED_FROM = 1  # an approximate index all the same
    with tempfile.TemporaryDirectory() as folder:
        names = [f"lancedb:{folder}/documents", *([f"qdrant:{given.qdrant}/{QDRANT_NAME}"] if given.qdrant else [])]
        show((row for name in names for row in measure(name, given, Path(folder))), given.out)
    if given.qdrant:
        from bixse.index.qdrant import connected

        connected(given.qdrant).delete_collection(QDRANT_NAME)


def measure(name: str, given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for the exact search and, where there is one, for the approximate."""
    size = (given.documents + given.queries, given.dimensions)
    drawn = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    documents, queries = drawn[: given.documents], drawn[given.documents :]
    best, _ = exact_search(queries, documents, 100)
    store = connect(name)

    def write() -> None:
        store.create(manifest_of(given))
        for start in range(0, given.documents, store.together):
            rows = range(start, min(start + store.together, given.documents))
            texts = [(f"d{row}", Document(f"title {row}", "a text of some length " * 20)) for row in rows]
            store.write(start, texts, documents[rows.start : rows.stop])

    written, built = timed(write), timed(store.build)
    for number, search in enumerate(["exact", *([store.approximate] if store.approximate else [])]):
        yield {
            "store": name.partition(":")[0],
            "search": search,
            "documents": given.documents,
            "dimensions": given.dimensions,
            "write_seconds": round(written.seconds, 1),
            "build_seconds": round(built.seconds, 1) if number else 0.0,
            "megabytes": round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6),
            **asked(store, search == "exact", queries, best),
        }
    store.close()


def asked(store: VectorStore, exact: bool, queries: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Return times and recall of one way to search."""
    runs = [timed(lambda query=query: store.search(query[None], 10, exact)) for query in queries]
    recall = {}
    for depth in (10, 100):
        scores = np.array([[score for _, score, _ in line] for line in store.search(queries, depth, exact, False)])
        recall[f"recall_at_{depth}"] = round(float((scores >= best[:, depth - 1, None] - SAME_SCORE).mean()), 3)
    slow = float(np.percentile([run.seconds for run in runs], 95))
    return {"query_ms": round(1000 * middle(runs, digits=9), 2), "query_ms_p95": round(1000 * slow, 2), **recall}


def manifest_of(given: argparse.Namespace) -> Manifest:
    """Return the manifest of an index by an encoder that does not exist."""
    encoder = EncoderIdentity(
        name="random", weights="", prompts="", document_prompt=None, task=None, max_length=None,
        dimensions=given.dimensions,
    )  # fmt: skip
    return Manifest(encoder=encoder, corpus="", precision="float32", documents=given.documents, rows=given.documents)


if __name__ == "__main__":
    main()
