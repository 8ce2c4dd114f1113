"""What many prompts begin with: found in their tokens, and kept as keys and values to go on from.

The prompts of a rubric share the system message and the head of the user message, and those of one query (or of one
document, by the rubric's order) share more.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Group: TypeAlias = tuple[list[int], int]
"""Indices of prompts, and how many first tokens they share."""
LEAST_SHARED = 8
"""Tokens from which a common beginning is worth a pass of its own."""


@dataclass(frozen=True)
class KeptTokens:
    """Keys and values of tokens that were read: R rows of K positions, padded on the right."""

    cache: Any
    """Cache of transformers."""
    mask: Tensor
    """(R, K), 1 where a token stands."""

    def rows(self, index: Sequence[int]) -> KeptTokens:
        """The same for some rows, in the order given, a row as often as it is named."""
        chosen = torch.tensor(index, device=self.mask.device)
        single = len(self.mask) == 1
        cache = copy.copy(self.cache)
        cache.layers = []
        for layer in self.cache.layers:
            own = copy.copy(layer)  # a layer grows by new tensors: the one copied from stays as it is
            if layer.is_initialized:
                own.keys, own.values = (
                    part.expand(len(index), -1, -1, -1) if single else part.index_select(0, chosen.to(part.device))
                    for part in (layer.keys, layer.values)
                )
            cache.layers.append(own)
        return KeptTokens(cache, self.mask.expand(len(index), -1) if single else self.mask[chosen])


def shared_length(sequences: Sequence[list[int]]) -> int:
    """How many first tokens all sequences share; at least one token of each is left over.

    Example:
        >>> shared_length([[1, 2, 3], [1, 2, 4, 5]]), shared_length([[1, 2], [1, 2]])
        (2, 1)
    """
    first, last = min(sequences), max(sequences)
    most = min(len(sequence) for sequence in sequences) - 1
    return next((i for i, (a, b) in enumerate(zip(first[:most], last, strict=False)) if a != b), max(0, most))


def shared_groups(
    sequences: Sequence[list[int]], indices: Sequence[int], start: int = 0, least: int = LEAST_SHARED
) -> tuple[list[Group], list[int]]:
    """Groups of sequences that share tokens beyond the first `start`.

    In alphabetical order a group grows as long as the tokens it saves, (size - 1) x (shared tokens), do not fall.

    Args:
        sequences: all of them.
        indices: those to group; their first `start` tokens are the same.
        start: tokens that are shared anyway.
        least: tokens from which a group is worth it.

    Returns:
        The groups, and the indices in no group.

    Example:
        >>> shared_groups([[7, 1, 2, 3], [7, 5, 5, 5], [7, 1, 2, 9]], [0, 1, 2], start=1, least=2)
        ([([0, 2], 3)], [1])
    """
    order = sorted(indices, key=lambda i: sequences[i])
    groups: list[Group] = []
    for i in order:
        if groups:
            members, length = groups[-1]
            common = min(length, shared_length([sequences[members[-1]], sequences[i]]))
            if common - start >= least and len(members) * (common - start) >= (len(members) - 1) * (length - start):
                groups[-1] = ([*members, i], common)
                continue
        groups.append(([i], len(sequences[i]) - 1))
    return [group for group in groups if len(group[0]) > 1], [group[0][0] for group in groups if len(group[0]) == 1]


@dataclass(frozen=True)
class AttentionLimits:
    """What of a model's attention decides how its prompts may be read together."""

    keeps: bool
    """Its cache holds keys and values alone, one a token."""
    window: int | None = None
    """The shortest attention window, in positions of the cache; None: all is seen."""
    stretched_from: int | None = None
    """Prompts longer than this turn the rotary positions of their whole batch into others (longrope)."""

    def allow_gaps(self, longest: int) -> bool:
        """Whether unused positions between kept and new tokens stay inside the window, which counts them."""
        return self.window is None or 2 * longest < self.window


def attention_limits(model: Any) -> AttentionLimits:
    """Read the limits off a model's configuration."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    config = model.config.get_text_config()
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return AttentionLimits(keeps=False)
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    windows = [layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]
    if isinstance(local := getattr(config, "window_size", None), int):
        windows.append(local)  # GPT-Neo keeps all and masks by position
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = [part for part in (rotary, *rotary.values()) if isinstance(part, dict)]
    stretched = [
        int(kind.get("original_max_position_embeddings") or config.max_position_embeddings)
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return AttentionLimits(
        keeps=plain and getattr(config, "is_causal", True) is not False,
        window=min(windows, default=None),
        stretched_from=min(stretched, default=None),
    )
