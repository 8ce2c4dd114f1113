"""Grades of what each mining strategy finds on the sample collection, among the candidates that are judged.

    python benchmarks/mining_grades.py

The 679 train queries of pydocs, eight documents per query (one for `one`), depth 100, seed 0. "top, one known" leaves
out one relevant document per query, as MS MARCO has it: the judged document of the highest grade. Grades are those of
the collection, 0 to 3, written by a language model. A candidate outside the judged pool has none.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bixse.data.collection import save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_RELEVANT_GRADE, PYDOCS_SCALE, load_pydocs
from bixse.evaluation.intervals import wilson_interval
from bixse.mining.candidates import Strategy, rank_band
from bixse.mining.mine import mine_into
from bixse.mining.mine_settings import MineConfig
from bixse.mining.mined_pairs import MINED_FILE
from bixse.rendering.table import format_markdown
from measuring import Option, options

RETRIEVERS = (("bm25",), ("demo",), ("bm25", "demo"))
GRADES = (3, 2, 1, 0)
KNOWN = "top, one known"
STRATEGIES: dict[str, Strategy] = {"spread": "spread", "top": "top", KNOWN: "top", "one": "one"}


def known_best(graded: Pairs) -> Pairs:
    """Return the judged document of the highest grade of each query."""
    rows: dict[str, dict] = {}
    for row in sorted(graded.rows(), key=lambda row: (-row["relevance"], row["document_id"])):
        rows.setdefault(row["query_id"], row)
    return Pairs.from_rows(rows.values())


def main() -> None:
    """Mine with every strategy and set of retrievers, and print two tables."""
    sets = Option(len(RETRIEVERS), "sets of retrievers, from BM25 on")
    given = options(__doc__, quick={"max_queries": 5, "sets": 1}, max_queries=int, sets=sets)
    collection = load_pydocs()
    graded = Pairs.from_collection(collection, "train", PYDOCS_SCALE)
    qrels = collection.qrels["train"]
    grades: list[list[Any]] = []
    shares: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as work:
        folder, known = Path(work) / "collection", Path(work) / "known.jsonl"
        save_collection(collection, folder)
        save_graded_pairs(known_best(graded), known)
        for retrievers, (name, strategy) in product(RETRIEVERS[: given.sets], STRATEGIES.items()):
            config = MineConfig(
                collection=folder,
                split="train",
                retrievers=retrievers,
                strategy=strategy,
                known=known if name == KNOWN else None,
                max_length=128,
                max_queries=given.max_queries,
            )
            out, names = Path(work) / "-".join([*retrievers, name]), " + ".join(retrievers)
            mine_into(config, out)
            rows = pq.read_table(out / MINED_FILE).to_pylist()
            ranked = [(row["rank"], qrels[row["query_id"]].get(row["document_id"])) for row in rows]
            counts = Counter(grade for _, grade in ranked)
            judged = [(rank, grade >= PYDOCS_RELEVANT_GRADE) for rank, grade in ranked if grade is not None]
            grades.append([name, names, len(ranked), len(judged), *(counts[grade] for grade in GRADES)])
            if name == KNOWN:
                bands = {"all": judged}
                for rank, relevant in sorted(judged):
                    bands.setdefault(f"rank {rank_band(rank)}", []).append((rank, relevant))
                for band, hits in bands.items():
                    relevant = sum(is_relevant for _, is_relevant in hits)
                    interval = "{:.3f} to {:.3f}".format(*wilson_interval(relevant, len(hits)))
                    shares.append([names, band, len(hits), relevant, relevant / len(hits), interval])
    print(format_markdown(grades, ["strategy", "retrievers", "pairs", "judged", *(f"grade {g}" for g in GRADES)]))
    print()
    print(format_markdown(shares, ["retrievers", "judged hard negatives", "judged", "relevant", "share", "interval"]))


if __name__ == "__main__":
    main()
