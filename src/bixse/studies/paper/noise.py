"""Study `noise`: labels of a positive and a hard negative swapped with probability p, once before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import Contrast, bixse_above_others

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    return [
        Cell({"loss": loss, "noise": share}, train=of_loss(config, loss), pairs={"noise": share})
        for loss in values["losses"]
        for share in values["noise"]
    ]


def _contrasts(values: Values) -> list[Contrast]:
    """What noise costs a loss, on average over p, against what it costs BiXSE."""
    shares = [share for share in values["noise"] if share > 0]
    if "bixse" not in values["losses"] or 0 not in values["noise"] or not shares:
        return []
    found = []
    for other in [loss for loss in values["losses"] if loss != "bixse"]:
        terms: list[tuple[dict[str, str | float], float]] = []
        for loss, sign in (("bixse", 1.0), (other, -1.0)):
            terms += [({"loss": loss, "noise": share}, sign / len(shares)) for share in shares]
            terms.append(({"loss": loss, "noise": 0}, -sign))
        found.append(Contrast(f"noise costs bixse less than {other}, mean over p > 0", tuple(terms)))
        found += bixse_above_others(["bixse", other], "noise", [max(shares)], "at p = {}")
    return found


STUDY = Study(
    name="noise",
    title="Swapped labels",
    paper="Fig. landmark, right: with swapped labels BiXSE loses less than InfoNCE",
    defaults={"noise": [0, 0.1, 0.2, 0.3, 0.4, 0.5], "losses": ["bixse", "infonce"]},
    cells=_cells,
    contrasts=_contrasts,
    axis="noise",
)
"""The paper's Fig. landmark, right."""
