"""What training takes, by arithmetic: bytes and operations from an encoder's size; nothing is run or loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from bixse.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_PER_TRAINED = 16
"""A float32 weight, its gradient, and Adam's two moments."""
BYTES_PER_FROZEN = 2
"""A weight in bf16."""
LAYER_STATES = 34
"""Bytes a token and hidden unit that one layer keeps for its backward pass in bf16 (Korthikanti et al. 2022,
arXiv:2205.05198, without dropout and attention matrices)."""


class EncoderSize(Settings):
    """The size of an encoder and of the texts it reads, for a plan of memory and time without its files."""

    parameters: float = Field(gt=0)
    """Weights in all."""
    trained: float | None = Field(default=None, gt=0)
    """Weights that are trained; null: all."""
    multiplied: float | None = Field(default=None, gt=0)
    """Weights that every token is multiplied with, all but the table of token embeddings; null: all."""
    layers: int = Field(ge=1)
    """Transformer layers."""
    hidden: int = Field(ge=1)
    """Width of a token's state."""
    query_tokens: int = Field(default=32, ge=1)
    """Assumed mean length of a query with its instruction."""
    document_tokens: int = Field(default=256, ge=1)
    """Assumed mean length of a document."""
    training_rows: int = Field(default=1_000_000, ge=1)
    """Assumed rows of training data where the files are not there."""


def weight_bytes(size: EncoderSize) -> float:
    """Bytes of weights, gradients and optimizer; frozen weights lie in bf16.

    Example:
        >>> weight_bytes(EncoderSize(parameters=100, trained=10, layers=1, hidden=8))
        340.0
    """
    trained = size.trained or size.parameters
    return trained * BYTES_PER_TRAINED + (size.parameters - trained) * BYTES_PER_FROZEN


def state_bytes(size: EncoderSize, tokens: float, checkpointing: bool) -> float:
    """Bytes of the states that a pass over some tokens keeps for its backward pass, in bf16.

    With gradient checkpointing it is the input of every layer, and what one layer keeps; else what all layers keep.
    """
    whole_layers = 1 if checkpointing else size.layers
    return tokens * size.hidden * (2 * size.layers * checkpointing + LAYER_STATES * whole_layers)


def operations(
    size: EncoderSize, texts: Sequence[tuple[float, float]], checkpointing: bool, gradient_cache: bool = False
) -> float:
    """Floating point operations of training on texts once.

    A forward and backward pass takes 6 operations a weight and token (Kaplan et al. 2020, arXiv:2001.08361), 2 more
    with gradient checkpointing and 2 more with `gradient_cache: true`, which both go forward again; attention takes
    12 * layers * width * tokens^2 a text on top.

    `texts` are lengths in tokens, each with the number of such texts.
    """
    each = 6 + 2 * checkpointing + 2 * gradient_cache
    tokens = sum(length * count for length, count in texts)
    squares = sum(length**2 * count for length, count in texts)
    return each * (size.multiplied or size.parameters) * tokens + 12 * size.layers * size.hidden * squares
