"""Suspicious zeros: entries of a batch without a grade that the encoder scores highest, kept while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bixse.losses.base import GradedLoss
    from bixse.losses.targets import GradedTargets

ENTRIES_LOOKED_AT = 2**20
"""Entries of a batch that are scored; of a larger one some rows, others in the next batch."""


class Suspects(NamedTuple):
    """M entries that were taken for irrelevant because nobody graded them; none stands there twice."""

    groups: NDArray[np.int64]
    """(M,) number of the query's group."""
    documents: NDArray[np.int64]
    """(M,) number of the document, see `GradedPairs.document_numbers`."""
    logits: NDArray[np.float32]
    """(M,) the highest logit that a batch of the epoch gave them."""

    @classmethod
    def none(cls) -> Suspects:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Suspects], most: int) -> Suspects:
        """The highest `most` of several, each entry once with its highest logit, from the highest down.

        Example:
            >>> one = Suspects(np.array([0, 0]), np.array([5, 7]), np.array([1.0, 3.0]))
            >>> two = Suspects(np.array([0]), np.array([5]), np.array([2.0]))
            >>> Suspects.joined([one, two], most=2).logits.tolist()
            [3.0, 2.0]
        """
        groups, documents, logits = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((documents, groups, -logits))  # of equal logits always the same ones
        entries = (groups[order] << 32) | documents[order]
        first = order[np.sort(np.unique(entries, return_index=True)[1])[:most]]
        return cls(groups[first], documents[first], logits[first])

    def first(self, number: int) -> Suspects:
        return Suspects(self.groups[:number], self.documents[:number], self.logits[:number])

    def where(self, kept: NDArray[np.bool_]) -> Suspects:
        return Suspects(self.groups[kept], self.documents[kept], self.logits[kept])


class SuspectCollector:
    """Looks at the embeddings of every batch, and keeps the highest entries without a grade, at most `most`."""

    def __init__(self, loss: GradedLoss, most: int) -> None:
        self.loss, self.most = loss, most
        self.step = 0
        """Of training: says which rows of a large batch are looked at."""
        self.groups = self.documents = np.empty(0, np.int64)
        """Of the batch to come: (B,) its groups and (N,) its documents."""
        self.found = Suspects.none()

    @torch.no_grad()
    def look(self, queries: torch.Tensor, documents: torch.Tensor, targets: GradedTargets) -> None:
        """Of (B, D) queries and (N, D) documents, L2-normalised; the loss calls it."""
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
    """What came of the questions after an epoch."""

    epoch: int
    asked: int
    """Pairs."""
    graded: int
    relevant: int
    """Of these, pairs with a relevance of at least 0.5."""
    mean_relevance: float | None
    mean_probability: float | None
    """Of all that were asked, by the encoder; None for a loss that learns no probability."""
    usd: float
    """What all answers cost, those of an interrupted call and of a shared ledger too."""
    failure: str | None = None
    """Why the judge did not answer all; training went on with what is known."""

    def line(self) -> str:
        """For people."""
        mean = "" if self.mean_relevance is None else f", mean relevance {self.mean_relevance:.3f}"
        return (
            f"regraded after epoch {self.epoch}: {self.graded} of {self.asked} suspicious zeros, "
            f"{self.relevant} relevant{mean}{f', {self.usd:.4f} US dollars' if self.usd else ''}"
        )
