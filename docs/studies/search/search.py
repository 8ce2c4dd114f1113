"""The search behind the defaults: train on the train queries of pydocs, score on its dev queries.

Every cell is one training run; a row is added to the table as soon as the cell is done, and a cell that is in the
table already is not run again. The test queries are never read.

    python docs/studies/search/search.py --stage rates --out docs/studies/search/search.csv
    python docs/studies/search/search.py --stage full-corpus --out docs/studies/search/full-corpus.csv
    OMP_NUM_THREADS=1 python docs/studies/search/search.py --stage full-corpus --part 1/2   # and 2/2 at once
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection import save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_RELEVANT_GRADE, PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.search.bm25 import BM25
from bixse.search.search_collection import encode_collection
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import DevEvaluator, EvalCorpus, EvalQueries
from bixse.training.train import train_into

if TYPE_CHECKING:
    import torch

    from bixse.data.collection import Collection

BASE: dict[str, Any] = {
    "loss": "bixse",
    "learning_rate": 5e-5,
    "num_train_epochs": 2,
    "global_batch_size": 16,
    "documents_per_query": 4,
    "bias_lr_multiplier": 100.0,
    "bias": "fit",
    "scale": 20.0,
    "learn_scale": False,
    "max_grad_norm": 0.0,
    "dropout": None,
    "positive_from": 0.5,
    "train_max_length": 64,
    "seed": 0,
}
"""The cell that every stage varies."""

CENTER: dict[str, Any] = {"learning_rate": 1e-4, "scale": 10.0}
"""Where the search over the full corpus stands, on top of the base cell."""

CANDIDATES = 10
"""Documents a dev query that BM25 and the untrained encoder each add to the judged ones."""


def grid(**choices: list[Any]) -> list[dict[str, Any]]:
    """Every combination of the choices, on top of the base cell."""
    names = list(choices)
    return [{**BASE, **dict(zip(names, values, strict=True))} for values in itertools.product(*choices.values())]


def around(loss: str, center: dict[str, Any], **choices: list[Any]) -> list[dict[str, Any]]:
    """Cells that change one setting at a time."""
    start = {**BASE, "loss": loss, **center}
    return [{**start, name: value} for name, values in choices.items() for value in values]


STAGES: dict[str, list[dict[str, Any]]] = {
    "rates": grid(loss=["bixse", "infonce", "soft-infonce"], learning_rate=[2e-5, 5e-5, 1e-4, 2e-4]),
    "bixse-scale": [
        *around("bixse", {"learning_rate": 1e-4}, num_train_epochs=[3], scale=[5.0, 10.0, 30.0]),
        *around("bixse", {"learning_rate": 1e-4, "scale": 10.0}, dropout=[0.0]),
    ],
    "bixse": around(
        "bixse",
        {"learning_rate": 2e-4, "scale": 10.0},
        learning_rate=[2e-4, 4e-4],
        seed=[1],
        bias_lr_multiplier=[10.0, 1000.0],
        documents_per_query=[8],
        bias=["prior"],
        num_train_epochs=[3],
        global_batch_size=[32],
    ),
    "infonce": [
        *around("infonce", {"learning_rate": 1e-4}, num_train_epochs=[3], scale=[10.0], positive_from=[0.3]),
        *around("infonce", {"learning_rate": 2e-4, "scale": 10.0}, seed=[0, 1]),
    ],
    "full-corpus": [
        *grid(learning_rate=[1e-4], scale=[10.0], seed=[0, 1, 2], loss=["bixse", "infonce", "soft-infonce"]),
        *around("bixse", CENTER, bias=["prior", -3.0], bias_lr_multiplier=[1.0, 10.0, 1000.0], learn_scale=[True]),
        *(
            cell
            for name, values in {
                "learning_rate": [5e-5, 2e-4],
                "scale": [5.0, 20.0],
                "num_train_epochs": [1, 3],
                "global_batch_size": [8, 32],
                "documents_per_query": [2, 8],
            }.items()
            for value in values
            for loss in ("bixse", "infonce", "soft-infonce")
            for cell in around(loss, CENTER, **{name: [value]})
        ),
        *(
            cell
            for loss in ("bixse", "infonce", "soft-infonce")
            for cell in around(loss, {**CENTER, "num_train_epochs": 3}, seed=[1])
        ),
    ],
    "soft-infonce": [
        *around("soft-infonce", {"learning_rate": 1e-4}, scale=[20.0, 10.0]),
        *around("soft-infonce", {"learning_rate": 2e-4, "scale": 10.0}, seed=[0, 1]),
    ],
}


def main() -> None:
    """Run the cells of one stage that are not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", choices=sorted(STAGES), required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("search.csv"))
    parser.add_argument("--part", default="1/1", help="K/N: every N-th cell from the K-th on, for N processes at once")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bixse-search-"))
    collection = load_pydocs()
    save_graded_pairs(Pairs.from_collection(collection, "train", PYDOCS_SCALE), work / "train.jsonl")
    save_collection(collection, work)
    evaluator = dev_evaluator(collection, full=arguments.stage == "full-corpus")
    done = {tuple(sorted(cell.items())) for cell in read_cells(arguments.out)}
    part, parts = (int(number) for number in arguments.part.split("/"))
    for cell in STAGES[arguments.stage][part - 1 :: parts]:
        if tuple(sorted((name, str(value)) for name, value in cell.items())) in done:
            continue
        started = time.perf_counter()
        figures = evaluator(train_cell(cell, work))
        row = {**cell, **{name: round(value, 4) for name, value in figures.items()}}
        row["seconds"] = round(time.perf_counter() - started, 1)
        append_row(arguments.out, row)
        print(row, flush=True)
    shutil.rmtree(work)


def dev_evaluator(collection: Collection, full: bool) -> DevEvaluator:
    """Graded nDCG@10 on the dev queries, over the full corpus or the documents judged or hard before training."""
    dev = EvalQueries("pydocs", collection.queries, collection.qrels["dev"])
    texts = {document_id: document.content for document_id, document in collection.corpus.items()}
    corpus = EvalCorpus("pydocs", texts, (dev,))
    if full:
        return DevEvaluator([corpus], PYDOCS_RELEVANT_GRADE)
    base = encode_collection(build_encoder("demo", 128), collection, list(dev.judged))
    queries = {query_id: collection.queries[query_id] for query_id in dev.judged}
    runs = [BM25(list(texts), list(texts.values())).search(queries, CANDIDATES), base.search(list(queries), CANDIDATES)]
    return DevEvaluator([corpus.narrowed(dev, runs)], PYDOCS_RELEVANT_GRADE)


def train_cell(cell: dict[str, Any], work: Path) -> torch.nn.Module:
    """Train one cell and load its model."""
    options = {"bixse": ("bias", "learn_scale"), "infonce": ("positive_from",), "soft-infonce": ()}
    optimizer = (
        "learning_rate",
        "num_train_epochs",
        "global_batch_size",
        "documents_per_query",
        "bias_lr_multiplier",
        "max_grad_norm",
    )
    config = TrainConfig(
        pairs=work / "train.jsonl",
        loss=cell["loss"],
        scale=cell["scale"],
        loss_options={name: cell[name] for name in options[cell["loss"]]},
        max_length=128,
        train_max_length=cell["train_max_length"],
        dropout=cell["dropout"],
        seed=cell["seed"],
        optimizer={name: cell[name] for name in optimizer},
    )
    out = Path(tempfile.mkdtemp(dir=work))
    result = train_into(config, out, progress=False)
    model = build_encoder(result.model_path) if cell["loss"] != "bixse" else load_relevance_model(result.model_path)
    shutil.rmtree(out)
    return model


def read_cells(path: Path) -> list[dict[str, str]]:
    """The cells of the table, as text."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: row[name] if row[name] else "None" for name in BASE} for row in csv.DictReader(file)]


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one row; the header comes with the first."""
    new = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
