"""From tokenised features to embeddings: short texts are not padded to the longest of the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from bixse.encoders.processes import is_sharded, most_of_all

PASS_COST: Mapping[str, int] = defaultdict(lambda: 2048, cpu=64)
"""What a pass through the encoder costs beside its tokens, in tokens, by kind of device; measured with MiniLM.

A graphics card is done with a few thousand tokens before the next pass is launched.
"""
TEXTS_CUT_EXACTLY = 4096
"""Texts up to which the best cuts are searched."""
Features: TypeAlias = Mapping[str, Any]
"""Tokenised texts as sentence-transformers' models take them: `input_ids` (N, T), `attention_mask` (N, T), ...

Of static embeddings `input_ids` holds the tokens of all texts in one row, and `offsets` (N,) where each text begins.
"""
Encoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Tensor]]
"""A SentenceTransformer, or the distributed wrapper around one."""


def embed_features(
    model: Encoder, features: Features, mini_batch_size: int = 32, gradient_cache: bool = False
) -> Tensor:
    """Embed N tokenised texts in passes of similar length: (N, D), cut to the model's `truncate_dim`, not normalised.

    A batch padded to its longest text spends most of its time on padding. Sorting by length and trimming each pass
    changes no embedding (the attention mask hides padding) and keeps autograd intact. With padding on the left this
    needs relative positions, as decoders have; absolute ones are counted from the padding on. With `gradient_cache`
    no activations are kept: the backward pass computes those of one pass at a time, dropout drawn as before.

    Each pass through a sharded encoder gathers weights from all processes. Every process must call this then, as often
    as the others; one with fewer passes adds some of a single token, whose embeddings are dropped.
    """
    # a distributed wrapper keeps the encoder as its `module`
    dimensions: int | None = getattr(getattr(model, "module", model), "truncate_dim", None)
    sharded = is_sharded(model)

    def one_pass(given: dict[str, Any]) -> Tensor:
        embeddings = model(dict(given))["sentence_embedding"]  # the encoder adds its states to the dictionary
        return embeddings[:, :dimensions]

    def kept_or_not(given: dict[str, Any]) -> Tensor:
        if gradient_cache and torch.is_grad_enabled():
            embedded: Tensor = checkpoint(one_pass, given, use_reentrant=False)
            return embedded
        return one_pass(given)

    def embed(given: dict[str, Any]) -> Tensor:
        if sharded and torch.is_grad_enabled():
            apart: Tensor = _BackwardOfItsOwn.apply(  # type: ignore[no-untyped-call]
                torch.empty(0, requires_grad=True), kept_or_not, given
            )
            return apart
        return kept_or_not(given)

    mask = features.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return embed(dict(features))
    order, numbers = passes_by_length(mask, mini_batch_size)
    missing = most_of_all(len(numbers), mask.device) - len(numbers) if sharded else 0
    parts = [embed(take_rows(features, mask, rows)) for rows in (order.split(numbers) if numbers else [])]
    parts += [embed(_one_token(features, mask))[:0] for _ in range(missing)]
    return torch.cat(parts)[torch.argsort(order)]


class _BackwardOfItsOwn(torch.autograd.Function):
    """A pass through a sharded encoder that goes backward alone.

    Of several passes in one graph, autograd would hold the gradient of every whole weight until it has that of all
    passes; so each is reduced to this process's part as soon as its block is done.
    """

    @staticmethod
    def forward(ctx: Any, taken: Tensor, encode: Callable[[dict[str, Any]], Tensor], given: dict[str, Any]) -> Tensor:
        """`taken` is a tensor with a gradient, without which there would be no backward pass."""
        with torch.enable_grad():
            ctx.embedded = encode(given)
        detached: Tensor = ctx.embedded.detach()
        return detached

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        torch.autograd.backward(ctx.embedded, gradients)
        return None, None, None


def _one_token(features: Features, mask: Tensor) -> dict[str, Any]:
    """Features of a text of one token, with the same names."""
    single: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
            single[name] = value.new_full((1, 1, *value.shape[2:]), int(name == "attention_mask"))
        elif isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]:
            single[name] = value.new_zeros(1, *value.shape[1:])
        else:
            single[name] = value
    return single


def passes_by_length(mask: Tensor, mini_batch_size: int = 32) -> tuple[Tensor, list[int]]:
    """Return the (N,) rows of the (N, T) mask from the shortest to the longest text, and the number of texts per pass.

    A pass costs its number of texts times its longest one, and some tokens for itself (`PASS_COST`). The least sum over
    all cuts is found by dynamic programming. Above 4,096 texts every pass is full: its texts are of nearly one length.

    Example:
        >>> mask = (torch.arange(200) < torch.tensor([[200], [5], [6], [190]])).long()
        >>> order, numbers = passes_by_length(mask)
        >>> order.tolist(), numbers
        ([1, 2, 3, 0], [2, 2])
    """
    order = torch.argsort(mask.sum(dim=1), stable=True)
    if len(order) > TEXTS_CUT_EXACTLY:
        return order, [len(part) for part in order.split(mini_batch_size)]
    lengths = tuple(mask.sum(dim=1)[order].tolist())
    return order, list(_cheapest_cut(lengths, mini_batch_size, PASS_COST[mask.device.type]))


@lru_cache(maxsize=8)  # a step asks twice: to embed its texts, and to log what that took
def _cheapest_cut(lengths: tuple[int, ...], mini_batch_size: int, pass_cost: int) -> tuple[int, ...]:
    """Number of texts of each pass, for texts of ascending length."""
    cost, first = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        starts = np.arange(max(0, end - mini_batch_size), end)
        costs = cost[starts] + (end - starts) * lengths[end - 1] + pass_cost
        cost[end], first[end] = costs.min(), starts[costs.argmin()]
    numbers: list[int] = []
    end = len(lengths)
    while end > 0:
        numbers.append(int(end - first[end]))
        end = int(first[end])
    return tuple(reversed(numbers))


def positions_computed(mask: Tensor, mini_batch_size: int = 32) -> int:
    """Token positions that `embed_features` runs through the encoder, padding within its passes included."""
    order, numbers = passes_by_length(mask, mini_batch_size)
    lengths = mask.sum(dim=1)[order]
    counts = torch.tensor(numbers, dtype=torch.long, device=mask.device)  # of no texts too, where a process has none
    ends = counts.cumsum(0) - 1  # sorted: the last text of a pass is its longest
    return int((lengths[ends] * counts).sum())


def take_rows(features: Features, mask: Tensor, rows: Tensor) -> dict[str, Any]:
    """The chosen rows, without the token positions that are padding in all of them (left or right)."""
    kept = mask[rows].any(dim=0).nonzero().squeeze(1)
    taken: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
            taken[name] = value[rows][:, kept]
        elif isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]:
            taken[name] = value[rows]
        else:
            taken[name] = value
    return taken


def tokens_without_padding(features: Features) -> Tensor:
    """(N, T) tokens of each text from position 0 on, then -1: the same whichever side was padded."""
    tokens: Tensor = features["input_ids"]
    mask, offsets = features.get("attention_mask"), features.get("offsets")
    if isinstance(offsets, Tensor) and tokens.ndim == 1:
        texts = [*tokens.tensor_split(offsets[1:].cpu())] if len(offsets) else []
        return pad_sequence(texts, batch_first=True, padding_value=-1) if texts else tokens.reshape(0, 1)
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        return tokens
    own_first = torch.argsort(mask.bool().logical_not().long(), dim=1, stable=True)
    return torch.where(mask.bool(), tokens, -1).gather(1, own_first)


def number_of_texts(features: Features) -> int:
    """Return N, the number of texts that were tokenised together."""
    rows: Tensor = features["offsets"] if "offsets" in features else features["input_ids"]
    return len(rows)


def identical_texts(features: Features) -> tuple[Tensor, Tensor]:
    """(U,) the row at which each distinct text first stands, in order of appearance; (N,) each row's place in it."""
    _, inverse = torch.unique(tokens_without_padding(features), dim=0, return_inverse=True)
    position = torch.arange(len(inverse), device=inverse.device)
    first = torch.full((int(inverse.max()) + 1 if len(inverse) else 0,), len(inverse), device=inverse.device)
    first = first.scatter_reduce(0, inverse, position, reduce="amin")
    by_appearance = torch.argsort(first)
    return first[by_appearance], torch.argsort(by_appearance)[inverse]
