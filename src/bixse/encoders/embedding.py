"""Embed tokenised features without padding short texts to the longest text of the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from bixse.encoders.processes import is_sharded, most_of_all

PASS_COST: Mapping[str, int] = defaultdict(lambda: 2048, cpu=64)
"""Fixed cost of a pass in tokens, per device type, measured with MiniLM. A GPU computes thousands of tokens before the
next pass is launched."""
TEXTS_CUT_EXACTLY = 4096
"""Largest number of texts for which the best cuts are searched."""
Features: TypeAlias = Mapping[str, Any]
"""Tokenised texts for models of sentence-transformers: `input_ids` (N, T), `attention_mask` (N, T), ...
For static embeddings, `input_ids` holds the tokens of all texts in one row, and `offsets` (N,) their starts."""
Encoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Tensor]]
"""A SentenceTransformer, or the distributed wrapper around one."""


def embed_features(
    model: Encoder, features: Features, mini_batch_size: int = 32, gradient_cache: bool = False
) -> Tensor:
    """Embed N tokenised texts in passes of similar length: (N, D), cut to `truncate_dim`, not normalised."""
    # a distributed wrapper keeps the encoder as its `module`
    dimensions: int | None = getattr(getattr(model, "module", model), "truncate_dim", None)
    sharded = is_sharded(model)

    def one_pass(part: dict[str, Any]) -> Tensor:
        embeddings = model(dict(part))["sentence_embedding"]  # the encoder adds its states to the dictionary
        return embeddings[:, :dimensions]

    def embed(part: dict[str, Any]) -> Tensor:
        if not torch.is_grad_enabled():
            return one_pass(part)
        # backward recomputes one pass at a time, with equal dropout; reentrant passes crash with adapters
        encode = partial(checkpoint, one_pass, use_reentrant=False) if gradient_cache else one_pass
        # without an input that requires a gradient there would be no backward pass
        start = torch.empty(0, requires_grad=True)
        embedded: Tensor = _SeparateBackward.apply(start, encode, part) if sharded else encode(part)  # type: ignore[no-untyped-call]
        return embedded

    mask = features.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return embed(dict(features))
    # without special tokens, an empty text has no token: models crash or give NaN, so its embedding is 0
    with_tokens = mask.any(dim=1).nonzero().squeeze(1)
    # A batch padded to its longest text spends most of its time on padding. Trimmed passes change no embedding: the
    # mask hides padding. Left padding needs relative positions (decoders): absolute ones count from the padding on.
    order, numbers = passes_by_length(mask[with_tokens], mini_batch_size)
    order = with_tokens[order]
    # a pass through a sharded encoder gathers weights from all processes: each must call this and run as many passes;
    # a batch without any token takes one pass too, which gives the dimensions
    missing = max(1, most_of_all(len(numbers), mask.device) if sharded else 0) - len(numbers)
    parts = [embed(take_rows(features, mask, rows)) for rows in (order.split(numbers) if numbers else [])]
    parts += [embed(_one_token(features, mask))[:0] for _ in range(missing)]
    embeddings = torch.cat(parts)
    return embeddings.new_zeros(len(mask), embeddings.shape[1]).index_copy(0, order, embeddings)


class _SeparateBackward(torch.autograd.Function):
    """A pass through a sharded encoder with a backward graph of its own.

    In one graph, autograd would keep the gradient of every unsharded weight until all passes are done. Here each
    gradient is reduced to this process's part after its block.
    """

    @staticmethod
    def forward(ctx: Any, _: Tensor, encode: Callable[[dict[str, Any]], Tensor], part: dict[str, Any]) -> Tensor:
        with torch.enable_grad():
            ctx.embedded = encode(part)
        detached: Tensor = ctx.embedded.detach()
        return detached

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        torch.autograd.backward(ctx.embedded, gradients)
        return None, None, None


def _one_token(features: Features, mask: Tensor) -> dict[str, Any]:
    """Return features of a text of one token, with the same names."""
    single = _map_tensors(
        features, mask, lambda x: x.new_zeros(1, 1, *x.shape[2:]), lambda x: x.new_zeros(1, *x.shape[1:])
    )
    return {**single, "attention_mask": mask.new_ones(1, 1)}


def _map_tensors(
    features: Features, mask: Tensor, tokens: Callable[[Tensor], Tensor], texts: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """Apply `tokens` to tensors with an entry per token and `texts` to tensors with an entry per text."""
    mapped = dict(features)
    for name, value in features.items():
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
            mapped[name] = tokens(value)
        elif isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]:
            mapped[name] = texts(value)
    return mapped


def passes_by_length(mask: Tensor, mini_batch_size: int = 32) -> tuple[Tensor, list[int]]:
    """Return the (N,) rows of the (N, T) mask from the shortest to the longest text, and the size of each pass."""
    order = torch.argsort(mask.sum(dim=1), stable=True)
    if len(order) > TEXTS_CUT_EXACTLY:
        return order, [len(part) for part in order.split(mini_batch_size)]  # of similar lengths: full passes
    lengths = tuple(mask.sum(dim=1)[order].tolist())
    return order, list(_cheapest_cut(lengths, mini_batch_size, PASS_COST[mask.device.type]))


def _cheapest_cut(lengths: tuple[int, ...], mini_batch_size: int, pass_cost: int) -> tuple[int, ...]:
    """Return the number of texts per pass, for texts of ascending length, by dynamic programming."""
    cost, first = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        starts = np.arange(max(0, end - mini_batch_size), end)
        # a pass costs its number of texts times its longest text, and a fixed number of tokens
        costs = cost[starts] + (end - starts) * lengths[end - 1] + pass_cost
        cost[end], first[end] = costs.min(), starts[costs.argmin()]
    numbers: list[int] = []
    end = len(lengths)
    while end > 0:
        numbers.append(int(end - first[end]))
        end = int(first[end])
    return tuple(reversed(numbers))


def take_rows(features: Features, mask: Tensor, rows: Tensor) -> dict[str, Any]:
    """Return the chosen rows, without token positions that are padding in all rows (left or right)."""
    columns = mask[rows].any(dim=0).nonzero().squeeze(1)
    return _map_tensors(features, mask, lambda value: value[rows][:, columns], lambda value: value[rows])


def tokens_without_padding(features: Features) -> Tensor:
    """Return (N, T) tokens: each text from position 0 on, then -1, whichever side was padded."""
    tokens: Tensor = features["input_ids"]
    mask, offsets = features.get("attention_mask"), features.get("offsets")
    if isinstance(offsets, Tensor) and tokens.ndim == 1:
        texts = [*tokens.tensor_split(offsets[1:].cpu())] if len(offsets) else []
        return pad_sequence(texts, batch_first=True, padding_value=-1) if texts else tokens.reshape(0, 1)
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        return tokens
    tokens_first = torch.argsort(mask.bool().logical_not().long(), dim=1, stable=True)
    return torch.where(mask.bool(), tokens, -1).gather(1, tokens_first)


def number_of_texts(features: Features) -> int:
    """Return N, the number of texts."""
    rows: Tensor = features["offsets"] if "offsets" in features else features["input_ids"]
    return len(rows)


def identical_texts(features: Features) -> tuple[Tensor, Tensor]:
    """Return (U,) first row per distinct text, in order of appearance, and (N,) the index of each row's text in it."""
    _, inverse = torch.unique(tokens_without_padding(features), dim=0, return_inverse=True)
    position = torch.arange(len(inverse), device=inverse.device)
    first = torch.full((int(inverse.max()) + 1 if len(inverse) else 0,), len(inverse), device=inverse.device)
    first = first.scatter_reduce(0, inverse, position, reduce="amin")
    by_appearance = torch.argsort(first)
    return first[by_appearance], torch.argsort(by_appearance)[inverse]
