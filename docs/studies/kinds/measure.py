"""Print quality, speed, memory and index size of models of any kind on one collection, as CSV.

    python docs/studies/kinds/measure.py runs/quickstart/collection demo runs/mine/model runs/late/model

docs/reference/kinds.md trains models of other kinds; those of the published table are by the command of version
1.0.0rc1. A model of another kind than an encoder orders the 30 best documents of `demo` again. Seconds are medians over
100 test queries: to embed one query alone, and to compare it with 100 documents whose embeddings are in memory (a
reranker reads 30 pairs). Bytes are those of float32 numbers; a sparse embedding also has an index of 4 bytes each.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import torch

from bixse.encoders.loading.load_scorer import load_scorer
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.reranking import RerankedSystem
from bixse.evaluation.systems import EncoderSystem

NUMBER, DEPTH = 100, 30
COLUMNS = (
    "kind,model,nDCG@10,documents per second,seconds to embed a query,seconds to compare,"
    "MB of weights,bytes per document"
)


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection")
    parser.add_argument("model", nargs="+")
    parser.add_argument("--min-relevant-grade", type=float, default=2.0)
    args = parser.parse_args()
    task = collection_task(args.collection, "test", min_relevant_grade=args.min_relevant_grade)
    texts = [text for _, text in task.documents()]
    texts = texts[:: len(texts) // NUMBER][:NUMBER]
    queries = list(task.query_sets[0].queries.values())[:NUMBER]
    print(COLUMNS)
    for name in args.model:
        model: Any = load_scorer(name)
        kind = getattr(model, "kind", "encoder")
        first = EncoderSystem("demo")
        system: Any = EncoderSystem(name) if kind == "encoder" else RerankedSystem(first, name, DEPTH)
        quality = evaluate(system, task).metrics["ndcg@10"]
        weights = sum(part.numel() * part.element_size() for part in model.parameters()) / 1e6
        cost = of_pairs(model, queries, texts) if kind == "reranker" else of_embeddings(model, queries, texts, kind)
        print(kind, name, f"{quality:.3f}", *cost[:3], f"{weights:.0f}", cost[3], sep=",", flush=True)


def of_pairs(model: Any, queries: list[str], texts: list[str]) -> tuple[str, ...]:
    """Return the columns of a model that reads query and document together."""
    seconds = []
    for query in queries[:20]:
        start = perf_counter()
        model.logits([query] * DEPTH, texts[:DEPTH])
        seconds.append(perf_counter() - start)
    return "", "", f"{median(seconds):.4f}", ""


def of_embeddings(model: Any, queries: list[str], texts: list[str], kind: str) -> tuple[str, ...]:
    """Return the columns of a model that embeds query and document each by itself."""
    start = perf_counter()
    documents = model.encode_document(texts)
    speed = len(texts) / (perf_counter() - start)
    numbers = sum(int(torch.as_tensor(document).to_dense().count_nonzero()) for document in documents) / len(texts)
    embedding, comparing = [], []
    for query in queries:
        start = perf_counter()
        embedded = model.encode_query([query])
        middle = perf_counter()
        model.similarity(embedded, documents)
        embedding.append(middle - start)
        comparing.append(perf_counter() - middle)
    size = (8 if kind == "sparse" else 4) * numbers
    return f"{speed:.1f}", f"{median(embedding):.4f}", f"{median(comparing):.4f}", f"{size:.0f}"


if __name__ == "__main__":
    main()
