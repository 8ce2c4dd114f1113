"""Train with another target of unlabelled entries, or another bias: `bixse train`, with one piece replaced.

    python docs/studies/unlabelled/variants.py prior --config data/pydocs-1-prior-0.yaml --out runs/pydocs-1-prior-0

The first word is a key of VARIANTS, the others are those of `bixse train`. `merged` and `tuned` take the model that was
trained with `base` and the same seed (its folder is next to --out) for their teacher. measure.py calls this.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer

from bixse.cli.main import main
from bixse.losses.bixse import BiXSELoss
from bixse.losses.targets import BaseProbability, GradedTargets
from bixse.training.loop import batches, trainer
from bixse.training.loop.unlabelled import BaseTargets, KnownEntries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

GRADED_WEIGHT = 0.3
"""Weight of the base model's probability in the target of a graded entry, for `graded`."""


def only_above_the_prior() -> None:
    """Give an entry 0 unless its probability is above the mean relevance of an entry."""
    prior = 0.0
    fit, block = BaseTargets.fit, BaseProbability.block

    def fit_and_count(self: BaseTargets, entries: Iterable[KnownEntries]) -> None:
        nonlocal prior
        known = list(entries)
        fit(self, known)
        dense = [batch.targets.dense() for batch in known]
        prior = sum(float(z[counts > 0].sum()) for z, counts in dense) / sum(int((n > 0).sum()) for _, n in dense)

    def above(self: BaseProbability, rows: slice, columns: slice) -> Tensor:
        p = block(self, rows, columns)
        return p.where(p > prior, 0.0)

    BaseTargets.fit, BaseProbability.block = fit_and_count, above


def graded_entries_too() -> None:
    """Mix the base model's probability into the relevance of graded entries."""

    def mixed(targets: GradedTargets, unlabelled: BaseProbability) -> GradedTargets:
        p = unlabelled.block(slice(None), slice(None))[targets.rows, targets.columns]
        relevance = (1 - GRADED_WEIGHT) * targets.relevance + GRADED_WEIGHT * p
        return dataclasses.replace(targets, unlabelled=unlabelled, relevance=relevance)

    batches.replace = mixed


def teacher(folder: str) -> None:
    """Take a trained model for the base model: self-training."""
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    path = out.with_name(out.name.replace(sys.argv[1], "base")) / folder
    embed = trainer.base_embeddings

    def by_teacher(_: SentenceTransformer, *rest: Any) -> Any:
        return embed(SentenceTransformer(str(path)), *rest)

    trainer.base_embeddings = by_teacher


def bias_of_each_batch() -> None:
    """Fit the bias to each batch, and do not learn it: then no gradient moves all cosines of a batch together."""
    compute = BiXSELoss.compute_loss_from_embeddings

    def fitted(self: BiXSELoss, *batch: Any) -> Tensor:
        self.bias_is_set.fill_(False)
        return compute(self, *batch)

    BiXSELoss.compute_loss_from_embeddings = fitted


VARIANTS: dict[str, Callable[[], None]] = {
    "prior": only_above_the_prior,
    "graded": graded_entries_too,
    "merged": partial(teacher, "model"),
    "tuned": partial(teacher, "tuned"),
    "bias-per-batch": bias_of_each_batch,
}

if __name__ == "__main__":
    VARIANTS[sys.argv[1]]()
    sys.exit(main(["train", *sys.argv[2:]]))
