"""Study `annotation`: a fixed budget of labels, spent on many queries or on many documents per query."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bixse.studies.engine.cells import Cell
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.engine.study_config import merged, train_config
from bixse.studies.findings.contrasts import above, bixse_above_others

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    labels = values["labels"] or (len(pairs.groups()) if pairs is not None else 0)
    found = []
    for loss in values["losses"]:
        train = of_loss(config, loss)
        settings = train_config({**merged(config.train, train), "pairs": "pairs.parquet"}).optimizer
        passes = math.ceil(labels / max(values["labels_per_query"][:1]) / settings.batch_size) * settings.epochs
        optimizer: dict[str, Any] = {"documents_per_query": None}
        if pairs is not None:
            optimizer["steps"] = max(1, settings.steps or passes)
        found += [
            Cell(
                {"loss": loss, "labels_per_query": count},
                train=merged(train, {"optimizer": optimizer}),
                pairs={"labels_per_query": count, "labels": labels},
            )
            for count in values["labels_per_query"]
        ]
    return found


def _contrasts(values: Values) -> list[Contrast]:
    losses, counts = values["losses"], sorted(values["labels_per_query"])
    fewest = {"loss": "bixse", "labels_per_query": counts[0]}
    spread = [
        above(
            f"bixse: {counts[0]} per query above {count} for the same budget",
            fewest,
            {**fewest, "labels_per_query": count},
        )
        for count in counts[1:]
        if "bixse" in losses
    ]
    return bixse_above_others(losses, "labels_per_query", counts, "with {} labels per query") + spread


STUDY = Study(
    name="annotation",
    title="A fixed budget of labels",
    paper="The economic claim: BiXSE learns from a single labelled pair per query, where pairwise and listwise losses "
    "need several",
    defaults={
        "labels_per_query": [1, 2, 3, 6],
        "labels": None,
        "losses": ["bixse", "infonce", "pairwise-bce", "lambdaloss-v2"],
    },
    cells=_cells,
    contrasts=_contrasts,
    axis="labels_per_query",
    notes=(
        "The budget is one label a training query unless `labels` says otherwise. Documents are drawn before their "
        "label is known; a query whose label is not relevant gives InfoNCE nothing. All labels of a query are in the "
        "batch, and all arms make as many steps as the first one does in its passes.",
    ),
)
"""The paper's claim that one graded pair per query is enough."""
