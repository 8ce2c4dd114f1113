"""The targets of unlabelled entries by the model before training: its embeddings, and a curve over cosines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.encoders.platt import fit_platt
from bixse.losses.targets import BaseProbability, GradedTargets
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import GradedPairs
    from bixse.losses.base import GradedLoss
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

    @classmethod
    def unknown(cls, pairs: GradedPairs, dimensions: int) -> BaseTargets:
        """Return empty targets of the right shapes, to time a step without the base model."""
        zero = np.zeros((1, dimensions), dtype=np.float32)
        shapes = ((len(pairs.groups()), dimensions), (len(pairs.distinct("document")), dimensions))
        queries, documents = (np.broadcast_to(zero, shape) for shape in shapes)
        return cls(queries, documents, 1.0, dict.fromkeys(range(len(pairs.tasks[0])), (1.0, 0.0)))

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
    key = f"{embeddings_key(model)}-{pairs.content_hash()[:16]}"
    groups = pairs.groups()
    rows: dict[Kind, NDArray[np.intp]] = {"query": groups.first_rows, "document": pairs.distinct("document")}
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for kind, chosen in rows.items():
        path = folder / f"{key}-{kind}.npy"
        if not path.is_file():
            _write(path, model, pairs, kind, chosen, prompt)  # at the model's own length
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
        own = np.flatnonzero(tasks == task)
        for part in np.array_split(own, max(1, -(-len(own) // TEXTS_AT_ONCE))):
            table[part] = _embed(model, pairs.texts(kind, rows[part]), kind, prompt(task, kind))
    table.flush()
    unfinished.replace(path)  # atomic: a killed process leaves no half file under the final name


def _embed(model: SentenceTransformer, texts: Sequence[str], kind: Kind, prompt: str | None) -> NDArray[np.float32]:
    if kind == "document" and (prompt or None) == prompt_for(model, kind):  # evaluation stores these embeddings too
        return EmbeddingStore(model).encode(texts)
    return encode_texts(model, texts, kind, prompt=prompt or "")


ENTRIES_LOOKED_AT = 2**20
"""Maximum entries of a batch to score; a larger batch has some rows scored, the next batch other rows."""


class Suspects(NamedTuple):
    """The M likely false negatives: unlabelled entries that score high, each listed once."""

    groups: NDArray[np.int64]
    """(M,) number of the query's group."""
    documents: NDArray[np.int64]
    """(M,) number of the document in `GradedPairs.document_numbers`."""
    logits: NDArray[np.float32]
    """(M,) highest logit of the entry in any batch of the epoch."""

    @classmethod
    def none(cls) -> Suspects:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Suspects], most: int) -> Suspects:
        """Return the highest `most` entries of `parts`, each once with its highest logit, in descending order.

        Example:
            >>> one = Suspects(np.array([0, 0]), np.array([5, 7]), np.array([1.0, 3.0]))
            >>> two = Suspects(np.array([0]), np.array([5]), np.array([2.0]))
            >>> Suspects.joined([one, two], most=2).logits.tolist()
            [3.0, 2.0]
        """
        groups, documents, logits = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((documents, groups, -logits))  # a fixed order among equal logits
        entries = (groups[order] << 32) | documents[order]  # one key per entry: document numbers are int32
        first = order[np.sort(np.unique(entries, return_index=True)[1])[:most]]
        return cls(groups[first], documents[first], logits[first])

    def first(self, number: int) -> Suspects:
        return Suspects(self.groups[:number], self.documents[:number], self.logits[:number])

    def where(self, kept: NDArray[np.bool_]) -> Suspects:
        return Suspects(self.groups[kept], self.documents[kept], self.logits[kept])


class SuspectCollector:
    """Collect the `most` unlabelled entries with the highest logits over all batches."""

    def __init__(self, loss: GradedLoss, most: int) -> None:
        self.loss, self.most = loss, most
        self.step = 0
        """Training step, which selects the scored rows of a large batch."""
        self.groups = self.documents = np.empty(0, np.int64)
        """(B,) groups and (N,) documents of the next batch."""
        self.found = Suspects.none()

    @torch.no_grad()
    def look(self, queries: torch.Tensor, documents: torch.Tensor, targets: GradedTargets) -> None:
        """Score (B, D) queries and (N, D) documents, L2-normalised; the loss calls this."""
        stride = max(1, -(-len(queries) * len(documents) // ENTRIES_LOOKED_AT))
        start = self.step % stride
        logits = self.loss.logits(queries[start::stride].float() @ documents.float().T)
        mine = targets.rows % stride == start
        logits[targets.rows[mine] // stride, targets.columns[mine]] = -torch.inf
        best, places = logits.flatten().topk(min(self.most, logits.numel()))
        full = len(self.found.logits) == self.most
        higher = best > (float(self.found.logits[-1]) if full else -torch.inf)
        best, places = best[higher].cpu(), places[higher].cpu()
        rows, columns = np.divmod(places.numpy(), max(1, len(documents)))
        new = Suspects(self.groups[start::stride][rows], self.documents[columns], best.numpy())
        if len(new.logits):
            self.found = Suspects.joined([self.found, new], self.most)


@dataclass(frozen=True)
class RegradedEpoch:
    """The outcome of grading likely false negatives after an epoch."""

    epoch: int
    asked: int
    graded: int
    relevant: int
    """Graded pairs with a relevance of at least 0.5."""
    mean_relevance: float | None
    mean_probability: float | None
    """The encoder's mean probability of all asked pairs; None for a loss that learns no probability."""
    usd: float
    """Cost of all answers, including answers of an interrupted call and of a shared ledger."""
    failure: str | None = None
    """Reason why the judge did not answer all; training went on with the known grades."""

    def line(self) -> str:
        mean = "" if self.mean_relevance is None else f", mean relevance {self.mean_relevance:.3f}"
        return (
            f"regraded after epoch {self.epoch}: {self.graded} of {self.asked} suspicious zeros, "
            f"{self.relevant} relevant{mean}{f', {self.usd:.4f} US dollars' if self.usd else ''}"
        )
