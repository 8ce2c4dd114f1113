"""Lay out NFCorpus for the studies: training pairs with a map from its four levels to relevance, test collections.

    python docs/nfcorpus/prepare.py NFCORPUS SCIFACT OUT

NFCORPUS holds BEIR's corpus.jsonl and queries.jsonl, qrels/ with the authors' four levels (0 to 3) of train, dev and
test, and qrels-beir/ with BEIR's (0 to 2); SCIFACT a collection folder. OUT gets

- pairs.parquet: the training pairs, relevance as in `RELEVANCE`;
- nfcorpus: dev and test with BEIR's levels; nfcorpus-levels: the same with the authors' levels;
- scifact, pydocs: what must not get worse.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from bixse.data.collection import Collection
from bixse.data.collection_files import load_collection, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs.load_pydocs import load_pydocs
from bixse.relevance import GradeScale

RELEVANCE = {3.0: 1.0, 2.0: 0.5, 1.0: 0.0}
"""Level -> relevance: BEIR's own reading, where a shared topic is nothing and an indirect link half of a direct one."""


def beir_qrels(path: Path) -> dict[str, dict[str, float]]:
    """A qrels file of BEIR's layout."""
    found: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            found.setdefault(row["query-id"], {})[row["corpus-id"]] = float(row["score"])
    return found


def main() -> None:
    """Write all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nfcorpus", "scifact", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    given = load_collection(args.nfcorpus, ["train", "dev", "test"])
    train = GradedPairs.from_collection(given, "train", GradeScale(0, 3))
    train = train.with_columns(relevance=[RELEVANCE[grade] for grade in train.extra["grade"]])
    args.out.mkdir(parents=True, exist_ok=True)
    save_graded_pairs(train, args.out / "pairs.parquet")
    levels = {split: given.qrels[split] for split in ("dev", "test")}
    beir = {split: beir_qrels(args.nfcorpus / "qrels-beir" / f"{split}.tsv") for split in ("dev", "test")}
    for name, qrels in (("nfcorpus", beir), ("nfcorpus-levels", levels)):
        judged = {query for split in qrels.values() for query in split}
        queries = {query: text for query, text in given.queries.items() if query in judged}
        save_collection(Collection(name, given.corpus, queries, qrels), args.out / name)
    for found in (load_collection(args.scifact, ["test"]), load_pydocs()):
        own = found.qrels["test"]
        queries = {query: found.queries[query] for query in own}
        save_collection(Collection(found.name, found.corpus, queries, {"test": own}), args.out / found.name)


if __name__ == "__main__":
    main()
