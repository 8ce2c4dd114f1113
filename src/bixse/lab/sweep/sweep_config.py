"""`SweepConfig`: what a sweep varies, and around what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from bixse.encoders.loading.precision import Setting
from bixse.errors import SEEDS, ConfigError
from bixse.files.files import read_settings
from bixse.scale.engines.engine_settings import PlaceSettings
from bixse.settings import Settings, map_paths
from bixse.training.config import TrainConfig

MOST_TRIALS = 10_000
"""Arms of one sweep at most: each has a row of the table and a folder."""


class Range(Settings):
    """Numbers from `low` to `high` for random search.

    Example:
        >>> Range(low=1e-5, high=1e-3, log=True).draw(0.5), Range(low=1, high=8, whole=True).draw(0.99)
        (0.0001, 8)
    """

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Draw evenly over the orders of magnitude; `low` is above 0."""
    whole: bool = False
    """Draw whole numbers, both ends included."""

    @model_validator(mode="after")
    def _usable(self) -> Range:
        if not self.low < self.high or math.isinf(self.high - self.low):
            raise ValueError("expected numbers low < high")
        if self.log and self.low <= 0:
            raise ValueError("expected low above 0 where log is true")
        if self.whole and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("expected whole numbers for low and high where whole is true")
        return self

    def draw(self, share: float) -> float:
        """The value at a share in [0, 1) of the way from `low` to `high`: whole, or of four digits."""
        low, high = self.low, self.high + self.whole
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if self.whole:
            return min(int(value), int(self.high))
        short = float(f"{value:.4g}")
        return short if self.low <= short <= self.high else value


def _read_values(given: Any) -> list[Any] | Range:
    """The values of a varied setting: a list, or a range from its mapping."""
    if isinstance(given, Range) or (isinstance(given, list) and given):
        return given
    if not isinstance(given, Mapping):
        raise ValueError("expected a list of values, or a range such as {low: 1e-5, high: 1e-3, log: true}")
    try:
        return Range.load(None, given)
    except ConfigError as error:
        raise ValueError("; ".join(line.strip() for line in str(error).splitlines()[1:])) from None


class SweepConfig(PlaceSettings):
    """Settings of `bixse sweep`; also the keys of its YAML file, in which relative paths are taken from its folder.

    Example:
        >>> config = SweepConfig(base="run.yaml", vary={"loss": ["bixse", "infonce"], "optimizer.batch_size": [16, 32]})
        >>> config.search, config.keep
        ('grid', 'best')
    """

    renamed: ClassVar = {"cells": "write trials"}

    base: dict[str, Any] | Path
    """Settings of `TrainConfig` that all arms share, or the YAML file of `bixse train` that holds them."""
    vary: dict[str, Annotated[Any, PlainValidator(_read_values)]] = Field(min_length=1)
    """Setting (a dotted key of `TrainConfig`) -> a list of values, or a `Range` in random search."""
    search: Literal["grid", "random"] = "grid"
    """All combinations of the values, or `trials` random ones."""
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Draws of random search. It may be raised later: the earlier arms stay what they are."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Of the draws of random search."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=SEEDS)], ...] | None = Field(default=None, min_length=1)
    """Training seeds of each arm, ranked by their mean; null takes the one of `base`."""
    keep: Literal["best", "all", "none"] = "best"
    """Whose models stay on disk. Best alone by default: each takes the size of the encoder, the table needs none."""
    precision: Setting | None = None
    """What is computed in, instead of what `base` says: auto, float32 or bfloat16."""
    jobs: int | None = 1
    """Runs at once, each in a process of its own; null: one per GPU, or one per core; with Ray: as many as fit."""

    @field_validator("base", mode="before")
    @classmethod
    def _mapping_or_path(cls, value: Any) -> Any:
        if not isinstance(value, (str, Path, Mapping)):
            raise ValueError("expected settings of `bixse train`, or the path of their YAML file")
        return value

    @field_validator("seeds")
    @classmethod
    def _different(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("expected different seeds; fix: drop the second")
        return value

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        moved = dict(values)
        if isinstance(values.get("base"), Mapping):
            moved["base"] = TrainConfig.from_folder(values["base"], folder)
        elif "base" in values:
            moved["base"] = map_paths(values["base"], folder.joinpath)
        if isinstance(values.get("vary"), Mapping):
            moved["vary"] = TrainConfig.from_folder(values["vary"], folder)
        return moved

    def base_settings(self) -> dict[str, Any]:
        """The settings that all arms share, from their file where `base` names one."""
        base = self.base
        if isinstance(base, Path):
            base = TrainConfig.from_folder(read_settings(base), base.parent)
        return base if self.precision is None else {**base, "precision": self.precision}
