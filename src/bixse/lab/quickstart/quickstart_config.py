"""`QuickstartConfig`: the few things that a quick start can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from bixse.errors import SEEDS, did_you_mean
from bixse.losses.catalogue import LOSSES
from bixse.settings import Flag, Settings


class QuickstartConfig(Settings):
    """Settings of `bixse quickstart`; also the keys of its YAML file."""

    fast: bool = False
    """A smaller run for a quick look."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Of training."""
    compare: Annotated[tuple[str, ...], Flag(metavar="LOSS")] = ()
    """Losses of `bixse.losses.LOSSES`, such as infonce, that are trained on the same pairs beside BiXSE."""

    @field_validator("compare")
    @classmethod
    def _other_losses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        others = [word for word in LOSSES if word != "bixse"]
        wrong = [word for word in value if word not in others]
        if wrong or len(set(value)) < len(value):
            hint = did_you_mean(wrong[0], others) if wrong else "name each once"
            raise ValueError(f"expected one or more of {', '.join(others)}, each once; fix: {hint}")
        return value
