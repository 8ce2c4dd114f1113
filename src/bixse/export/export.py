"""`export`: write a model for another runtime, if it embeds as it does in torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice
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
from bixse.evaluation.collection_task import collection_task
from bixse.export.graph import RECORD_FILE, check_installed, load_exported, write_graph
from bixse.export.proof import MOST_READ, TextsByKind, disagreement, of_all_lengths, ranking_difference, seconds
from bixse.files.files import storage_errors, write_atomically, write_hashes

if TYPE_CHECKING:
    from bixse.export.export_settings import ExportSettings
    from bixse.progress import ProgressBars
    from bixse.results import Difference

LARGEST_DIFFERENCE = 1e-3
"""Lowest 1 - cosine that counts as a difference: rounding in float32 gives a thousandth of it."""


@dataclass(frozen=True)
class ExportResult:
    """The measurements on a graph."""

    differences: dict[str, float]
    """Batch size, or full length -> largest 1 - cosine between the graph's embeddings and those of torch."""
    seconds: dict[str, tuple[float, float]]
    """Work -> seconds of torch and of the graph, on equally many threads."""
    ndcg: Difference | None
    """nDCG@10 of an int8 graph minus that of torch; None for other targets."""

    @property
    def fault(self) -> str | None:
        """The difference for which the graph is refused, in words, or None."""
        if self.ndcg is not None:
            return f"nDCG@10 is lower by {-self.ndcg.mean:.4f}" if self.ndcg.verdict == "worse" else None
        if all(value < LARGEST_DIFFERENCE for value in self.differences.values()):  # False for NaN
            return None
        return f"embeddings differ from those of torch by {max(self.differences.values()):.2g} (1 - cosine)"

    @property
    def doubt(self) -> str:
        """The reason for which an int8 graph is kept without a verdict, or ""."""
        few = "" if self.ndcg is None else self.ndcg.few
        return few and f"the graph is kept since it cannot be told whether its nDCG@10 is lower: {few}"


def export(settings: ExportSettings, out: str | Path, progress: ProgressBars | None = None) -> ExportResult:
    """Write encoder, pooling and normalisation as one graph to `out`, unless it differs from the model in torch.

    A float32 graph is refused if 1 - cosine of a text reaches 0.001, at batch sizes 1 and 32 and at full length. An
    int8 graph is refused if its nDCG@10 on the collection is worse, by the interval over queries. Then nothing is in
    `out`.

    Raises:
        InputError: a package of the extra is missing, or texts or model cannot be used.
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
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")  # on one disk, so that a rename is enough
    with scratch as folder, use_precision("float32"), storage_errors(out):
        texts: TextsByKind
        if settings.pairs is not None:
            pairs = load_pairs(settings.pairs)
            texts = {"query": [pair.query for pair in pairs], "document": [pair.document for pair in pairs]}
        else:
            collection = settings.collection or Path(folder) / "pydocs"
            if settings.collection is None:
                save_collection(load_pydocs(), collection)
            task = collection_task(collection, settings.split)
            documents = [text for _, text in islice(task.documents(), MOST_READ)]
            texts = {"query": list(task.query_sets[0].queries.values()), "document": documents}
        texts = {kind: of_all_lengths(some) for kind, some in texts.items()}
        model = build_encoder(settings.model, device="cpu", dimensions=settings.dimensions)
        use_task(model, settings.task)
        graph = Path(folder) / "graph"
        graph.mkdir()
        write_graph(model, settings.to, graph)
        exported = load_exported(graph)
        ndcg = ranking_difference(model, exported, task, progress) if settings.to == "onnx-int8" else None
        result = ExportResult(disagreement(model, exported, texts), seconds(model, exported, texts), ndcg)
        if result.fault is None or settings.anyway:
            record = {**json.loads((graph / RECORD_FILE).read_bytes()), "proof": asdict(result)}
            write_atomically(graph / RECORD_FILE, json.dumps(record, indent=2) + "\n")
            write_hashes(graph)
            graph.rename(out)
    return result
