"""The targets of unlabelled entries by the model before training: its embeddings, and a curve over cosines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.platt import fit_platt
from bixse.losses.targets import BaseProbability, GradedTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import GradedPairs
    from bixse.relevance import Kind


TEXTS_AT_ONCE = 65_536
"""Texts between two writes: 100 MB of embeddings with 384 dimensions."""
FIT_ENTRIES = 2**20
"""Approximate number of entries per task to fit its curve; its two numbers hardly change with more."""


class KnownEntries(NamedTuple):
    """The known entries of a batch."""

    task: int
    groups: NDArray[np.int64]
    documents: NDArray[np.int32]
    targets: GradedTargets


@dataclass
class BaseTargets:
    """The base model's part of a batch: its embeddings of the texts, and per task a curve from cosine to relevance.

    The embeddings are memory-mapped files: they may be larger than memory, and a resumed run finds the same bits.
    """

    queries: NDArray[np.float32]
    """(G, D0) embedding of each query group, L2-normalised."""
    documents: NDArray[np.float32]
    """(N, D0) embedding of each distinct document, L2-normalised."""
    weight: float
    curves: dict[int, tuple[float, float]]
    """Task number -> scale and bias of sigma(scale * cos + bias)."""

    def of(self, task: int, groups: NDArray[np.int64], documents: NDArray[Any]) -> BaseProbability:
        curve = torch.tensor([*self.curves[task], self.weight], dtype=torch.float32)
        return BaseProbability(self._rows(self.queries, groups), self._rows(self.documents, documents), curve)

    def fit(self, batches: Iterable[KnownEntries]) -> None:
        """Fit each task's curve by logistic regression on the cosine (Platt 1999); unlabelled entries have target 0."""
        cosines: dict[int, list[NDArray[np.float32]]] = {}
        relevance: dict[int, list[NDArray[np.float32]]] = {}
        for task, groups, documents, targets in batches:
            if sum(map(len, cosines.get(task, []))) >= FIT_ENTRIES:
                continue
            z, counts = (part.numpy() for part in targets.dense())
            product = (self._rows(self.queries, groups) @ self._rows(self.documents, documents).T).numpy()
            cosines.setdefault(task, []).append(product[counts > 0])
            relevance.setdefault(task, []).append(z[counts > 0])
        self.curves = {
            task: fit_platt(np.concatenate(cosines[task]), np.concatenate(relevance[task])) for task in cosines
        }

    @staticmethod
    def _rows(table: NDArray[np.float32], rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.asarray(table[rows]))


def base_embeddings(
    model: SentenceTransformer, pairs: GradedPairs, folder: Path, prompt: Callable[[int, Kind], str | None]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (G, D0) embeddings of each group's query and (N, D0) of each distinct document, mapped read-only."""
    groups = pairs.groups()
    rows: dict[Kind, NDArray[np.intp]] = {"query": groups.first_rows, "document": pairs.distinct("document")}
    prompts = [prompt(task, kind) for task in range(len(pairs.tasks[0])) for kind in rows]
    key = f"{embeddings_key(model, prompts=prompts)}-{pairs.content_hash()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for kind, chosen in rows.items():
        path = folder / f"{key}-{kind}.npy"
        if not path.is_file():
            _write(path, model, pairs, kind, chosen, prompt)
        tables.append(np.load(path, mmap_mode="r"))
    return tables[0], tables[1]


def _write(
    path: Path,
    model: SentenceTransformer,
    pairs: GradedPairs,
    kind: Kind,
    rows: NDArray[np.intp],
    prompt: Callable[[int, Kind], str | None],
) -> None:
    """Write embeddings part by part; only the complete file gets its name."""
    unfinished = path.with_suffix(".part")
    shape = (len(rows), model.get_embedding_dimension() or 0)
    table = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape)
    tasks = pairs.tasks[1][rows]  # a document of several tasks has the prompt of its first
    for task in np.unique(tasks).tolist():
        members = np.flatnonzero(tasks == task)
        for part in np.array_split(members, max(1, -(-len(members) // TEXTS_AT_ONCE))):
            texts = pairs.texts(kind, rows[part])
            table[part] = encode_texts(model, texts, kind, prompt=prompt(task, kind) or "")  # cut at the model's limit
    table.flush()
    unfinished.replace(path)  # atomic: a killed process leaves no half file under the final name
