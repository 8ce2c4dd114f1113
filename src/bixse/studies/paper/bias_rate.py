"""Study `bias-rate`: how much faster than the encoder the logit bias learns, from different starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.engine.study_config import merged
from bixse.studies.findings.contrasts import above

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    return [
        Cell(
            {"start": start, "multiplier": multiplier},
            train=merged(
                of_loss(config, "bixse"),
                {"loss_options": {"bias": start}, "optimizer": {"bias_lr_multiplier": multiplier}},
            ),
        )
        for start in values["starts"]
        for multiplier in values["multipliers"]
    ]


def _contrasts(values: Values) -> list[Contrast]:
    (slow, *faster), (first, *others) = sorted(values["multipliers"]), values["starts"]
    rates = [
        above(
            f"bias {fast} times as fast above {slow} times, start {start}",
            {"start": start, "multiplier": fast},
            {"start": start, "multiplier": slow},
        )
        for start in values["starts"]
        for fast in faster
    ]
    starts = [
        above(
            f"start {first} above {other} at {multiplier} times",
            {"start": first, "multiplier": multiplier},
            {"start": other, "multiplier": multiplier},
        )
        for other in others
        for multiplier in [slow, *faster]
    ]
    return rates + starts


STUDY = Study(
    name="bias-rate",
    title="Rate of the logit bias",
    paper="Fig. batch_size_and_lr, right: the bias has to learn much faster than the encoder",
    defaults={"multipliers": [1, 10, 100, 1000], "starts": ["fit", "prior"]},
    cells=_cells,
    contrasts=_contrasts,
    axis="multiplier",
    axis_scale="log",
    notes=("On short runs Adam moves the bias by at most its rate times the steps, so its start matters most.",),
)
"""The paper's Fig. batch_size_and_lr, right."""
