"""Softmax losses a tile at a time: log-sum-exps over all tiles first, then each tile once more for the gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from bixse.losses.engines.implementations import RowImplementation, choose
from bixse.losses.engines.known_entries import Terms, add_outer, known_cosines, known_parts
from bixse.losses.engines.products import add_product
from bixse.losses.engines.row_chunks import RowWiseLoss, wide_dtype, with_gradients
from bixse.losses.engines.tiles import blocks, places
from bixse.losses.options import LossOptions

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.engines.implementations import Chosen
    from bixse.losses.engines.row_chunks import Gradients
    from bixse.losses.targets import GradedTargets


class SoftmaxOptions(LossOptions):
    """Options of the losses with a softmax over a query's documents."""

    implementation: RowImplementation = "auto"
    """What computes the loss: "rows" runs everywhere, "triton" needs an NVIDIA GPU; "auto" is "rows", as long as no
    other was measured to be faster on the kind of device. One that cannot run is an error."""


class SoftmaxResult(NamedTuple):
    """What a softmax loss says of its log-sum-exps."""

    value: Tensor
    """Sum of all terms."""
    denominator: Tensor
    """What it is divided by."""
    offsets: Tensor
    """(T,): the gradient with respect to a logit is the sum of exp(logit - offset) over what it counts for."""
    known: Tensor
    """(M,) gradient with respect to the logits of known entries, over and above that."""


class SoftmaxLoss(RowWiseLoss):
    """Base of the losses that see the entries of a query through log-sum-exps of its logits alone.

    `chunk_result` computes them on whole rows. `terms` and `result` say the same of known entries and log-sum-exps, so
    that a kernel needs neither whole rows nor their logits in memory.
    """

    options_class = SoftmaxOptions
    options: SoftmaxOptions

    @abstractmethod
    def terms(self, known: Tensor, targets: GradedTargets) -> tuple[Terms, Tensor]:
        """The terms, and (M,) which known entries are left out of all of them; `known`: (M,) logits."""

    @abstractmethod
    def result(self, log_sums: Tensor, known: Tensor, terms: Terms, targets: GradedTargets) -> SoftmaxResult:
        """Of the (T,) log-sum-exp of each term, -inf where nothing counts; nothing may be read from the device."""

    def choice(self, device: torch.device, embeddings: torch.dtype = torch.float32) -> Chosen:
        """As the options say."""
        return choose(self.options.implementation, self.options.products, device, embeddings, "rows")

    def loss_and_denominator(
        self, queries: Tensor, documents: Tensor, targets: GradedTargets, tile: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As every row-wise loss; `tile` changes speed and memory of the kernel only."""
        choice = self.choice(queries.device, wide_dtype(queries, documents))
        if choice.name == "rows":
            return super().loss_and_denominator(queries, documents, targets)
        shape = tile or choice.tile_shape(len(queries), len(documents))
        add = partial(_add_tiles, loss=self, dtype=choice.dtype, shape=shape)
        return with_gradients(queries, documents, targets, self.options.scale, add)


def _add_tiles(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    scale: float,
    gradients: Gradients,
    *,
    loss: SoftmaxLoss,
    dtype: torch.dtype,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Known entries in float32 from unrounded embeddings, all others by the kernel; nothing waits for the device."""
    from bixse.losses.engines.triton_tiles import TritonTiles

    known = scale * known_cosines(queries, documents, targets)
    terms, apart = loss.terms(known, targets)
    q, d = queries.to(dtype), documents.to(dtype)
    entries = min(shape[0], len(q)) * min(shape[1], len(d))
    tiles = TritonTiles(entries, dtype, q.device)
    log_sums = torch.full_like(terms.highest, -math.inf)

    def left_out(rows: slice, columns: slice) -> Tensor:
        return torch.where(apart, places(targets, rows, columns, entries), entries)

    for rows, columns in blocks(len(q), len(d), shape):
        part, span = terms.of_rows(rows)
        found = tiles.log_sums(q[rows], d[columns], scale, part, left_out(rows, columns))
        log_sums[span] = torch.logaddexp(log_sums[span], found)
    result = loss.result(log_sums, known, terms, targets)
    if gradients != (None, None):
        for rows, columns in blocks(len(q), len(d), shape):
            part, span = terms.of_rows(rows)
            weights = tiles.weights(q[rows], d[columns], scale, part, left_out(rows, columns), result.offsets[span])
            if gradients[0] is not None:
                add_product(gradients[0][rows], weights, d[columns])
            if gradients[1] is not None:
                add_product(gradients[1][columns], weights.T, q[rows])
        for row, column, weight in known_parts(queries, replace(targets, relevance=result.known)):
            add_outer(gradients, (queries, documents), (row, column), weight)
    return result.value, result.denominator
