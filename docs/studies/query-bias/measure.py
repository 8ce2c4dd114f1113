"""Measure whether a bias per query makes better probabilities: sigma(a cos + b + w . q) against sigma(a cos + b).

    python docs/studies/query-bias/measure.py demo --out docs/studies/query-bias/figures.csv     # the sample collection
    python docs/studies/query-bias/measure.py demo --collection DIR --scale 1 3 --out ...         # one of your own

The maps are fitted on a random half of the queries and measured on the other half, 20 times. The strength of the ridge
on w is chosen on a quarter of the fitted queries. Isotonic regression of the cosine shows what any map of the cosine
can reach. Each line of the table is a difference from the logistic curve: mean over the halves, and its 2.5 and 97.5
percentiles.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from bixse.data.collection import load_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pydocs import load_pydocs
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.relevance import GradeScale

HALVES = 20
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the ridge on w. Embeddings have length 1, so that w of a few units moves the log-odds."""


def logistic(x, z, ridge):
    """Return a function to probabilities, fitted on relevance z in [0, 1]: a pair counts as z and 1 - z pairs."""
    rows, labels, weights = np.concatenate([x, x]), np.repeat([1, 0], len(z)), np.concatenate([z, 1 - z])
    counted = weights > 0
    model = LogisticRegression(C=ridge, max_iter=2000).fit(rows[counted], labels[counted], weights[counted])
    return lambda new: model.predict_proba(new)[:, 1]


def brier(p, z):
    """Return the mean squared difference."""
    return float(((p - z) ** 2).mean())


def log_loss(p, z):
    """Return the mean cross-entropy."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-(z * np.log(p) + (1 - z) * np.log(1 - p)).mean())


def precision_at_recall(p, z, recall=0.2):
    """Return the precision of the one threshold that keeps a fifth of the relevant pairs."""
    relevant = (z >= 0.5)[np.argsort(-p, kind="stable")]
    return float(relevant[: np.searchsorted(np.cumsum(relevant), recall * relevant.sum()) + 1].mean())


MEASURES = {"brier": brier, "log loss": log_loss, "precision at recall .2": precision_at_recall}


def probabilities(cosine, queries, z, query, fitted, rng):
    """Return map -> probabilities of the pairs outside `fitted`."""
    plain = np.array([[c] for c in cosine]) * 10  # near the scale of logits: the ridge hardly holds it
    wide = np.concatenate([plain, queries], axis=1)
    names = np.unique(query[fitted])
    inner = fitted & np.isin(query, rng.permutation(names)[: 3 * len(names) // 4])
    checked = fitted & ~inner
    scores = {ridge: log_loss(logistic(wide[inner], z[inner], ridge)(wide[checked]), z[checked]) for ridge in RIDGES}
    isotonic = IsotonicRegression(out_of_bounds="clip").fit(cosine[fitted], z[fitted])
    return {
        "logistic": logistic(plain[fitted], z[fitted], 1e3)(plain[~fitted]),
        "isotonic": isotonic.predict(cosine[~fitted]),
        "bias per query": logistic(wide[fitted], z[fitted], min(scores, key=scores.get))(wide[~fitted]),
        "constant": np.full(int((~fitted).sum()), z[fitted].mean()),
    }


def first_of(numbers):
    """Return the first row of each number, so that a text is encoded once."""
    return np.unique(numbers, return_index=True)[1]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--collection", type=Path)
    parser.add_argument("--scale", nargs=2, type=float, default=(0, 3), metavar=("LOW", "TOP"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    collection = load_pydocs() if args.collection is None else load_collection(args.collection)
    pairs = Pairs.from_collection(collection, "test", GradeScale(*args.scale))
    model = build_encoder(args.model)
    numbers = {"query": np.unique(pairs.query_ids, return_inverse=True)[1], "document": pairs.numbers("document")}
    queries, documents = (
        encode_texts(model, pairs.texts(kind, first_of(number)), kind).astype(np.float64)[number]
        for kind, number in numbers.items()
    )
    cosine, z, query = (queries * documents).sum(axis=1), pairs.relevance.astype(np.float64), np.array(pairs.query_ids)
    figures: dict[tuple[str, str], list[float]] = {}
    for seed in range(HALVES):
        rng = np.random.default_rng(seed)
        names = np.unique(query)
        fitted = np.isin(query, rng.permutation(names)[: len(names) // 2])
        for name, p in probabilities(cosine, queries, z, query, fitted, rng).items():
            for measure, of in MEASURES.items():
                figures.setdefault((name, measure), []).append(of(p, z[~fitted]))
    known = args.out.read_text(encoding="utf-8").splitlines()[1:] if args.out.exists() else []
    with args.out.open("w", encoding="utf-8", newline="") as file:
        file.write("collection,model,pairs,queries,map,measure,value,difference,low,high\n")
        file.writelines(f"{line}\n" for line in known)
        for (name, measure), values in figures.items():
            gaps = np.array(values) - figures["logistic", measure]
            ends = [f"{value:+.4f}" for value in (gaps.mean(), *np.quantile(gaps, [0.025, 0.975]))]
            head = [collection.name, args.model, len(pairs), len(np.unique(query)), name, measure]
            csv.writer(file, lineterminator="\n").writerow([*head, f"{np.mean(values):.4f}", *ends])


if __name__ == "__main__":
    main()
