"""Print nDCG@10 and the Brier scores of a model whose embeddings can be cut, per number of dimensions, as CSV.

    python docs/studies/kinds/dimensions.py runs/matryoshka/model runs/quickstart/collection 384 256 128 64

The probabilities are those of the graded pairs of the test queries. The head is fitted on the pairs of the dev queries,
for the length itself and for the whole embedding, whose head is then used for all lengths. A constant answers the mean
relevance.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from bixse import EncoderSystem, Pairs, collection_task, evaluate, load_collection, load_relevance_model
from bixse.calibration.calibrate_head import fit_head
from bixse.encoders.encode import encode_texts
from bixse.relevance import GradeScale
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bixse import RelevanceModel


def cosines(model: RelevanceModel, pairs: Pairs) -> NDArray[np.float64]:
    """Return the (M,) cosines of pairs; documents are encoded once for all lengths."""
    queries, documents = encode_texts(model, pairs.queries, "query"), EmbeddingStore(model).encode(pairs.documents)
    return np.einsum("md,md->m", queries, documents).astype(np.float64)


def main() -> None:
    """Measure each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("collection")
    parser.add_argument("dimensions", nargs="+", type=int)
    args = parser.parse_args()
    collection = load_collection(args.collection)
    dev, test = (Pairs.from_collection(collection, split, GradeScale(0, 3)) for split in ("dev", "test"))
    constant = float(((test.relevance - test.relevance.mean()) ** 2).mean())
    whole = None
    print("dimensions,ndcg@10,brier of its head,brier of the head of the whole embedding,brier of a constant")
    for size in sorted(args.dimensions, reverse=True):
        model = load_relevance_model(args.model, dimensions=size)
        head = fit_head(model.head, cosines(model, dev), dev.relevance, "dev")
        whole = whole or head
        scores = [float(((h.probability(cosines(model, test)) - test.relevance) ** 2).mean()) for h in (head, whole)]
        task = collection_task(args.collection, "test", min_relevant_grade=2)
        ndcg = evaluate(EncoderSystem(args.model, dimensions=size), task).metrics["ndcg@10"]
        print(size, *(f"{value:.4f}" for value in (ndcg, *scores, constant)), sep=",")


if __name__ == "__main__":
    main()
