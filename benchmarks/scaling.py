"""Arithmetic of memory and step time for large encoders and batches: nothing is run, every assumption is a constant.

    python benchmarks/scaling.py [--devices 8] [--batches 256 4096 65536] [--query-tokens 32] [--document-tokens 256]

One row an encoder and batch: one graded document a query, trained weights in float32 (frozen ones in bf16), bf16
autocast, gradient checkpointing, and `gradient_cache: true` with mini-batches of 32 texts. Bytes are of one device; a
step is the computation alone, without input or output.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GB = 1e9
TEXTS_PER_PASS = 32
ACHIEVED = 400e12
"""Floating point operations a second that a device reaches in bf16 products: 40 % of an H100's 989e12."""
ACHIEVED_FLOAT32 = 40e12
"""And in float32 products, in which the losses compute: 60 % of 67e12."""
GATHER_BYTES = 200e9
"""Bytes a second between devices: half of NVLink's on an H100."""
LAYER_STATES = 34
"""Bytes a token and hidden unit that one layer keeps for its backward pass in bf16 (Korthikanti et al. 2022,
arXiv:2205.05198, without dropout and attention matrices)."""


@dataclass(frozen=True)
class Encoder:
    """What the arithmetic needs of a model, from its config.json."""

    name: str
    parameters: float
    """All weights."""
    computing: float
    """Weights without the table of word embeddings: each costs two operations per token and pass."""
    layers: int
    hidden: int


ENCODERS = (
    Encoder("Qwen2.5-0.5B", 0.494e9, 0.358e9, 24, 896),
    Encoder("Llama-3.2-1B", 1.236e9, 0.973e9, 16, 2048),
    Encoder("Qwen2.5-1.5B", 1.544e9, 1.310e9, 28, 1536),
    Encoder("Qwen2.5-3B", 3.086e9, 2.775e9, 36, 2048),
    Encoder("Mistral-7B", 7.242e9, 7.111e9, 32, 4096),
)
LORA_SHARE = 0.02
"""Weights of adapters of rank 32 on every linear layer, over the encoder's."""


def states_bytes(encoder: Encoder, tokens: int) -> float:
    """Checkpointed states of one pass: the input of every layer in bf16, and what one layer keeps."""
    return tokens * encoder.hidden * (2 * encoder.layers + LAYER_STATES)


def device_bytes(encoder: Encoder, batch: int, devices: int, tokens: int, lora: bool) -> float:
    """Peak bytes of one device: weights, gradients and Adam, one pass, embeddings of all, and the loss's tiles."""
    trained = encoder.parameters * LORA_SHARE if lora else encoder.parameters
    weights = 2 * encoder.parameters + 16 * trained if lora else 16 * trained
    embeddings = 4 * encoder.hidden * (3 * batch + 4 * batch / devices)  # gathered, their gradient, their sum
    return weights + states_bytes(encoder, TEXTS_PER_PASS * tokens) + embeddings + 16 * 1024**2


def step_seconds(encoder: Encoder, batch: int, devices: int, tokens: int, lora: bool) -> tuple[float, float, float]:
    """Seconds of encoding, of the loss, and between devices.

    Forward, forward again for the cache, forward again for checkpointing, backward: 2 + 2 + 2 + 4 operations a weight
    and token. The loss: three products of B / W queries by B documents.
    """
    trained = encoder.parameters * LORA_SHARE if lora else encoder.parameters
    encoding = 10 * encoder.computing * batch * tokens / devices / ACHIEVED
    loss = 3 * 2 * batch * batch * encoder.hidden / devices / ACHIEVED_FLOAT32
    between = (2 * 4 * batch * encoder.hidden + 2 * 4 * trained) * (devices > 1) / GATHER_BYTES
    return encoding, loss, between


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--devices", type=int, default=8, help="W")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 4096, 65536], help="queries of a batch")
    parser.add_argument("--query-tokens", type=int, default=32, help="mean length of a query with its instruction")
    parser.add_argument("--document-tokens", type=int, default=256, help="mean length of a document")
    options = parser.parse_args(arguments)
    if min(options.devices, options.query_tokens, options.document_tokens, *options.batches) < 1:
        parser.error("expected numbers of at least 1")
    tokens = options.query_tokens + options.document_tokens
    print("| encoder | batch | full, GB | LoRA, GB | encode, s | loss, s | between devices, s (full / LoRA) |")
    print("|---|---|---|---|---|---|---|")
    for encoder in ENCODERS:
        for batch in options.batches:
            full, lora = (
                device_bytes(encoder, batch, options.devices, options.document_tokens, with_lora) / GB
                for with_lora in (False, True)
            )
            encoding, loss, between = step_seconds(encoder, batch, options.devices, tokens, False)
            less = step_seconds(encoder, batch, options.devices, tokens, True)[2]
            print(f"| {encoder.name} | {batch:,} | {full:.1f} | {lora:.1f} | {encoding:.2f} | {loss:.3f} | "
                  f"{between:.3f} / {less:.3f} |")  # fmt: skip


if __name__ == "__main__":
    main()
