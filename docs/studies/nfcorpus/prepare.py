"""Lay out NFCorpus for the studies: training pairs with a map from its four levels to relevance, test collections.

    python docs/studies/nfcorpus/prepare.py NFCORPUS SCIFACT OUT

NFCORPUS holds BEIR's corpus.jsonl and queries.jsonl, qrels/ with the authors' levels (1 to 3) of train, dev and
test, and qrels-beir/ with BEIR's (0 to 2); SCIFACT a collection folder. OUT gets

- pairs.parquet: the training pairs, relevance as in `RELEVANCE`, without queries whose text is one of dev or test;
- titles.parquet: more pairs to train on, each document's title with its text;
- nfcorpus and nfcorpus-levels: the test queries with BEIR's and with the authors' levels;
- nfcorpus-dev: the dev queries with BEIR's levels, as a split test, for studies that choose settings;
- scifact, pydocs: what must not get worse; scifact-train: a guard, the first 300 of SciFact's training queries;
- scifact-short: scifact with 1,500 documents, all judged ones among them, which is measured in a third of the time.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import numpy as np

from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import load_pydocs
from bixse.data.trec import read_qrels
from bixse.relevance import GradeScale

RELEVANCE = {3.0: 1.0, 2.0: 0.5, 1.0: 0.0}
"""Level -> relevance: BEIR's own reading, where a shared topic is nothing and an indirect link half of a direct one."""
SHORT = 1500
"""Number of documents of scifact-short."""


def main() -> None:
    """Write all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nfcorpus", "scifact", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    given = load_collection(args.nfcorpus, ["train", "dev", "test"])
    train = Pairs.from_collection(given, "train", GradeScale(0, 3))
    train = train.with_columns(relevance=[RELEVANCE[grade] for grade in train.extra["grade"]])
    beir = {split: read_qrels(args.nfcorpus / "qrels-beir" / f"{split}.tsv") for split in ("dev", "test")}
    judged = {"nfcorpus": beir["test"], "nfcorpus-levels": given.qrels["test"], "nfcorpus-dev": beir["dev"]}
    held_out = {given.queries[query] for qrels in judged.values() for query in qrels}
    kept = np.array([text not in held_out for text in train.queries])
    args.out.mkdir(parents=True, exist_ok=True)
    save_graded_pairs(train.select(kept), args.out / "pairs.parquet")
    print(f"{kept.sum()} training pairs; {(~kept).sum()} left out, whose query has the text of a dev or test query")
    texts = [(document.title, document.text) for document in given.corpus.values() if document.title not in held_out]
    titles = ({"query": title, "document": text, "relevance": 1.0} for title, text in texts if title and text)
    save_graded_pairs(Pairs.from_rows(titles), args.out / "titles.parquet")
    for name, qrels in judged.items():
        queries = {query: given.queries[query] for query in qrels}
        save_collection(Collection(name, given.corpus, queries, {"test": qrels}), args.out / name)
    scifact = load_collection(args.scifact, ["train", "test"])
    for name, found, split in (
        ("scifact", scifact, "test"),
        ("scifact-train", scifact, "train"),
        ("pydocs", load_pydocs(), "test"),
    ):
        own = dict(islice(found.qrels[split].items(), 300))
        queries = {query: found.queries[query] for query in own}
        save_collection(Collection(name, found.corpus, queries, {"test": own}), args.out / name)
        if name == "scifact":
            judged_first = dict.fromkeys(document for grades in own.values() for document in grades)
            short = islice(judged_first | dict.fromkeys(found.corpus), SHORT)  # the others in the order of the file
            corpus = {document: found.corpus[document] for document in short}
            save_collection(Collection("scifact-short", corpus, queries, {"test": own}), args.out / "scifact-short")


if __name__ == "__main__":
    main()
