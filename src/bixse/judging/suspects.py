"""The likely false negatives of an epoch: the unlabelled entries with the highest logits in any of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from safetensors.torch import load, save

from bixse.files.files import write_atomically
from bixse.training.distributed import is_main_process

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.losses import GradedLoss, GradedTargets

SUSPECTS_FILE = "suspects.safetensors"
"""File of a checkpoint with the entries of the epoch so far."""
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

    def begin(self, groups: NDArray[np.int64], documents: NDArray[np.int64], step: int) -> None:
        """Note the numbers of the batch whose embeddings `look` gets next."""
        self.groups, self.documents, self.step = groups, documents, step

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

    def of_all_processes(self) -> Suspects:
        return Suspects.joined(gather_object([self.found]), self.most)

    def gather(self) -> None:
        """Leave the entries of all processes to the first one, which writes them into a checkpoint."""
        everyone = self.of_all_processes()
        self.found = everyone if is_main_process() else Suspects.none()

    def save(self, folder: Path) -> None:
        found = self.found
        columns = {"groups": found.groups, "documents": found.documents, "logits": found.logits}
        write_atomically(folder / SUSPECTS_FILE, save({name: torch.from_numpy(own) for name, own in columns.items()}))

    def load(self, folder: Path) -> None:
        path = folder / SUSPECTS_FILE
        if is_main_process() and path.is_file():
            self.found = Suspects(**{name: tensor.numpy() for name, tensor in load(path.read_bytes()).items()})
