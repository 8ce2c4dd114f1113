"""`Study`: the arms of a figure of the paper, how they are measured, what is claimed, and what the plot shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from bixse.errors import ConfigError, did_you_mean
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.lab.experiments.arms import Arm
from bixse.lab.studies.measures import train_and_score
from bixse.lab.studies.study_config import merged

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.lab.experiments.arms import Measure
    from bixse.lab.findings.contrasts import Contrast
    from bixse.lab.studies.study_config import StudyConfig

Choices: TypeAlias = Mapping[str, Any]
"""What a study goes through: key -> list of values, or one value."""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("noise", "cutoffs"), (_is_share, "numbers from 0 to 1")),
    **dict.fromkeys(
        ("batch_sizes", "dim", "documents", "labels", "labels_per_query", "depth"), (_is_count, "integers above 0")
    ),
    "hard_negatives": (lambda value: value == 0 or _is_count(value), "integers from 0"),
    "multipliers": (lambda value: _is_number(value) and value > 0, "numbers above 0"),
}
"""What the values of a key may be: a test, and words for it. Other keys hold names."""


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper."""

    name: str
    title: str
    """Head line of plot and page."""
    paper: str
    """Where the paper has it, and what it says there."""
    defaults: Choices
    """What it goes through unless the configuration says otherwise."""
    arms: Callable[[StudyConfig, Choices, GradedPairs | None], list[Arm]]
    """Arms of a configuration; the training pairs are None where they are not read, for a plan."""
    contrasts: Callable[[Choices], list[Contrast]]
    measure: Measure = train_and_score
    """Does the runs of all arms that do not say otherwise."""
    axis: str | None = None
    """Label on the horizontal axis of the plot; None: one row per arm."""
    axis_scale: str = "linear"
    """Or "log"."""
    metric: str = PRIMARY_METRIC
    """What the plot and the table show."""
    needs_data: bool = True
    """Whether it reads pairs and collections."""
    notes: Sequence[str] = ()
    """What to know before reading its table."""


def chosen_values(study: Study, config: StudyConfig) -> dict[str, Any]:
    """The study's defaults with the configuration's values in their place; raises ConfigError."""
    for key, value in config.values.items():
        if key not in study.defaults:
            known = ", ".join(study.defaults) or "none"
            raise ConfigError(
                f"values: got {key!r}; expected one of {known} for study {study.name!r}; "
                f"fix: {did_you_mean(key, study.defaults)}"
            )
        if isinstance(study.defaults[key], list) and (not isinstance(value, list) or not value):
            raise ConfigError(f"values: got {value!r} for {key!r}; expected a list; fix: write [a, b, c]")
        _check_values(key, value, study.defaults[key])
    return {**study.defaults, **config.values}


def _check_values(key: str, value: object, default: object) -> None:
    allowed, expected = VALUES.get(key, (lambda part: isinstance(part, str), "names"))
    for part in value if isinstance(default, list) and isinstance(value, list) else [value]:
        if not allowed(part) and not (part is None and default is None):
            raise ConfigError(
                f"values: got {part!r} for {key!r}; expected {expected}; "
                f"fix: change it, or leave the key out for the default, {default!r}"
            )


def of_loss(config: StudyConfig, loss: str) -> dict[str, Any]:
    """Settings of an arm that trains with a loss: the word, and what the configuration has for it."""
    return {"loss": loss, **config.per_loss.get(loss, {})}


def arms_by(
    label: str,
    varied: Iterable[Any],
    config: StudyConfig,
    values: Choices,
    settings: Callable[[str, Any], tuple[dict[str, Any], dict[str, Any]]],
) -> list[Arm]:
    """An arm for each loss of the values and each varied value, which `label` names.

    `settings` gives, of a loss and a value, the settings of training on top of the loss's own, and the transforms of
    the pairs.
    """
    found = []
    for loss in values["losses"]:
        for value in varied:
            train, pairs = settings(loss, value)
            found.append(Arm({"loss": loss, label: value}, train=merged(of_loss(config, loss), train), pairs=pairs))
    return found
