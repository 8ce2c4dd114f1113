"""Grades of what each mining strategy finds on the sample collection, among the candidates that are judged.

    python benchmarks/mining_grades.py

The 239 train queries of pydocs, eight documents per query (one for `one`), depth 100, seed 0. `hard-negatives`
has one relevant document per query, as MS MARCO does: the judged document of the highest grade. Grades are those of the
collection, 0 to 3, written by a language model. A candidate outside the judged pool has none and is counted as such.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, get_args

from bixse.data.collection import save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_RELEVANT_GRADE, PYDOCS_SCALE, load_pydocs
from bixse.preparing.candidates import Strategy
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig
from bixse.preparing.mined_pairs import false_negatives, load_mined_pairs
from bixse.report.table import format_markdown
from measuring import Option, options

RETRIEVERS = (("bm25",), ("demo",), ("bm25", "demo"))
GRADES = (3, 2, 1, 0)
RELEVANT_FROM = PYDOCS_SCALE.to_relevance(PYDOCS_RELEVANT_GRADE)


def known_best(graded: GradedPairs) -> GradedPairs:
    """Return the judged document of the highest grade of each query."""
    rows: dict[str, dict] = {}
    for row in sorted(graded.rows(), key=lambda row: (-row["relevance"], row["document_id"])):
        rows.setdefault(row["query_id"], row)
    return GradedPairs.from_rows(rows.values())


def main() -> None:
    """Mine with every strategy and set of retrievers, and print two tables."""
    sets = Option(len(RETRIEVERS), "sets of retrievers, from BM25 on")
    given = options(__doc__, quick={"max_queries": 5, "sets": 1}, max_queries=int, sets=sets)
    collection = load_pydocs()
    graded = GradedPairs.from_collection(collection, "train", PYDOCS_SCALE)
    qrels = collection.qrels["train"]
    grades: list[list[Any]] = []
    shares: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as work:
        folder, known = Path(work) / "collection", Path(work) / "known.jsonl"
        save_collection(collection, folder)
        save_graded_pairs(known_best(graded), known)
        for retrievers, strategy in product(RETRIEVERS[: given.sets], get_args(Strategy)):
            config = MineConfig(
                collection=folder,
                split="train",
                retrievers=retrievers,
                strategy=strategy,
                known=known if strategy == "hard-negatives" else None,
                max_length=128,
                max_queries=given.max_queries,
            )
            out, names = Path(work) / "-".join([*retrievers, strategy]), " + ".join(retrievers)
            mine(config, out)
            pairs = load_mined_pairs(out)
            found = Counter(qrels[pair.query_id].get(pair.document_id) for pair in pairs)
            judged = len(pairs) - found[None]
            grades.append([strategy, names, len(pairs), judged, *(found[grade] for grade in GRADES)])
            if strategy == "hard-negatives":
                shares += [
                    [names, name, share.graded, share.relevant, share.value, "{:.3f} to {:.3f}".format(*share.interval)]
                    for name, share in false_negatives(graded, pairs, RELEVANT_FROM).groups.items()
                ]
    print(format_markdown(grades, ["strategy", "retrievers", "pairs", "judged", *(f"grade {g}" for g in GRADES)]))
    print()
    print(format_markdown(shares, ["retrievers", "judged hard negatives", "judged", "relevant", "share", "interval"]))


if __name__ == "__main__":
    main()
