"""What a log entry says of the batches since the last one: how fast, how much padding, how many known entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from bixse.encoders.embedding import positions_computed
from bixse.losses.engines.gather import all_reduce_sum
from bixse.training.loop.batches import COUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Throughput:
    """Sums over the batches of one process; `figures` adds those of all processes up."""

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTS)
        self.tokens, self.positions = 0, 0  # without padding; all that went through the encoder
        self.seconds = 0.0

    def add(
        self, counts: torch.Tensor, features: Sequence[Mapping[str, Any]], mini_batch_size: int, seconds: float
    ) -> None:
        """One batch: its `COUNTS`, tokenised queries and documents, texts of a pass, and the wall time of its step."""
        self.counts = [before + new for before, new in zip(self.counts, counts.tolist(), strict=True)]
        for part in features:
            mask = part.get("attention_mask")
            if mask is not None:
                self.tokens += int(mask.sum())
                self.positions += positions_computed(mask, mini_batch_size)
        self.seconds += seconds

    def figures(self, device: torch.device) -> dict[str, float]:
        """Figures over all processes: counts, pairs and tokens per second, share of the positions that is padding."""
        exact = torch.float32 if device.type == "mps" else torch.float64
        own = torch.tensor([*self.counts, self.tokens, self.positions], dtype=exact, device=device)
        *counts, tokens, positions = all_reduce_sum(own).tolist()
        said = dict(zip(COUNTS, counts, strict=True))
        seconds = self.seconds or math.nan
        return {
            **{name: said[name] for name in COUNTS[2:]},
            "padding_waste": round(1 - tokens / positions, 4) if positions else math.nan,
            "train_pairs_per_second": round(said["pairs"] / seconds, 1),
            "train_tokens_per_second": round(tokens / seconds, 1),
        }
