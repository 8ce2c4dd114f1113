"""Train with weights that stay near the base model: `bixse train`, with one piece replaced.

    python docs/studies/unlabelled/near.py orbit --config data/pydocs-1-orbit-0.yaml --out runs/pydocs-1-orbit-0

The first word is orbit, frozen or frozen-3, the others are those of `bixse train`. measure.py calls this.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback

from bixse.cli.main import main
from bixse.encoders.loading.backbones import backbones
from bixse.training import recipe
from bixse.training.sharding import transformer_blocks

LIMIT = 0.002
"""Largest distance |w - w0| / |w0|. One pass of pydocs without a limit ends at .0054."""
FROZEN = {"frozen": 0, "frozen-3": 3}
"""Variant -> number of lowest layers that are not trained, as the token embeddings are not."""
make_loss, make_trainer = recipe.make_loss, recipe.make_trainer


def frozen(*args: Any) -> Any:
    loss = make_loss(*args)
    for part in backbones(loss.model):
        for module in (part.auto_model.embeddings, *transformer_blocks(part.auto_model)[: FROZEN[sys.argv[1]]]):
            module.requires_grad_(False)
    return loss


class StayNear(TrainerCallback):
    """Average the weights with those before training whenever they are too far from them (ORBIT, arXiv:2605.12419)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.weights = list(model.parameters())
        self.base = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def on_step_end(self, *_: Any, **__: Any) -> None:
        moved = get_total_norm([weight - base for weight, base in zip(self.weights, self.base, strict=True)])
        if moved / get_total_norm(self.base) > LIMIT:
            for weight, base in zip(self.weights, self.base, strict=True):
                weight.lerp_(base, 0.5)


def near(*args: Any) -> Any:
    trainer = make_trainer(*args)
    trainer.add_callback(StayNear(trainer.loss.model))
    return trainer


if __name__ == "__main__":
    if sys.argv[1] in FROZEN:
        recipe.make_loss = frozen
    else:
        recipe.make_trainer = near
    sys.exit(main(["train", *sys.argv[2:]]))
