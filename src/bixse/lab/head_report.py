"""Calibrate the heads of models on the dev pairs of a collection, and measure them on its test pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bixse.calibration.calibrate_head import fit_head
from bixse.calibration.reliability import calibration_report
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.search.search_collection import EncodedCollection, encode_collection

if TYPE_CHECKING:
    from bixse.data.collection import Collection
    from bixse.progress import ProgressBars
    from bixse.relevance import GradeScale
    from bixse.results import CalibrationReport


def calibrate_on_dev(
    models: Mapping[str, str],
    saved: str,
    collection: Collection,
    scale: GradeScale,
    seed: int = 0,
    progress: ProgressBars | None = None,
) -> dict[str, CalibrationReport]:
    """Fit the head of each model (label -> folder) on the dev pairs, and return reports on the test pairs.

    The model `saved` is reported as trained, too, and its fitted head is saved in its folder.
    """
    judged = [query for split in ("dev", "test") for query in collection.qrels[split]]
    reports = {}
    for label, model in models.items():
        encoded = encode_collection(build_encoder(model), collection, judged, progress)
        head = RelevanceHead.load(Path(model)) if label == saved else None
        if head is not None:  # an interrupted call may have saved the calibrated head
            head = replace(head, slope=1.0, intercept=0.0, calibrated_on=None)
        cosines, relevance, queries = _pairs(encoded, collection, "dev", scale)
        fitted = fit_head(head, cosines, relevance, f"{len(queries)} pairs of split 'dev' of {collection.name}")
        if label == saved:
            fitted.save(Path(model))
        cosines, relevance, queries = _pairs(encoded, collection, "test", scale)
        for words, calibrated in (("as trained", head), ("calibrated on dev", fitted)):
            if calibrated is not None:
                report = calibration_report(calibrated.probability(cosines), relevance, queries, seed=seed)
                reports[f"{label}, {words}"] = report
    return reports


def _pairs(
    encoded: EncodedCollection, collection: Collection, split: str, scale: GradeScale
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    judged = [(q, d, grade) for q, grades in collection.qrels[split].items() for d, grade in grades.items()]
    cosines = encoded.cosines([(query, document) for query, document, _ in judged])
    relevance = np.array([scale.to_relevance(grade) for _, _, grade in judged])
    return cosines, relevance, [query for query, _, _ in judged]
