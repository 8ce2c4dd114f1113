"""Train with a logit scale that grows to its value: `bixse train`, with one piece replaced.

    python docs/studies/decoder/growing.py 0.25 --config train.yaml --scale 20 --out runs/growing

The first word is the share of the scale at the first step; the scale grows evenly. The others are those of `bixse
train`.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback

from bixse.cli.main import main
from bixse.training import recipe

make_trainer = recipe.make_trainer


class GrowScale(TrainerCallback):
    """Set the scale before each step."""

    def __init__(self, loss: Any, share: float) -> None:
        self.loss, self.share, self.scale = loss, share, float(loss.logit_scale)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        done = self.share + (1 - self.share) * state.global_step / state.max_steps
        self.loss.logit_scale.data.fill_(self.scale * done)


def growing(*args: Any) -> Any:
    trainer = make_trainer(*args)
    trainer.add_callback(GrowScale(trainer.loss, float(sys.argv[1])))
    return trainer


if __name__ == "__main__":
    recipe.make_trainer = growing
    sys.exit(main(["train", *sys.argv[2:]]))
