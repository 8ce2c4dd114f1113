"""`export`: write a model for another runtime, if it embeds and ranks as it does in torch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from bixse.data.collection import save_collection
from bixse.data.pairs_files import load_pairs
from bixse.data.pydocs import load_pydocs
from bixse.encoders.encode import by_length, encode_texts
from bixse.encoders.instructions import prompt_for, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import use_precision
from bixse.errors import OutputExistsError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate import evaluate_task
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import paired_difference
from bixse.evaluation.systems import EncoderSystem
from bixse.export.graph import RECORD_FILE, check_installed, load_exported, write_graph
from bixse.files.files import storage_errors, write_atomically, write_hashes

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.export.export_settings import ExportSettings
    from bixse.progress import ProgressBars
    from bixse.relevance import Kind
    from bixse.results import Difference
    from bixse.search.tasks import Task

TextsByKind: TypeAlias = "dict[Kind, list[str]]"
TEXTS = 128
"""Queries, and documents, that both embed."""
MOST_READ = 20_000
"""Documents of a collection among which they are chosen."""
ROUNDS = 5

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


def of_all_lengths(texts: Sequence[str]) -> list[str]:
    """Return distinct texts from the shortest to the longest one, mixed, so that batches have padding."""
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    evenly = np.unique(np.linspace(0, len(distinct) - 1, TEXTS).astype(int))
    return [distinct[row] for row in np.random.default_rng(0).permutation(by_length(distinct)[evenly])]


def disagreement(model: RelevanceModel, exported: RelevanceModel, texts: TextsByKind) -> dict[str, float]:
    """Return the largest 1 - cosine between the graph's and torch's embeddings, per batch size and at full length.

    The graph's embedding counts as it is: if its length is not 1, it disagrees.
    """
    full = "a " * (model.max_seq_length or 512)
    longest: TextsByKind = {"document": [full, full]}
    largest = {}
    for name, batch, of_kind in (("batches of 1", 1, texts), ("batches of 32", 32, texts), ("full length", 2, longest)):
        cosines = []
        for kind, some in of_kind.items():
            reference, prompt = encode_texts(model, some, kind, "float32"), prompt_for(exported, kind)
            for start in range(0, len(some), batch):
                rows = slice(start, start + batch)
                with torch.no_grad():
                    embeddings = exported(exported.preprocess(some[rows], prompt=prompt))["sentence_embedding"]
                cosines.append((embeddings.numpy() * reference[rows]).sum(axis=1))
        largest[name] = float(np.abs(1 - np.concatenate(cosines)).max())
    return largest


def seconds(model: RelevanceModel, exported: RelevanceModel, texts: TextsByKind) -> dict[str, tuple[float, float]]:
    """Return the median seconds of torch and of the graph, for all documents together and per query."""
    measured = {}
    work: list[tuple[str, Kind, list[list[str]]]] = [
        ("all documents", "document", [texts["document"]]),
        ("one query", "query", [[query] for query in texts["query"][:8]]),
    ]
    for name, kind, parts in work:
        times = np.zeros((1 + ROUNDS, 2))
        for round_times in times:
            for column, encoder in enumerate((model, exported)):  # in turn: other work on the machine slows both
                started = time.perf_counter()
                for part in parts:
                    encode_texts(encoder, part, kind, "float32")
                round_times[column] = (time.perf_counter() - started) / len(parts)
        of_torch, of_graph = np.median(times[1:], axis=0).tolist()  # the first round reserves memory
        measured[name] = (of_torch, of_graph)
    return measured


def ranking_difference(
    model: RelevanceModel, exported: RelevanceModel, task: Task, progress: ProgressBars | None = None
) -> Difference:
    """Return nDCG@10 of the graph minus that of torch, paired by query."""
    systems = [EncoderSystem(encoder, cache="none") for encoder in (exported, model)]
    graph, reference = (
        evaluate_task(system, task, progress=progress)[task.name].by_query[PRIMARY_METRIC] for system in systems
    )
    return paired_difference(graph, reference)
