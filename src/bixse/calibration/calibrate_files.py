"""Calibrate a model or scores of files into a folder, with thresholds, a diagram and code for stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from bixse.calibration.calibrate import Calibration, fit_calibration
from bixse.calibration.calibrate_head import HeldOutCheck, OperatingPoint, ScoredPairs, choose_thresholds
from bixse.calibration.calibrate_settings import SPLIT
from bixse.calibration.scored_pairs import checked_scores, score_judged
from bixse.data.corpus import check_split, files_of_split
from bixse.data.pairs_files import load_graded_pairs, load_scores
from bixse.data.run import Run, open_run
from bixse.encoders.head import EXPORT_FOLDER, HEAD_FILE, RelevanceHead
from bixse.encoders.instructions import prompt_for, use_task
from bixse.encoders.loading.build import model_hashes, model_path_settings, quiet_loading
from bixse.encoders.loading.kinds import is_encoder
from bixse.encoders.loading.load_scorer import load_scorer
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.collection_task import collection_task
from bixse.files.files import hash_files, storage_errors, write_atomically
from bixse.rendering.plots import reliability_diagram, save_plot

if TYPE_CHECKING:
    from bixse.calibration.calibrate_settings import CalibrateSettings
    from bixse.data.graded_pairs import Pairs
    from bixse.progress import ProgressBars
    from bixse.search.tasks import Task

DIAGRAM = "reliability.svg"
CUTS_FILE = "cuts.json"
SHARED = {"prior", "positive_from", "seed"}
"""Settings of a calibration, whatever its scores are of."""
COSINE_ROUNDING = 1e-6
"""Scores beyond 1 by more than this are no cosines, so that no snippet for a store of cosines is written."""
STORES = (
    "langchain", "llama_index", "haystack", "qdrant", "lancedb", "duckdb", "pgvector", "elasticsearch", "opensearch",
    "mongodb", "vespa",
)  # fmt: skip


@dataclass(frozen=True)
class CalibrateResult:
    """The results and files of a calibration."""

    check: HeldOutCheck
    head: RelevanceHead | None
    """None if the model had no head and the calibration does not help."""
    points: tuple[OperatingPoint, ...]
    pairs: str
    """A description of the pairs, in words."""
    precision: str
    artifacts: dict[str, str]
    saved: bool
    """True if the calibration is saved: it helps and beats a constant, or `anyway` is set."""
    cuts: tuple[CosineCut, ...] = ()
    """Cuts for vector stores, the highest cosine first."""
    reused: bool = False
    input_warnings: tuple[str, ...] = ()
    """Warnings of pairs that are not of the collection, and of texts that are longer than the model reads."""

    @property
    def refused(self) -> bool:
        """Return True if nothing is written, since the calibration is no better than a constant."""
        return not (self.saved or self.check.is_useful)

    def warnings(self) -> list[str]:
        """Warn of the pairs, of a calibration kept in spite of the check, and of thresholds with a low interval."""
        anyway = self.saved and not (self.check.helps and self.check.is_useful)
        return [*self.input_warnings, *([f"kept anyway: {self.check.finding}"] if anyway else [])] + [
            f"precision {point.wanted:g}: the interval reaches down to {point.interval[0]:.3f}; more graded queries "
            "narrow it, a higher --at-precision stays on the safe side"
            for point in self.points
            if point.is_reached and point.interval is not None and point.interval[0] < point.wanted
        ]


def calibrate_into(
    settings: CalibrateSettings, out: str | Path | None = None, progress: ProgressBars | None = None
) -> CalibrateResult:
    """Calibrate a model or scores of files, and save the map only if it helps on held-out queries.

    The calibrated model, a reliability diagram and run.json are written to `out`; None replaces the head inside the
    model folder. If the probabilities are no better than always answering the mean relevance, nothing is written
    unless `settings.anyway` is set. `progress` makes a progress callback from a title and a total.

    Raises:
        InputError: unusable pairs, or no `out` for a model that is not a folder.
        OutputExistsError: `out` holds another run.
        ModelError: the model cannot be loaded.
    """
    model, out = settings.model, None if out is None else Path(out)
    if out is None and (model is None or not Path(model).is_dir()):
        raise InputError(
            f"calibrate: got {'scores' if model is None else f'model {model!r}'} and no --out; expected a model folder "
            "or --out DIR; fix: add --out, the result is saved there"
        )
    record = None if out is None else _open(settings, out)
    if record is not None and record.status == "finished":
        files = {"model": f"model/{HEAD_FILE}", "head": HEAD_FILE}
        return record.result(CalibrateResult, lambda known: [files[name] for name in files if name in known.artifacts])
    pairs, encoder = _scored(settings, progress)
    precision = "" if encoder is None else resolve_precision(device=encoder.device)
    calibration = fit_calibration(pairs, settings.anyway)
    result = CalibrateResult(
        calibration.check, calibration.head, (), pairs.facts, precision, {}, calibration.helps,
        input_warnings=calibration.warnings,
    )  # fmt: skip
    if result.refused:
        return result
    head, points = calibration.head, list[OperatingPoint]()
    if settings.at_precision and head is not None:
        head, points = choose_thresholds(head, pairs, settings.at_precision)
    # before a file is written: a head of slope 0 has no cuts, and is refused
    cuts = cuts_of(head, settings.export) if settings.export and head is not None else []
    if record is not None:
        record.save("running")
    artifacts = _write(settings, out, encoder, calibration, head, cuts)
    result = replace(result, head=head, points=tuple(points), artifacts=artifacts, cuts=tuple(cuts))
    if record is not None:
        record.results = TypeAdapter(CalibrateResult).dump_python(result, mode="json")
        record.save("finished")
    return result


def _scored(settings: CalibrateSettings, progress: ProgressBars | None) -> tuple[ScoredPairs, Any]:
    """Return the pairs with their scores, and the model; None for scores of a file."""
    options = settings.model_dump(include=SHARED)
    if settings.scores is not None:
        queries, scores, relevance = load_scores(settings.scores)
        return checked_scores(scores, relevance, queries, settings.scored_by, settings.scores, **options), None
    judged: Pairs | Task
    if settings.collection is not None:
        judged = collection_task(settings.collection, settings.split or SPLIT)
    else:
        judged = load_graded_pairs(path := settings.pairs or Path())
        options["facts"] = f"{len(judged)} pairs of {path.name}"
    encoder = load_scorer(str(settings.model), dimensions=settings.dimensions)
    use_task(encoder, settings.task)
    return score_judged(encoder, judged, progress, **options), encoder


def _write(
    settings: CalibrateSettings,
    out: Path | None,
    encoder: Any,
    calibration: Calibration,
    head: RelevanceHead | None,
    cuts: Sequence[CosineCut],
) -> dict[str, str]:
    """Write the model or its head, the diagram and the code for stores; return name -> path."""
    home, artifacts = Path(str(settings.model)) if out is None else out, dict[str, str]()
    if head is not None and head != getattr(encoder, "head", None):
        if encoder is not None and out is not None:
            from bixse.encoders.relevance_model import save_whole  # not at the top: scores need no torch

            artifacts["model"] = str(home / "model")
            encoder.head = head
            if settings.dimensions is not None:  # the saved model keeps its other lengths
                heads, encoder = encoder.heads, load_scorer(str(settings.model))
                encoder.heads = heads
                use_task(encoder, settings.task)
            with quiet_loading():
                save_whole(encoder, home / "model")
        else:
            artifacts["head" if encoder is None else "model"] = str(home)
            head.save(home)
    if out is not None:
        save_plot(reliability_diagram(calibration.check.calibrated, "calibrated, held-out half"), out / DIAGRAM)
        artifacts["diagram"] = str(out / DIAGRAM)
    if cuts and head is not None:
        name = artifacts.get("model", settings.model or str(settings.scored_by))
        # a reranker's scores are no cosines, even where they are small
        of_vectors = encoder is None or is_encoder(encoder)
        stores = STORES if of_vectors and np.abs(calibration.pairs.cosines).max() <= 1 + COSINE_ROUNDING else ()
        prompts = None
        if encoder is not None:
            prompts = {kind: prompt_for(encoder, kind) or "" for kind in ("query", "document")}
        artifacts |= write_export(head, cuts, name, home / EXPORT_FOLDER, stores, prompts)
    return artifacts


def _open(settings: CalibrateSettings, out: Path) -> Run:
    config, paths, model = settings.model_dump(), settings.path_settings(), str(settings.model)
    if settings.scores is not None:
        return open_run(out, "calibrate", config, hash_files({"scores": settings.scores}), paths)
    files = {"pairs": settings.pairs} if settings.pairs is not None else {}
    if settings.collection is not None:
        files = files_of_split(settings.collection, settings.split or SPLIT)
        check_split(settings.collection, settings.split or SPLIT)
    if (Path(model) / HEAD_FILE).is_file():
        files["head"] = Path(model) / HEAD_FILE
    inputs, config["precision"] = hash_files(files) | model_hashes(model), resolve_precision()
    return open_run(out, "calibrate", config, inputs, (*paths, *model_path_settings(model)))


@dataclass(frozen=True)
class CosineCut:
    """A cosine at which a ranking is cut."""

    probability: float
    cosine: float
    """((logit(p) - intercept) / slope - beta) / alpha; outside [-1, 1] if no cosine reaches p, or all do."""
    precision: float | None = None
    """The requested precision, if the probability is its threshold."""


def cuts_of(head: RelevanceHead, probabilities: Sequence[float]) -> list[CosineCut]:
    """Return cuts at probabilities between 0 and 1 and at the thresholds of a head, the highest cosine first."""
    cuts = [CosineCut(probability, head.cosine_at(probability)) for probability in probabilities]
    cuts += [
        CosineCut(threshold.probability, head.cosine_at(threshold.probability), threshold.precision)
        for threshold in head.thresholds
        if 0 < threshold.probability < 1
    ]
    return sorted(cuts, key=lambda cut: -cut.cosine)


def write_export(
    head: RelevanceHead,
    cuts: Sequence[CosineCut],
    model: str,
    folder: Path,
    stores: Sequence[str] = STORES,
    prompts: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write `cuts.json`, and per store a snippet with the head's probability and the first cut; return name -> path."""
    files = {"cuts": folder / CUTS_FILE, **{store: folder / f"{store}.py" for store in stores}}
    # p = sigma(slope * (alpha * cosine + beta) + intercept); repr has every digit, and quotes what is in a text
    shown = {"scale": repr(head.slope * head.logit_scale), "bias": repr(head.logit(0.0)), "model": repr(model)}
    shown |= {"probability": f"{cuts[0].probability:g}", "cosine": repr(cuts[0].cosine), "prompts": repr(prompts)}
    shown["dimensions"] = repr(head.dimensions)
    shown["numbers"] = _snippet("numbers", shown)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(files["cuts"], json.dumps([asdict(cut) for cut in cuts], indent=2) + "\n")
        for store in stores:
            write_atomically(files[store], _snippet(store, shown))
    return {name: str(path) for name, path in files.items()}


def _snippet(name: str, shown: Mapping[str, str]) -> str:
    text = resources.files(__package__).joinpath("snippets", f"{name}.py.txt").read_text(encoding="utf-8")
    return Template(text).substitute(shown)
