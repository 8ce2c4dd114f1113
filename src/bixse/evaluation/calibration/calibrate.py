"""Calibrate a model: fit its probabilities of relevance, check them on held-out queries, keep what helps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from bixse.data.collection_files import load_collection
from bixse.data.io.files import file_hash, storage_errors
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.random_negatives import with_random_negatives
from bixse.data.run_record import open_run
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder, quiet_loading
from bixse.encoders.loading.precision import resolve_precision
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import InputError
from bixse.evaluation.calibration.calibrate_head import HeldOutCheck, choose_thresholds, fit_head, held_out_check
from bixse.evaluation.calibration.thresholds import OperatingPoint  # noqa: TC001 pydantic reads it
from bixse.report.plots import reliability_diagram, save_plot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.run_record import RunRecord
    from bixse.evaluation.calibration.calibrate_settings import CalibrateSettings
    from bixse.progress import ProgressBars

DIAGRAM = "reliability.svg"
"""The reliability diagram in the output folder."""


@dataclass(frozen=True)
class CalibrateResult:
    """What a calibration found and left."""

    check: HeldOutCheck
    head: RelevanceHead | None
    """The head the model now has; None where it had none and the calibration does not help."""
    points: tuple[OperatingPoint, ...]
    """What was found for each precision, the highest first."""
    pairs: str
    """What the pairs are, in words."""
    negatives: int
    """Random documents added as irrelevant pairs."""
    precision: str
    artifacts: dict[str, str]
    """Name -> path of what was written."""
    reused: bool = False
    """The run was finished before."""


def calibrate(
    settings: CalibrateSettings, out: str | Path | None = None, progress: ProgressBars | None = None
) -> CalibrateResult:
    """Fit probabilities on half of the queries and measure them on the other half; keep the map only if it helps there.

    Args:
        settings: the model, the pairs, and what is asked for.
        out: where the calibrated model, a reliability diagram and run.json are written; None replaces the head inside
            the model folder.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: unusable pairs, or no `out` for a model that is not a folder.
        OutputExistsError: `out` holds another run.
        ModelError: the model cannot be loaded.
    """
    model, out = settings.model, None if out is None else Path(out)
    if out is None and not Path(model).is_dir():
        raise InputError(
            f"calibrate: got model {model!r} and no --out; expected a model folder or --out DIR; "
            "fix: add --out, the calibrated model is saved there"
        )
    given = load_graded_pairs(settings.pairs)
    judged, facts = _with_negatives(given, settings)
    record = None if out is None else _open(settings, out)
    if record is not None and record.status == "finished":
        return replace(TypeAdapter(CalibrateResult).validate_python(record.results), reused=True)
    encoder = build_encoder(model)
    use_task(encoder, settings.task)
    if record is not None:
        record.save("running")
    measured = (_cosines(encoder, judged, progress), judged.relevance, judged.query_ids)
    before: RelevanceHead | None = getattr(encoder, "head", None)
    check = held_out_check(before, *measured, settings.seed, settings.prior)
    head = before
    if check.helps:
        head = fit_head(before, *measured[:2], facts)
        head = head if settings.prior is None else head.at_prior(settings.prior)
    points: list[OperatingPoint] = []
    if settings.at_precision and head is not None:
        head, points = choose_thresholds(
            head, *measured, settings.at_precision, settings.relevant_from, settings.prior, settings.seed
        )
    artifacts = _save(encoder, head, None if head == before else model, out)
    if out is not None:
        save_plot(reliability_diagram(check.calibrated, "calibrated, held-out half"), out / DIAGRAM)
        artifacts["diagram"] = str(out / DIAGRAM)
    result = CalibrateResult(
        check=check,
        head=head,
        points=tuple(points),
        pairs=facts,
        negatives=len(judged) - len(given),
        precision=resolve_precision(device=encoder.device),
        artifacts=artifacts,
    )
    if record is not None:
        record.results = TypeAdapter(CalibrateResult).dump_python(result, mode="json")
        record.save("finished")
    return result


def _open(settings: CalibrateSettings, out: Path) -> RunRecord:
    """The record of the run, with every input by its hash."""
    model = settings.model
    inputs = {"pairs": file_hash(settings.pairs), **model_hashes(model)}
    if (Path(model) / HEAD_FILE).is_file():
        inputs["head"] = file_hash(Path(model) / HEAD_FILE)
    config = {**settings.model_dump(), "precision": resolve_precision()}
    if settings.collection is not None:
        qrels = [f"qrels/{path.name}" for path in sorted((settings.collection / "qrels").glob("*.tsv"))]
        names = ("corpus.jsonl", "queries.jsonl", *qrels)
        inputs |= {name: file_hash(settings.collection / name) for name in names}
    return open_run(out, "calibrate", config, inputs, paths=(*settings.path_settings(), *model_path_settings(model)))


def _with_negatives(pairs: GradedPairs, settings: CalibrateSettings) -> tuple[GradedPairs, str]:
    """The pairs with the random documents that were asked for, and what they are, in words."""
    facts = f"{len(pairs)} pairs of {settings.pairs.name}"
    if settings.negatives is None or settings.collection is None:
        return pairs, facts
    collection = load_collection(settings.collection)
    more = with_random_negatives(pairs, collection, settings.negatives, settings.seed)
    return more, f"{facts} and {len(more) - len(pairs)} random documents of {collection.name} as irrelevant pairs"


def _cosines(model: RelevanceModel, pairs: GradedPairs, progress: ProgressBars | None) -> NDArray[Any]:
    """The cosine of each pair, every text encoded once."""
    step = progress("encode pairs", 2 * len(pairs)) if progress else None
    queries = encode_texts(model, pairs.queries, "query", progress=step).astype(np.float64)
    documents = encode_texts(model, pairs.documents, "document", progress=step).astype(np.float64)
    cosines: NDArray[Any] = np.einsum("md,md->m", queries, documents)
    return cosines


def _save(encoder: RelevanceModel, head: RelevanceHead | None, model: str | None, out: Path | None) -> dict[str, str]:
    """Write a head that changed; `model` is None for one that did not."""
    if head is None or model is None:
        return {}
    if out is None:
        head.save(Path(model))
        return {"model": model}
    encoder.head = head
    with storage_errors(out), quiet_loading():
        save_whole(encoder, out / "model")
    return {"model": str(out / "model")}
