"""`Study`: what a study of the paper goes through, what it claims, and what its plot shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from bixse.errors import ConfigError, InputError, did_you_mean

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.cells import Cell
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast

STUDIES = {
    "losses": "loss_comparison",
    "noise": "noise",
    "cutoff": "cutoff",
    "batch-size": "batch_size",
    "bias-rate": "bias_rate",
    "hard-negatives": "hard_negatives",
    "annotation": "annotation",
    "rankers": "rankers",
    "memory": "memory",
}
"""Name of a study -> its module, in the order of the paper."""

Values: TypeAlias = Mapping[str, Any]
"""What a study goes through: key -> list of values, or one value."""


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper."""

    name: str
    """The word on the command line."""
    title: str
    """Head line of plot and page."""
    paper: str
    """Where the paper has it, and what it says there."""
    defaults: Values
    """What it goes through unless the configuration says otherwise."""
    cells: Callable[[StudyConfig, Values, GradedPairs | None], list[Cell]]
    """Cells of a configuration, without seeds: each is trained with every seed."""
    contrasts: Callable[[Values], list[Contrast]]
    """The claims that are tested."""
    axis: str | None = None
    """Label on the horizontal axis of the plot; None: one row per cell."""
    axis_scale: str = "linear"
    """Or "log"."""
    metric: str = "ndcg@10"
    """What the plot and the table show."""
    lower_is_better: bool = False
    """Of the metric."""
    needs_data: bool = True
    """Whether it reads pairs and collections."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What to know before reading its table."""


def find_study(name: str) -> Study:
    """A study by its name.

    Raises:
        InputError: there is no such study; the message names the closest.

    Example:
        >>> find_study("noise").axis
        'noise'
    """
    if name not in STUDIES:
        raise InputError(f"study: got {name!r}; expected one of {', '.join(STUDIES)}; "
                         f"fix: {did_you_mean(name, STUDIES)}")  # fmt: skip
    found: Study = import_module(f"bixse.studies.paper.{STUDIES[name]}").STUDY
    return found


def chosen_values(study: Study, config: StudyConfig) -> dict[str, Any]:
    """The study's defaults with the configuration's values in their place.

    Raises:
        ConfigError: an unknown key, or a value of another kind than the default.
    """
    for key, value in config.values.items():
        if key not in study.defaults:
            known = ", ".join(study.defaults) or "none"
            raise ConfigError(
                f"values: got {key!r}; expected one of {known} for study {study.name!r}; "
                f"fix: {did_you_mean(key, study.defaults)}"
            )
        default = study.defaults[key]
        if isinstance(default, list) and (not isinstance(value, list) or not value):
            raise ConfigError(f"values: got {value!r} for {key!r}; expected a list; fix: write [a, b, c]")
    return {**study.defaults, **config.values}


def of_loss(config: StudyConfig, loss: str) -> dict[str, Any]:
    """Settings of a cell that trains with a loss: the word, and what the configuration has for it."""
    return {"loss": loss, **config.per_loss.get(loss, {})}
