"""Study `batch-size`: the same passes over the data in batches of different sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.engine.study_config import merged
from bixse.studies.findings.contrasts import above, bixse_above_others

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    return [
        Cell(
            {"loss": loss, "batch_size": size},
            train=merged(of_loss(config, loss), {"optimizer": {"batch_size": size}}),
        )
        for loss in values["losses"]
        for size in values["batch_sizes"]
    ]


def _contrasts(values: Values) -> list[Contrast]:
    losses, sizes = values["losses"], sorted(values["batch_sizes"])
    low, high = sizes[0], sizes[-1]
    gains = [
        above(
            f"{loss} gains from batch {low} to {high}",
            {"loss": loss, "batch_size": high},
            {"loss": loss, "batch_size": low},
        )
        for loss in losses
        if len(sizes) > 1
    ]
    return gains + bixse_above_others(losses, "batch_size", sizes, "at batch {}")


STUDY = Study(
    name="batch-size",
    title="Batch size",
    paper="Fig. batch_size_and_lr, left: nDCG@10 against the batch size; larger batches bring more negatives per query",
    defaults={"batch_sizes": [4, 8, 16, 32, 64], "losses": ["bixse", "infonce"]},
    cells=_cells,
    contrasts=_contrasts,
    axis="batch_size",
    axis_scale="log",
    notes=(
        "The passes over the data are the same, so a larger batch makes fewer steps; the learning rate grows with the "
        "square root of the batch.",
    ),
)
"""The paper's Fig. batch_size_and_lr, left."""
