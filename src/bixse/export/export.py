"""`export`: write a model for another runtime, if its embeddings agree with those of torch."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bixse.data.collection import save_collection
from bixse.data.pairs_files import load_pairs
from bixse.data.pydocs import load_pydocs
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import use_precision
from bixse.errors import OutputExistsError
from bixse.evaluation.tasks import collection_task
from bixse.export.graph import RECORD_FILE, check_installed, inputs_of, load_exported, write_graph
from bixse.export.proof import disagreement, of_all_lengths, ranking_difference, speed
from bixse.files.files import storage_errors, write_atomically, write_hashes

if TYPE_CHECKING:
    from bixse.evaluation.tasks import Task
    from bixse.export.export_settings import ExportSettings
    from bixse.progress import ProgressBars
    from bixse.relevance import Kind
    from bixse.results import Difference

LARGEST_DIFFERENCE = 1e-3
"""Largest 1 - cosine of embeddings that count as equal: that of rounding in float32 is a thousandth of it."""


@dataclass(frozen=True)
class ExportResult:
    """What was measured on a graph, and why it was not written."""

    megabytes: float
    differences: dict[str, float]
    """Batch size, or full length -> largest 1 - cosine between the graph's embeddings and those of torch."""
    speed: dict[str, tuple[float, float]]
    """Measure -> its value in torch, and of the graph, on the same number of threads."""
    ndcg: Difference | None = None
    """nDCG@10 of int8 minus that of torch; None for other targets."""
    fault: str | None = None
    """How the graph differs too much; None if it does not."""


def export(settings: ExportSettings, out: str | Path, progress: ProgressBars | None = None) -> ExportResult:
    """Write encoder, pooling and normalisation as one graph to `out`, unless it differs from the model in torch.

    A float32 graph is refused if the largest 1 - cosine reaches 0.001, at batch sizes 1 and 32 and at full length. An
    int8 graph is refused if its nDCG@10 on the collection is worse, by the paired bootstrap. Then nothing is in `out`.

    Raises:
        InputError: a package of the extra is missing, or texts or model cannot be used.
        ModelError: the model is no single graph of tokens.
        OutputExistsError: `out` holds files.
        StorageError: `out` cannot be written.

    Example:
        ::

            export(ExportSettings(model="runs/mine/model", collection="my-collection"), "runs/onnx").differences
    """
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise OutputExistsError(f"{out}: got files; expected a new or empty folder; fix: choose another --out")
    check_installed(settings.to)
    with use_precision("float32"), TemporaryDirectory() as scratch, storage_errors(out):
        task, texts = _texts(settings, Path(scratch))
        model = build_encoder(settings.model, device="cpu", dimensions=settings.dimensions)
        use_task(model, settings.task)
        inputs_of(model)  # a model that cannot be exported is refused before folders are made
        part = out.with_name(f".{out.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        part.mkdir(parents=True)
        try:
            write_graph(model, settings.to, part)
            exported = load_exported(part)
            differences, times = disagreement(model, exported, texts), speed(model, exported, texts)
            compared = task if settings.to == "onnx-int8" else None
            ndcg = None if compared is None else ranking_difference(model, exported, compared, progress)
            megabytes = sum(file.stat().st_size for file in part.glob("model.*")) / 1e6
            result = ExportResult(megabytes, differences, times, ndcg, _fault(differences, ndcg))
            if result.fault is None or settings.anyway:
                record = json.loads((part / RECORD_FILE).read_bytes())
                record |= {"settings": settings.model_dump(mode="json"), "proof": asdict(result)}
                write_atomically(part / RECORD_FILE, json.dumps(record, indent=2) + "\n")
                write_hashes(part)
                shutil.rmtree(out, ignore_errors=True)
                part.rename(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return result


def _texts(settings: ExportSettings, scratch: Path) -> tuple[Task | None, dict[Kind, list[str]]]:
    """Return the task of a collection, None for pairs, and the texts that are embedded by both."""
    if settings.pairs is not None:
        pairs = load_pairs(settings.pairs)
        return None, {
            "query": of_all_lengths(pair.query for pair in pairs),
            "document": of_all_lengths(pair.document for pair in pairs),
        }
    if settings.collection is None:
        save_collection(load_pydocs(), scratch)
    task = collection_task(settings.collection or scratch, settings.split)
    return task, {
        "query": of_all_lengths(task.query_sets[0].queries.values()),
        "document": of_all_lengths(text for _, text in task.documents()),
    }


def _fault(differences: dict[str, float], ndcg: Difference | None) -> str | None:
    if ndcg is not None:
        return f"nDCG@10 is lower by {-ndcg.mean:.4f}" if ndcg.verdict == "worse" else None
    largest = max(differences.values())
    equal = all(value < LARGEST_DIFFERENCE for value in differences.values())  # NaN is not
    return None if equal else f"embeddings differ from those of torch by {largest:.2g} (1 - cosine)"
