"""Study `cutoff`: training on the pairs of relevance c and above, every cut with as many pairs as the smallest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.transforms.transforms import keep_from
from bixse.errors import InputError
from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import above, bixse_above_others

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast

KEEPS_GRADES = "bixse"
"""The other losses take every pair that is left as a positive, as InfoNCE does in the paper."""


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    cutoffs = values["cutoffs"]
    size = None
    if pairs is not None:
        sizes = {cutoff: len(keep_from(pairs, cutoff)) for cutoff in cutoffs}
        size = min(sizes.values())
        if not size:
            empty = min(cutoff for cutoff, count in sizes.items() if not count)
            raise InputError(
                f"cutoffs: got {empty}, which no training pair reaches (the highest has relevance "
                f"{float(pairs.relevance.max())}); expected values that some do; fix: lower it"
            )
    found = []
    for loss in values["losses"]:
        for cutoff in cutoffs:
            settings = {"cutoff": cutoff, **({"size": size} if size else {})}
            if loss != KEEPS_GRADES:
                settings["binarise"] = cutoff
            found.append(Cell({"loss": loss, "cutoff": cutoff}, train=of_loss(config, loss), pairs=settings))
    return found


def _contrasts(values: Values) -> list[Contrast]:
    losses, cutoffs = values["losses"], sorted(values["cutoffs"])
    if KEEPS_GRADES not in losses or len(cutoffs) < 2:
        return []
    low, high = cutoffs[0], cutoffs[-1]
    found = []
    for other in [loss for loss in losses if loss != KEEPS_GRADES]:
        found += bixse_above_others([KEEPS_GRADES, other], "cutoff", cutoffs, "at cutoff {}")
        ends = {"loss": other, "cutoff": high}, {"loss": other, "cutoff": low}
        found.append(above(f"{other} needs a cutoff: {high} above {low}", *ends))
    ends = {"loss": KEEPS_GRADES, "cutoff": low}, {"loss": KEEPS_GRADES, "cutoff": high}
    found.append(above(f"bixse makes use of weak pairs: {low} above {high}", *ends))
    return found


STUDY = Study(
    name="cutoff",
    title="Relevance cutoff, sizes matched",
    paper="Fig. data_cutoff: InfoNCE needs a cutoff that removes weakly relevant pairs, BiXSE makes use of them",
    defaults={"cutoffs": [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "losses": ["bixse", "infonce"]},
    cells=_cells,
    contrasts=_contrasts,
    axis="cutoff",
)
"""The paper's Fig. data_cutoff."""
