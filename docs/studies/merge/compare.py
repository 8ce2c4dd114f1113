"""Ways to keep what the base model knew, on the same data: what each gains on dev and test and loses on guard.

Every arm is trained on the train queries of pydocs, then weights theta = (1 - w) base + w tuned are scored for several
w over the full corpus. A row is added to the table as soon as it is known, and an arm that is in the table is not
trained again.

    python docs/studies/merge/compare.py --arms bixse infonce --seeds 0 1 2 3 4 --out docs/studies/merge/compare.csv
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback, set_seed

from bixse.data.graded_pairs import Pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.weights import add_lora, merge_lora
from bixse.evaluation.metrics import PRIMARY_METRIC, evaluate_run
from bixse.losses.bixse import BiXSELoss
from bixse.losses.catalogue import build_loss
from bixse.search.search_collection import encode_collection
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import training_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bixse.data.collection import Collection

SPLITS = ("dev", "guard", "test")
WEIGHTS = (0.3, 0.5, 0.7, 1.0)
MAX_LENGTH = 64
"""Tokens of a text that are read, in training and in search: every arm reads the same."""

ARMS: dict[str, dict[str, Any]] = {
    "bixse": {},
    "infonce": {"loss": "infonce"},
    "two passes": {"num_train_epochs": 2},
    "two passes, infonce": {"num_train_epochs": 2, "loss": "infonce"},
    "four passes": {"num_train_epochs": 4},
    "rate 2e-5": {"learning_rate": 2e-5},
    "rate 3e-4": {"learning_rate": 3e-4},
    "half the steps": {"max_steps": 21},
    "L2 to the base, 0.01": {"l2": 0.01},
    "L2 to the base, 0.1": {"l2": 0.1},
    "distillation, 10": {"distil": 10.0},
    "distillation, 100": {"distil": 100.0},
    "LoRA, rank 32": {"lora": 32, "learning_rate": 1e-3},
    "LoRA, rank 32, rate 3e-4": {"lora": 32, "learning_rate": 3e-4},
}
"""Name -> what differs from one pass of BiXSE at the default rate, batch and documents per query."""


class PullToBase(TrainerCallback):  # type: ignore[misc]
    """L2 towards the base weights (L2-SP, Li et al. 2018, arXiv:1802.01483), decoupled from Adam's step.

    Args:
        parameters: the encoder's, by name.
        base: their values before training.
        strength: share of the way back to the base in a step at peak rate.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter], base: dict[str, torch.Tensor], strength: float):
        self.parameters, self.base, self.strength = parameters, base, strength

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Move every weight a part of the way back."""
        rate = rest["lr_scheduler"].get_last_lr()[0] / args.learning_rate
        for name, parameter in self.parameters.items():
            parameter.lerp_(self.base[name], self.strength * rate)


class DistilledBiXSE(BiXSELoss):
    """BiXSE plus a distance of the similarities among corpus texts from those under the base model.

    Args:
        model: the encoder.
        texts: unlabelled corpus texts.
        base: their (N, D) embeddings under the base model.
        strength: weight of the mean squared difference of cosines.
    """

    def __init__(self, model: Any, texts: list[str], base: torch.Tensor, strength: float, **options: Any) -> None:
        super().__init__(model, **options)
        self.texts, self.base, self.strength = texts, base, strength
        self.draws = np.random.default_rng(0)

    def forward(self, sentence_features: Any, labels: Any) -> torch.Tensor:
        """The loss of a batch and of 32 texts drawn at random."""
        drawn = self.draws.choice(len(self.texts), 32, replace=False)
        loss = super().forward(sentence_features, labels)
        features = self.model.preprocess([self.texts[row] for row in drawn])
        vectors = torch.nn.functional.normalize(self._embed(features).float(), dim=-1)
        base = self.base[drawn]
        return loss + self.strength * ((vectors @ vectors.T - base @ base.T) ** 2).mean() * len(drawn)


def train_arm(arm: dict[str, Any], seed: int, pairs: Pairs, texts: list[str]) -> tuple[Any, Any]:
    """The base weights and the model trained from them."""
    set_seed(seed)
    model = build_encoder("demo", MAX_LENGTH)
    optimizer = {name: arm[name] for name in ("num_train_epochs", "learning_rate", "max_steps") if name in arm}
    config = TrainConfig(pairs="unused", seed=seed, optimizer={"num_train_epochs": 1, **optimizer})
    base = {name: value.clone() for name, value in model.state_dict().items()}
    if "lora" in arm:
        add_lora(model, arm["lora"])
    if "distil" in arm:
        with torch.no_grad():
            vectors = torch.tensor(model.encode(texts, normalize_embeddings=True))
        loss: Any = DistilledBiXSE(model, texts, vectors, arm["distil"], scale=config.scale)
    elif arm.get("loss") == "infonce":
        loss = build_loss("infonce", model, scale=config.scale, positive_from=0.5)
    else:
        loss = build_loss("bixse", model, scale=config.scale)
    pull = PullToBase(dict(model.named_parameters()), base, arm["l2"]) if "l2" in arm else None
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(config.resolved(), Path(folder), None)
        arguments.save_strategy = "no"
        trainer = GradedTrainer(model, arguments, pairs, loss=loss, callbacks=[pull] if pull else [])
        trainer.train()
    if "lora" in arm:
        merge_lora(model)
    return base, model


def score(model: Any, collection: Collection) -> dict[str, dict[str, float]]:
    """Split -> query -> nDCG@10 over the full corpus."""
    queries = [query for split in SPLITS for query in collection.qrels[split]]
    encoded = encode_collection(model.eval(), collection, queries)
    qrels = {split: collection.qrels[split] for split in SPLITS}
    return {s: evaluate_run(q, encoded.search(list(q)), [PRIMARY_METRIC])[PRIMARY_METRIC] for s, q in qrels.items()}


def rows(name: str, seed: int, w: float, found: dict[str, Any], base: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """A row per split: the mean, its difference from the base model and the standard error over queries."""
    for split in SPLITS:
        gains = np.array([found[split][query] - base[split][query] for query in base[split]])
        yield {
            "arm": name, "seed": seed, "w": w, "split": split,
            "ndcg@10": round(float(np.mean(list(found[split].values()))), 4),
            "difference": round(float(gains.mean()), 4),
            "standard error": round(float(gains.std(ddof=1) / np.sqrt(len(gains))), 4), "queries": len(gains),
        }  # fmt: skip


def main() -> None:
    """Train and score the arms that are not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--weights", nargs="+", type=float, default=list(WEIGHTS))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("compare.csv"))
    arguments = parser.parse_args()
    collection = load_pydocs()
    pairs = Pairs.from_collection(collection, "train", PYDOCS_SCALE)
    texts = [document.content for document in collection.corpus.values()]
    untrained = score(build_encoder("demo", MAX_LENGTH), collection)
    done = set()
    if arguments.out.is_file():
        with arguments.out.open(encoding="utf-8", newline="") as file:
            done = {(row["arm"], int(row["seed"])) for row in csv.DictReader(file)}
    for seed in arguments.seeds:
        for name in arguments.arms:
            if (name, seed) in done:
                continue
            started = time.perf_counter()
            base, model = train_arm(ARMS[name], seed, pairs, texts)
            seconds = time.perf_counter() - started
            tuned = {key: value.clone() for key, value in model.state_dict().items()}
            found = []
            for w in arguments.weights:
                mixed = {k: torch.lerp(base[k], v, w) if v.is_floating_point() else v for k, v in tuned.items()}
                model.load_state_dict(mixed)
                found += rows(name, seed, w, score(model, collection), untrained)
            new = not arguments.out.is_file()
            with arguments.out.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, [*found[0], "seconds"], lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerows({**row, "seconds": round(seconds, 1)} for row in found)
            print(name, seed, f"{seconds:.0f} s", [(r["w"], r["split"], r["difference"]) for r in found], flush=True)


if __name__ == "__main__":
    main()
