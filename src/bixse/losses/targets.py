"""`GradedTargets`: the known relevance of a batch's (query, document) entries, kept sparse."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bixse.errors import InputError

if TYPE_CHECKING:
    from bixse.losses.catalogue import InBatchLabels


ENTRIES_SAMPLED = 2**22
"""Maximum number of entries for the start of the bias: 16 MB of cosines."""


def mean_grades(labels: Iterable[tuple[Hashable, Hashable, float]]) -> dict[Hashable, dict[Hashable, float]]:
    """Return query -> document -> mean relevance of the pair; NaN (masked) if any of its labels is NaN."""
    grades: dict[Hashable, dict[Hashable, list[float]]] = {}
    for query, document, relevance in labels:
        grades.setdefault(query, {}).setdefault(document, []).append(relevance)
    return {
        query: {document: sum(values) / len(values) for document, values in known.items()}
        for query, known in grades.items()
    }


@dataclass(frozen=True)
class GradedTargets:
    """The known relevance of the (B, N) entries of one batch; an unlisted entry is 0.

    Example:
        >>> targets = GradedTargets.from_ids(["q1", "q2"], ["d1", "d2"], {"q1": {"d1": 1.0}, "q2": {"d1": 0.5}})
        >>> targets.dense()[0].tolist()
        [[1.0, 0.0], [0.5, 0.0]]
    """

    rows: Tensor
    """(M,) int64 query of each known entry."""
    columns: Tensor
    """(M,) int64 document of each known entry."""
    relevance: Tensor
    """(M,) float in [0, 1]; NaN marks a masked entry, which is neither relevant nor irrelevant."""
    shape: tuple[int, int]
    """(B, N)."""

    @classmethod
    def from_entries(
        cls, rows: ArrayLike, columns: ArrayLike, relevance: ArrayLike, shape: tuple[int, int]
    ) -> GradedTargets:
        """Make targets of M known entries; each is inside the batch, given once, and in [0, 1] or NaN (masked)."""
        row, column = (
            part.long() if isinstance(part, Tensor) else torch.from_numpy(np.array(part, dtype=np.int64))
            for part in (rows, columns)
        )
        values = relevance.detach() if isinstance(relevance, Tensor) else torch.from_numpy(np.array(relevance))
        if not values.is_floating_point():
            values = values.float()
        queries, documents = shape
        inside = (row >= 0) & (row < queries) & (column >= 0) & (column < documents)
        if not bool(inside.all()):
            raise InputError(
                f"targets: got an entry outside {shape}; expected rows and columns of the batch; "
                "fix: build the targets for this batch"
            )
        if len(torch.unique(row * documents + column)) != len(row):
            raise InputError("targets: got an entry twice; expected one relevance per entry; fix: deduplicate pairs")
        if bool(((values < 0) | (values > 1)).any()):
            raise InputError("targets: got a relevance outside [0, 1]; expected 0 to 1; fix: map the grades first")
        return cls(row, column, values, shape)

    @classmethod
    def from_ids(
        cls,
        query_ids: Sequence[Hashable],
        document_ids: Sequence[Hashable],
        graded: Mapping[Hashable, Mapping[Hashable, float]],
        row_columns: Sequence[Sequence[int]] | None = None,
        in_batch_labels: InBatchLabels = "known",
    ) -> GradedTargets:
        """Make the targets of B queries and N documents from the known grades: query -> document -> relevance."""
        if len(set(document_ids)) != len(document_ids):
            raise InputError(
                "targets: got a document id twice; expected one column per document; fix: drop the repeats"
            )
        if in_batch_labels == "paper":
            if row_columns is None:
                raise InputError("targets: got in_batch_labels='paper' alone; expected row_columns too; fix: pass them")
            known = [
                (row, column, graded[query_id][document_ids[column]])
                for row, (query_id, columns) in enumerate(zip(query_ids, row_columns, strict=True))
                for column in dict.fromkeys(columns)
            ]
        else:
            column_of = {document_id: column for column, document_id in enumerate(document_ids)}
            known = [
                (row, column_of[document_id], relevance)
                for row, query_id in enumerate(query_ids)
                for document_id, relevance in graded.get(query_id, {}).items()
                if document_id in column_of
            ]
        rows, columns, relevance = zip(*known, strict=True) if known else ((), (), ())
        shape = (len(query_ids), len(document_ids))
        return cls.from_entries(rows, columns, np.array(relevance, dtype=np.float32), shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, as a batch carries them to any device; `GradedTargets` takes them back."""
        return {"rows": self.rows, "columns": self.columns, "relevance": self.relevance}

    def number_counted(self) -> Tensor:
        """Return the number of entries that are not masked."""
        return self.shape[0] * self.shape[1] - self.relevance.isnan().sum()

    def check_fits(self, what: str, queries: Tensor, documents: Tensor) -> None:
        """Refuse embeddings of other shapes than (B, D) and (N, D); `what` names the caller."""
        if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1]:
            raise InputError(
                f"{what}: got queries {tuple(queries.shape)} and documents {tuple(documents.shape)}; "
                "expected (B, D) and (N, D); fix: embed both with the same model"
            )
        if self.shape != (len(queries), len(documents)):
            raise InputError(
                f"{what}: got targets of shape {self.shape}; expected {(len(queries), len(documents))}; "
                "fix: build them for this batch"
            )

    def to(self, device: torch.device | str) -> GradedTargets:
        return GradedTargets(**{name: part.to(device) for name, part in self.tensors().items()}, shape=self.shape)

    def sample(self, queries: Tensor, documents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return cosines, relevance and weight (see `dense`) of at most `ENTRIES_SAMPLED` entries, each (S, N).

        They are those of evenly spaced queries against all documents. Queries (B, D) and documents
        (N, D) are L2-normalised.
        """
        stride = max(1, -(-self.shape[0] * self.shape[1] // ENTRIES_SAMPLED))
        listed, shape = self.rows % stride == 0, (-(-self.shape[0] // stride), self.shape[1])
        known = GradedTargets(self.rows[listed] // stride, self.columns[listed], self.relevance[listed], shape)
        return queries[::stride].float() @ documents.float().T, *known.dense()

    def binarised(self, threshold: float) -> GradedTargets:
        """Return the targets with relevance 1[z >= threshold], compared in float32; masked entries stay masked."""
        reached = (self.relevance.float() >= threshold).to(self.relevance)
        hard = torch.where(self.relevance.isnan(), self.relevance, reached)
        return replace(self, relevance=hard)

    def tiles(self, rows: int, columns: int | None = None) -> Iterator[tuple[slice, slice, GradedTargets]]:
        """Yield the tiles of at most `rows` queries and `columns` documents (None: all), with the targets of each.

        Rows and columns of these targets count from the first query and document of the tile.
        """
        across = max(1, self.shape[1] if columns is None else columns)
        if 0 < self.shape[0] <= rows and self.shape[1] <= across:  # cutting would make a GPU wait
            yield slice(0, self.shape[0]), slice(0, self.shape[1]), self
            return
        number = self.rows // rows * -(-self.shape[1] // across) + self.columns // across
        order = torch.argsort(number, stable=True)
        known = self.rows[order] % rows, self.columns[order] % across, self.relevance[order]
        tiles = list(blocks(*self.shape, (rows, across)))
        ends = torch.searchsorted(number[order], torch.arange(len(tiles), device=number.device), right=True).tolist()
        for (row, column), start, end in zip(tiles, [0, *ends], ends, strict=False):
            of_rows, of_columns, relevance = (part[start:end] for part in known)
            shape = row.stop - row.start, column.stop - column.start
            yield row, column, GradedTargets(of_rows, of_columns, relevance, shape)

    def dense(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return (z, weight), both (B, N): relevance, and 1 for entries that count, 0 for masked entries."""
        z = torch.zeros(self.shape, dtype=dtype, device=self.relevance.device)
        weight = torch.ones(self.shape, dtype=dtype, device=self.relevance.device)
        z[self.rows, self.columns] = self.relevance.nan_to_num(0.0).to(dtype)
        weight[self.rows, self.columns] = 1.0 - self.relevance.isnan().to(dtype)  # selecting would make a GPU wait
        return z, weight

    def graded(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return (B, N): 1 for entries with a known relevance, 0 for all others and for masked entries."""
        known = torch.zeros(self.shape, dtype=dtype, device=self.relevance.device)
        known[self.rows, self.columns] = 1.0 - self.relevance.isnan().to(dtype)
        return known


def blocks(queries: int, documents: int, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of every tile."""
    for row in range(0, queries, shape[0]):
        for column in range(0, documents, shape[1]):
            yield slice(row, min(row + shape[0], queries)), slice(column, min(column + shape[1], documents))
