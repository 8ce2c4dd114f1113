"""Print bytes per document and seconds per query of models of any kind but rerankers, as CSV.

    python docs/studies/kinds/cost.py runs/quickstart/collection demo runs/late/model runs/sparse/model

Bytes are those of float32 numbers; a number of a sparse embedding has an index of 4 bytes too. Seconds are the medians
of 100 test queries, each embedded alone and compared with 100 documents whose embeddings are in memory.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import torch
from sentence_transformers import SparseEncoder

from bixse import load_collection
from bixse.encoders.loading.build import load_scorer

QUERIES = DOCUMENTS = 100


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection")
    parser.add_argument("model", nargs="+")
    args = parser.parse_args()
    collection = load_collection(args.collection)
    step = len(collection.corpus) // DOCUMENTS
    texts = [document.content for document in collection.corpus.values()][::step][:DOCUMENTS]
    queries = [collection.queries[name] for name in list(collection.qrels["test"])[:QUERIES]]
    print("model,bytes per document,numbers per document,seconds to embed a query,seconds to compare 100 documents")
    for name in args.model:
        model: Any = load_scorer(name)
        documents = model.encode_document(texts)
        numbers = sum(int(torch.as_tensor(document).to_dense().count_nonzero()) for document in documents) / len(texts)
        each = 8 if isinstance(model, SparseEncoder) else 4
        embedding, comparing = [], []
        for query in queries:
            start = perf_counter()
            embedded = model.encode_query([query])
            middle = perf_counter()
            model.similarity(embedded, documents)
            embedding.append(middle - start)
            comparing.append(perf_counter() - middle)
        print(
            name,
            f"{each * numbers:.0f}",
            f"{numbers:.0f}",
            *(f"{median(s):.4f}" for s in (embedding, comparing)),
            sep=",",
        )


if __name__ == "__main__":
    main()
