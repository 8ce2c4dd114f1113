"""Grades of what each mining strategy finds on the sample collection, among the candidates that are judged.

    python benchmarks/mining_grades.py

The 239 train queries of pydocs, eight documents per query (one for `one`), depth 100, seed 0. `hard-negatives`
has one relevant document per query, as MS MARCO does: the judged document of the highest grade. Grades are those of the
collection, 0 to 3, written by a language model. A candidate outside the judged pool has none and is counted as such.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import get_args

from bixse.data.collection import save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_RELEVANT_GRADE, PYDOCS_SCALE, load_pydocs
from bixse.preparing.candidates import Strategy
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig
from bixse.preparing.mined_pairs import FalseNegatives, MinedPair, false_negatives, load_mined_pairs
from bixse.report.table import format_markdown

RETRIEVERS = (("bm25",), ("demo",), ("bm25", "demo"))
GRADES = (3, 2, 1, 0)
RELEVANT_FROM = PYDOCS_SCALE.to_relevance(PYDOCS_RELEVANT_GRADE)


def known_best(graded: GradedPairs) -> GradedPairs:
    """The judged document of the highest grade of each query."""
    rows: dict[str, dict] = {}
    for row in sorted(graded.rows(), key=lambda row: (-row["relevance"], row["document_id"])):
        rows.setdefault(row["query_id"], row)
    return GradedPairs.from_rows(rows.values())


def grade_row(name: str, retrievers: str, pairs: list[MinedPair], qrels: dict) -> list[str | int | float]:
    """How many pairs are judged, and with which grades."""
    grades = Counter(int(qrels[p.query_id][p.document_id]) for p in pairs if p.document_id in qrels[p.query_id])
    return [name, retrievers, len(pairs), sum(grades.values()), *(grades[grade] for grade in GRADES)]


def share_rows(retrievers: str, found: FalseNegatives) -> list[list[str | int | float]]:
    """The share of relevant ones among judged hard negatives: all, by rank, by retriever."""
    return [
        [retrievers, name, share.graded, share.relevant, share.value, "{:.3f} to {:.3f}".format(*share.interval)]
        for name, share in found.groups.items()
    ]


def main() -> None:
    """Mine with every strategy and set of retrievers, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text that the encoder reads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="BM25 and five queries alone: a look, not a measurement")
    arguments = parser.parse_args()
    collection = load_pydocs()
    graded = GradedPairs.from_collection(collection, "train", PYDOCS_SCALE)
    grades: list[list[str | int | float]] = []
    shares: list[list[str | int | float]] = []
    with tempfile.TemporaryDirectory() as work:
        folder, known = Path(work) / "collection", Path(work) / "known.jsonl"
        save_collection(collection, folder)
        save_graded_pairs(known_best(graded), known)
        for retrievers in RETRIEVERS[:1] if arguments.quick else RETRIEVERS:
            for strategy in get_args(Strategy):
                config = MineConfig(
                    collection=folder,
                    split="train",
                    retrievers=retrievers,
                    strategy=strategy,
                    seed=arguments.seed,
                    known=known if strategy == "hard-negatives" else None,
                    max_length=arguments.max_length,
                    max_queries=5 if arguments.quick else None,
                )
                out = Path(work) / "-".join([*retrievers, strategy])
                mine(config, out)
                pairs = load_mined_pairs(out)
                grades.append(grade_row(strategy, " + ".join(retrievers), pairs, collection.qrels["train"]))
                if strategy == "hard-negatives":
                    shares += share_rows(" + ".join(retrievers), false_negatives(graded, pairs, RELEVANT_FROM))
    print(format_markdown(grades, ["strategy", "retrievers", "pairs", "judged", *(f"grade {g}" for g in GRADES)]))
    print()
    print(format_markdown(shares, ["retrievers", "judged hard negatives", "judged", "relevant", "share", "interval"]))


if __name__ == "__main__":
    main()
