"""Study `hard-negatives`: graded documents per query against queries per batch, with as many documents per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.errors import InputError
from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.engine.study_config import merged
from bixse.studies.findings.contrasts import bixse_above_others

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    if pairs is not None:
        sizes = sorted(len(group.documents) for group in pairs.groups())
        most = max(values["hard_negatives"])
        if sizes[len(sizes) // 2] < most + 1:
            raise InputError(
                f"hard_negatives: got {most}; expected at most {sizes[len(sizes) // 2] - 1}: half of the queries have "
                "no more graded documents; fix: lower it, or train on data with more of them"
            )
    found = []
    for loss in values["losses"]:
        for negatives in values["hard_negatives"]:
            optimizer = {
                "documents_per_query": negatives + 1,
                "batch_size": max(1, values["documents"] // (negatives + 1)),
            }
            train = merged(of_loss(config, loss), {"optimizer": optimizer})
            found.append(Cell({"loss": loss, "hard_negatives": negatives}, train=train))
    return found


def _contrasts(values: Values) -> list[Contrast]:
    counts = sorted(values["hard_negatives"])
    return bixse_above_others(values["losses"], "hard_negatives", counts, "with {} hard negatives")


STUDY = Study(
    name="hard-negatives",
    title="Hard negatives against batch size, as many documents per batch",
    paper="Tables bge_*: 15/16, 7/32, 3/64, 1/128 and 0/256 hard negatives/queries; with several graded documents a "
    "query LambdaLoss is ahead of BiXSE in the paper's own table",
    defaults={
        "hard_negatives": [0, 1, 3, 7],
        "documents": 64,
        "losses": ["bixse", "infonce", "soft-infonce", "lambdaloss-v2"],
    },
    cells=_cells,
    contrasts=_contrasts,
    axis="hard_negatives",
    notes=("Of a query the best document and others drawn anew each pass are in the batch; none is thrown away.",),
)
"""The paper's Tables bge_*."""
