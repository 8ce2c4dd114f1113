"""Calibrate a model's head on the dev pairs of a collection, and report it on the pairs of another split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bixse.calibration.calibrate_head import fit_head
from bixse.calibration.reliability import calibration_report
from bixse.encoders.loading.build import build_encoder
from bixse.search.search_collection import encode_collection

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.data.collection import Collection
    from bixse.encoders.head import RelevanceHead
    from bixse.progress import ProgressBars
    from bixse.relevance import GradeScale
    from bixse.results import CalibrationReport


def calibrate_on_dev(
    model: str | Path,
    head: RelevanceHead | None,
    collection: Collection,
    scale: GradeScale,
    seed: int = 0,
    progress: ProgressBars | None = None,
) -> tuple[RelevanceHead, dict[str, CalibrationReport]]:
    """Fit a model's head on the dev pairs; return it, and reports on the test pairs: as trained, calibrated on dev."""
    judged = [query for split in ("dev", "test") for query in collection.qrels[split]]
    encoded = encode_collection(build_encoder(model), collection, judged, progress)

    def pairs_of(split: str) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
        judged = [(q, d, grade) for q, grades in collection.qrels[split].items() for d, grade in grades.items()]
        cosines = encoded.cosines([(query, document) for query, document, _ in judged])
        relevance = np.array([scale.to_relevance(grade) for _, _, grade in judged])
        return cosines, relevance, [query for query, _, _ in judged]

    fit_cosines, fit_relevance, fit_queries = pairs_of("dev")
    fitted_on = f"{len(fit_queries)} pairs of split 'dev' of {collection.name}"
    fitted = fit_head(head, fit_cosines, fit_relevance, fitted_on)
    cosines, relevance, queries = pairs_of("test")
    heads = ({"as trained": head} if head is not None else {}) | {"calibrated on dev": fitted}
    return fitted, {
        name: calibration_report(own.probability(cosines), relevance, queries, seed=seed) for name, own in heads.items()
    }
