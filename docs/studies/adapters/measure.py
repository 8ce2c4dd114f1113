"""Measure `bixse adapt` with vectors of the demo model: headroom, seconds, and the gain on queries of a test file.

    bixse convert beir COLLECTION --qrels dev --scale 0 3 --out DATA/dev     (and train, and test)
    python docs/studies/adapters/measure.py COLLECTION --train DATA/train/pairs.parquet --dev DATA/dev/pairs.parquet \
        --test DATA/test/pairs.parquet --out runs/adapters

`--pad 100000` adds random vectors until there are so many documents, for the time of a larger index.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.torch import load_file

from bixse.adapters.adapt import adapt, adapted, read_pairs, read_vectors
from bixse.adapters.adapt_settings import AdaptSettings
from bixse.data.collection_folder import read_corpus
from bixse.data.pairs_files import load_graded_pairs
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.evaluation.metrics import PRIMARY_METRIC, evaluate_run
from bixse.evaluation.statistics import paired_difference
from bixse.files.rows import write_rows
from bixse.search.exact import exact_search, to_run
from bixse.search.store import EmbeddingStore

METRICS = (PRIMARY_METRIC, "recall@100")


def write_vectors(path, ids, vectors):
    write_rows(pa.table({"id": list(ids), "vector": pa.array(list(vectors), pa.list_(pa.float32()))}), path)


def embed(args, folder):
    """Write documents.parquet and queries.parquet."""
    model, corpus = build_encoder("demo"), read_corpus(args.collection / "corpus.jsonl")
    vectors = EmbeddingStore(model).encode([document.content for document in corpus.values()])
    more = np.random.default_rng(0).normal(size=(max(0, args.pad - len(vectors)), vectors.shape[1]))
    more /= np.linalg.norm(more, axis=1, keepdims=True)
    ids = [*corpus, *(f"random-{n}" for n in range(len(more)))]
    write_vectors(folder / "documents.parquet", ids, np.concatenate([vectors, more.astype(np.float32)]))
    texts = {}
    for path in (args.train, args.dev, args.test):
        pairs = load_graded_pairs(path)
        texts |= dict(zip(pairs.query_ids, pairs.queries, strict=True))
    write_vectors(folder / "queries.parquet", texts, encode_texts(model, list(texts.values()), "query"))


def test_gain(args, folder):
    """Print means of the base, gains of the adapter and their intervals, on test."""
    rows, documents = read_vectors(folder / "documents.parquet")
    query_rows, queries = read_vectors(folder / "queries.parquet")
    graded = read_pairs(args.test, query_rows, rows)
    weights = load_file(folder / "adapter" / "adapter.safetensors")
    before = queries[[query_rows[query] for query in graded]]
    figures = []
    for vectors in (before, adapted(before, weights["A"], weights["B"])):
        run = to_run(list(graded), list(rows), *exact_search(vectors, documents, 100))
        figures.append(evaluate_run(graded, run, METRICS, min_relevant_grade=1e-9))
    for metric in METRICS:
        base, gain = figures[0][metric], paired_difference(figures[1][metric], figures[0][metric])
        print(f"test,{metric},{sum(base.values()) / len(base):.4f},{gain.mean:+.4f},{gain.low},{gain.high}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    for name in ("--train", "--dev", "--test", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--pad", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "documents.parquet").exists():
        embed(args, args.out)
    settings = AdaptSettings(
        vectors=args.out / "documents.parquet", queries=args.out / "queries.parquet", pairs=args.train, dev=args.dev,
        vectors_of="all-MiniLM-L6-v2, 384 dimensions",
    )  # fmt: skip
    result = adapt(settings, args.out / "adapter")
    print(result)
    if result.artifacts:
        test_gain(args, args.out)


if __name__ == "__main__":
    main()
