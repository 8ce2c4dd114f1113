"""Calibrate the heads of models on the dev pairs of a collection, and measure them on its test pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.calibration.calibrate_head import fit_head
from bixse.calibration.reliability import calibration_report
from bixse.data.graded_pairs import Pairs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.search.search_collection import encode_collection

if TYPE_CHECKING:
    from bixse.data.corpus import JudgedCorpus
    from bixse.progress import ProgressBars
    from bixse.relevance import GradeScale
    from bixse.results import CalibrationReport


def calibrate_on_dev(
    models: Mapping[str, str],
    saved: str,
    collection: JudgedCorpus,
    scale: GradeScale,
    seed: int = 0,
    progress: ProgressBars | None = None,
) -> dict[str, CalibrationReport]:
    """Fit the head of each model (label -> folder) on the dev pairs, and return reports on the test pairs.

    The model `saved` is reported as trained, too, and its fitted head is saved in its folder.
    """
    splits = {split: Pairs.from_collection(collection, split, scale) for split in ("dev", "test")}
    dev, test = splits.values()
    judged = [query for split in splits for query in collection.qrels[split]]
    reports = {}
    for label, model in models.items():
        encoded = encode_collection(build_encoder(model), collection, judged, progress)
        on_dev, on_test = (
            encoded.cosines(list(zip(pairs.query_ids, pairs.document_ids, strict=True))) for pairs in (dev, test)
        )
        head = RelevanceHead.load(Path(model)) if label == saved else None
        if head is not None:  # an interrupted call may have saved the calibrated head
            head = replace(head, slope=1.0, intercept=0.0, calibrated_on=None)
        fitted = fit_head(head, on_dev, dev.relevance, f"{len(dev)} pairs of split 'dev' of {collection.name}")
        if label == saved:
            fitted.save(Path(model))
        for words, calibrated in (("as trained", head), ("calibrated on dev", fitted)):
            if calibrated is not None:
                report = calibration_report(calibrated.probability(on_test), test.relevance, test.query_ids, seed=seed)
                reports[f"{label}, {words}"] = report
    return reports
