"""Print, as CSV, the agreement of a cascade with its judge, and the share of the judge's calls that it takes.

    python docs/studies/cascade/measure.py runs/late/model runs/quickstart/collection

MODEL was trained on the judge's grades of the queries of split train, for the published table by the command of version
1.0.0rc1; docs/reference/kinds.md has a recipe. The cut between relevant and irrelevant is
where as many pairs of split dev lie above it as the judge calls relevant. MODEL labels the pairs of split test, and
those whose scores are nearest to the cut go back to the judge. Intervals are 95 % and resample queries.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bixse import load_collection
from bixse.audit.agreement import agreement_within, cohen_kappa, counts_by_query
from bixse.encoders.loading.load_scorer import load_scorer

SHARES = (0.0, 0.1, 0.2, 0.3, 0.5)
MEASURES = {"agreement": agreement_within(0), "kappa": cohen_kappa()}


def main() -> None:
    """Measure each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("collection")
    parser.add_argument("--min-relevant-grade", type=float, default=2.0)
    args = parser.parse_args()
    collection, model = load_collection(args.collection), load_scorer(args.model)

    def scored(split: str) -> tuple[list[str], Any, Any]:
        """Return query ids, the model's scores and the judge's labels, 0 or 1, of the pairs of a split."""
        pairs = [(query, name, grade) for query, row in collection.qrels[split].items() for name, grade in row.items()]
        texts = (
            [collection.queries[query] for query, *_ in pairs],
            [collection.corpus[name].content for _, name, _ in pairs],
        )
        labels = np.array([grade >= args.min_relevant_grade for *_, grade in pairs])
        return [query for query, *_ in pairs], model.logits(*texts), labels

    _, scores, labels = scored("dev")
    cut = np.quantile(scores, 1 - labels.mean())
    queries, scores, labels = scored("test")
    guess, certainty = scores > cut, np.abs(scores - cut)
    budget = sum(len(row) for split in ("train", "dev") for row in collection.qrels[split].values())
    rng = np.random.default_rng(0)
    print("share sent back,which pairs,judge's calls,agreement,kappa,low,high")
    for share in SHARES:
        number = round(share * len(labels))
        orders = {"nearest to the cut": np.argsort(certainty, kind="stable")}
        if 0 < share < 1:
            orders["at random"] = rng.permutation(len(labels))
        for which, order in orders.items():
            answer = guess.copy()
            answer[order[:number]] = labels[order[:number]]
            tables = counts_by_query(labels.astype(float), answer.astype(float), queries, np.array([0.0, 1.0]))
            estimates = tables.estimates(MEASURES, "")
            agreement, kappa = estimates["agreement"].value, estimates["kappa"]
            calls = (budget + number) / (budget + len(labels))
            print(f"{share:.2f},{which},{calls:.2f},{agreement:.3f},{kappa.value:.3f},{kappa.low:.3f},{kappa.high:.3f}")


if __name__ == "__main__":
    main()
