"""Suspicious zeros on pydocs: half of the training grades are held back, and stand in for a judge that knows them.

    python docs/studies/regrade/compare.py --out runs/regrade --seeds 0 1 2

Three ways to train on the half that is left: as it is; with `Regrading`, the held-back grades as its judge; and with
all grades from the start. `found.csv` says how many of the asked pairs have a held-back grade, and how many are
relevant by it, against random entries and the nearest ones of the base model; `figures.csv` what the training reaches.
A run that is there is not made again.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from regrading import ASKED, Regrading

from bixse.data.collection import save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.systems import EncoderSystem
from bixse.lab.studies.study import crossed_interval
from bixse.training import recipe
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.train import train_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ARMS = ("half", "half, regraded", "all")
SPLITS = ("dev", "test")
EPOCHS, LENGTH = 3, 64


def lay_out(folder: Path) -> None:
    """The collection, half of the grades, and all of them."""
    whole = load_pydocs()
    save_collection(whole, folder / "pydocs")
    pairs = Pairs.from_collection(whole, "train", PYDOCS_SCALE)
    save_graded_pairs(pairs, folder / "all.parquet")
    held_back = np.zeros(len(pairs), dtype=bool)
    generator = np.random.default_rng(0)
    groups = pairs.groups()
    for number in range(len(groups)):
        rows = groups.rows(number)
        held_back[generator.permutation(rows)[: len(rows) // 2]] = True
    save_graded_pairs(pairs.select(~held_back), folder / "half.parquet")


def settings(arm: str, seed: int, folder: Path) -> TrainConfig:
    """One way to train."""
    given: dict[str, Any] = {
        "pairs": folder / ("all.parquet" if arm == "all" else "half.parquet"),
        "max_length": LENGTH,
        "seed": seed,
        "evaluations_per_epoch": 0,
        "merge": {"weights": [0.5], "keep_tuned": True},
        "optimizer": {"num_train_epochs": EPOCHS, "documents_per_query": 3},
    }
    return TrainConfig.model_validate(given)


def held_grades(folder: Path) -> tuple[Pairs, dict[tuple[str, str], float]]:
    """The half, and the grades of the other half by ids."""
    pairs, every = (load_graded_pairs(folder / f"{name}.parquet") for name in ("half", "all"))
    known = set(zip(pairs.query_ids, pairs.document_ids, strict=True))
    grades = dict(zip(zip(every.query_ids, every.document_ids, strict=True), every.relevance.tolist(), strict=True))
    return pairs, {pair: grade for pair, grade in grades.items() if pair not in known}


def found(out: Path, folder: Path) -> list[dict[str, Any]]:
    """Of the pairs that were asked after each epoch, and of as many chosen otherwise: answered, and relevant."""
    pairs, held = held_grades(folder)
    known = set(zip(pairs.query_ids, pairs.document_ids, strict=True))
    first = {"query": pairs.distinct("query"), "document": pairs.distinct("document")}
    names = {kind: [getattr(pairs, f"{kind}_ids")[row] for row in rows] for kind, rows in first.items()}
    entries = len(names["query"]) * len(names["document"]) - len(known)
    here = set(names["document"])
    met = {pair: grade for pair, grade in held.items() if pair[1] in here}
    base = build_encoder("demo", LENGTH)
    queries, documents = (encode_texts(base, pairs.texts(kind, rows), kind) for kind, rows in first.items())  # type: ignore[arg-type]
    order = np.argsort(-(queries @ documents.T), axis=None)
    nearest = (
        pair
        for place in order
        if (pair := (names["query"][place // len(documents)], names["document"][place % len(documents)])) not in known
    )
    table = []
    for epoch, pairs_asked in enumerate(json.loads((out / ASKED).read_text(encoding="utf-8")), start=1):
        asked = [(query, document) for query, document in pairs_asked]
        same = [next(nearest) for _ in asked]
        for way, chosen in (("likely false negatives", asked), ("nearest by the base model", same)):
            answers = [held[pair] for pair in chosen if pair in held]
            relevant = sum(grade >= 0.5 for grade in answers)
            counts = {"asked": len(chosen), "answered": len(answers), "relevant": relevant}
            table.append({"after epoch": epoch, "chosen": way, **counts})
        share = len(asked) / entries
        counts = {"asked": len(asked), "answered": round(len(met) * share, 2)}
        counts["relevant"] = round(sum(grade >= 0.5 for grade in met.values()) * share, 2)
        table.append({"after epoch": epoch, "chosen": "at random (expected)", **counts})
    return table


def score(model: Path, folder: Path) -> dict[str, Mapping[str, float]]:
    """Split -> query -> nDCG@10."""
    return {
        split: evaluate(
            EncoderSystem(build_encoder(model), cache="none"), collection_task(folder / "pydocs", split)
        ).per_query[PRIMARY_METRIC]
        for split in SPLITS
    }


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A table as CSV, and on the terminal."""
    listed = list(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    print(path.read_text(encoding="utf-8"))


def main() -> None:
    """Train every arm with every seed, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    data = args.out / "data"
    if not data.is_dir():
        lay_out(data)
    trainers = {"half, regraded": Regrading}
    Regrading.judge = held_grades(data)[1]
    figures: dict[tuple[str, str, str], list[Mapping[str, float]]] = {}
    asked = []
    for seed in args.seeds:
        for arm in ARMS:
            out = args.out / f"{arm.replace(', ', '-')}-{seed}"
            recipe.GradedTrainer = trainers.get(arm, GradedTrainer)
            train_into(settings(arm, seed, data), out)
            if arm == "half, regraded":
                asked += [{"seed": seed, **row} for row in found(out, data)]
            for name, merged in (("model", "yes"), ("tuned", "no")):
                for split, own in score(out / name, data).items():
                    figures.setdefault((arm, merged, split), []).append(own)
    write(args.out / "found.csv", asked)
    rows = []
    for (arm, merged, split), seeds in figures.items():
        base = figures["half", merged, split]
        queries = sorted(seeds[0])
        gaps = np.array([[own[q] - other[q] for q in queries] for own, other in zip(seeds, base, strict=True)])
        gap = crossed_interval(gaps, [0] * len(queries))
        mean = float(np.mean([list(own.values()) for own in seeds]))
        row = {"arm": arm, "merged": merged, "split": split, "seeds": len(seeds), "ndcg@10": round(mean, 4)}
        ends = (("difference", gap.mean), ("low", gap.low), ("high", gap.high))
        rows.append({**row, **{name: round(value, 4) for name, value in ends}})
    write(args.out / "figures.csv", rows)


if __name__ == "__main__":
    main()
