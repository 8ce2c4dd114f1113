"""The arms of a sweep, from a grid or random draws, all checked before the first one is trained."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from bixse.errors import ERRORS_SHOWN, ConfigError
from bixse.lab.experiments.arms import Arm
from bixse.lab.sweep.sweep_config import MOST_TRIALS, Range
from bixse.training.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.lab.sweep.sweep_config import SweepConfig


def plan_arms(config: SweepConfig) -> list[Arm]:
    """Every arm of a sweep with its validated settings of training, in order; one that equals an earlier is left out.

    A random arm depends on the seed of the sweep and its own number alone. A ConfigError holds all errors together,
    each with the arms it concerns.

    Example:
        >>> from bixse.lab.sweep.sweep_config import SweepConfig
        >>> vary = {"scale": [10, 20], "optimizer.epochs": [3]}
        >>> config = SweepConfig(base={"pairs": "pairs.jsonl", "dev": "toy"}, vary=vary)
        >>> [arm.label for arm in plan_arms(config)]
        ['scale=10, epochs=3', 'scale=20, epochs=3']
    """
    base = config.base_settings()
    _refuse(list(_key_errors(config)))
    arms: dict[str, Arm] = {}
    errors: dict[str, list[str]] = {}
    choices = list(_choices(config))
    for choice in choices:
        try:
            settings = TrainConfig.load(None, deepcopy({**base, **choice})).resolved()
        except ConfigError as error:
            found = str(error).splitlines()[1:]
        else:
            found = list(_arm_errors(settings, choice))
            labels = {key: _as_read(settings, key, value) for key, value in choice.items()}
            arms.setdefault(settings.model_dump_json(), Arm(labels, train=settings.model_dump(mode="json")))
        for line in found:
            errors.setdefault(line, []).append(Arm(choice).label)
    _refuse([line + _where(labels, len(choices)) for line, labels in errors.items()])
    folders = Counter(arm.folder.casefold() for arm in arms.values())
    _refuse(
        [
            f"  vary: got two arms for the folder {name!r}; expected values that differ as text; fix: drop one"
            for name, number in folders.items()
            if number > 1
        ]
    )
    return list(arms.values())


def _setting(config: BaseModel, key: str) -> Any:
    """The value under a dotted key; None where its section is not there."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def _as_read(config: TrainConfig, key: str, given: Any) -> Any:
    """A varied value as training reads it ("1e-4" of a YAML file is a text); a section as it was given."""
    value = _setting(config, key)
    return given if isinstance(value, BaseModel) else value


def _choices(config: SweepConfig) -> Iterator[dict[str, Any]]:
    if config.search == "grid":
        for values in itertools.product(*config.vary.values()):
            yield dict(zip(config.vary, values, strict=True))
        return
    for number in range(1, (config.trials or 0) + 1):
        yield {key: _draw(values, f"{config.seed}/{number}/{key}") for key, values in config.vary.items()}


def _draw(values: list[Any] | Range, seed: str) -> Any:
    share = random.Random(seed).random()
    return values.draw(share) if isinstance(values, Range) else values[int(share * len(values))]


def _key_errors(config: SweepConfig) -> Iterator[str]:
    """What is wrong with the sweep itself, before there are arms."""
    ranges = [key for key, values in config.vary.items() if isinstance(values, Range)]
    if config.search == "random" and config.trials is None:
        yield "  trials: got nothing; expected a number for random search; fix: set `trials`, such as 20"
    if config.search == "grid" and config.trials is not None:
        yield f"  trials: got {config.trials}; expected none for a grid; fix: drop it, or set `search: random`"
    if config.search == "grid" and ranges:
        yield f"  vary.{ranges[0]}: got a range; expected a list in a grid; fix: list values, or set `search: random`"
    elif config.search == "grid" and (number := math.prod(map(len, config.vary.values()))) > MOST_TRIALS:
        fix = "fewer values, or `search: random`"
        yield f"  vary: got {number:,} combinations; expected at most {MOST_TRIALS:,}; fix: {fix}"
    for key in config.vary:
        if key == "seed":
            yield "  vary.seed: got the training seed; expected it as `seeds`; fix: move the list to `seeds`"
        if key in ("dev", "merge", "merge.documents") or key.startswith(("dev_", "guard")):
            yield (
                f"  vary.{key}: got a setting of the measure; expected one of training: figures on other queries or "
                "documents do not compare; fix: set it in `base`"
            )
        for other in config.vary:
            if key.startswith(f"{other}."):
                yield f"  vary.{key}: got a key within {other!r}, which varies too; expected one of them; fix: drop one"


def _arm_errors(config: TrainConfig, choice: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an arm whose settings are within their ranges."""
    if config.dev is None:
        yield "  dev: got nothing; expected a collection folder to rank the arms by; fix: set it in `base`"
    for key in choice:
        section = key.rpartition(".")[0]
        if section and _setting(config, section) is None:  # `lora: null` in base: the arm's value is nowhere
            yield f"  {key}: got no section {section!r}; expected one; fix: write `{section}: {{}}` in `base`"


def _where(labels: list[str], arms: int) -> str:
    if len(labels) == arms:
        return " (in every arm)"
    others = len(labels) - 1
    return f" (in arm {labels[0]}{f' and {others} more' if others else ''})"


def _refuse(errors: list[str]) -> None:
    if errors:
        head = f"sweep: {len(errors)} error{'s' if len(errors) != 1 else ''}"
        rest = [f"  ... and {len(errors) - ERRORS_SHOWN} more"] if len(errors) > ERRORS_SHOWN else []
        raise ConfigError("\n".join([head, *errors[:ERRORS_SHOWN], *rest]))
