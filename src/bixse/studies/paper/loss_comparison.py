"""Study `losses`: BiXSE, its ablations and every objective it is compared with, on the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import above

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    trained = [Cell({"loss": loss}, train=of_loss(config, loss)) for loss in values["losses"]]
    return [*trained, Cell({"loss": "untrained"}, kind="untrained"), Cell({"loss": "bm25"}, kind="bm25")]


def _contrasts(values: Values) -> list[Contrast]:
    losses = values["losses"]
    if "bixse" not in losses:
        return []
    others = ["untrained", *(loss for loss in losses if loss != "bixse")]
    names = {"untrained": "the untrained encoder"}
    return [above(f"bixse above {names.get(other, other)}", {"loss": "bixse"}, {"loss": other}) for other in others]


STUDY = Study(
    name="losses",
    title="Losses on the same rows",
    paper="Table 1 and the loss ablation: BiXSE is above InfoNCE, above its own ablations, and level with or above the "
    "pairwise and listwise losses",
    defaults={
        "losses": [
            "bixse", "bixse-without-bias", "bixse-binarised", "infonce", "soft-infonce", "margin-mse", "pairwise-bce",
            "lambdaloss-v1", "lambdaloss-v2",
        ]
    },
    cells=_cells,
    contrasts=_contrasts,
)  # fmt: skip
"""The paper's Table 1 (one encoder, one collection) and Fig. ablate_methods."""
