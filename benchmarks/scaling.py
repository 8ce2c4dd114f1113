"""Arithmetic of memory and step time for large encoders and batches: nothing is run, every assumption is a constant.

    python benchmarks/scaling.py [--devices 8] [--batches 256 4096 65536] [--query-tokens 32] [--document-tokens 256]

One row an encoder and batch: one graded document a query, trained weights in float32 (frozen ones in bf16), bf16
autocast, gradient checkpointing, and `gradient_cache: true` with mini-batches of 32 texts. Bytes are of one device; a
step is the computation alone, without input or output. What an encoder takes is `bixse.lab.studies.study_plan`'s.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bixse.lab.lab_config import EncoderSize
from bixse.lab.studies.study_plan import operations, state_bytes, weight_bytes
from bixse.losses.products import DEVICE_TILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

GB = 1e9
TEXTS_PER_PASS = 32
ACHIEVED = 400e12
"""Floating point operations a second that a device reaches in bf16 products: 40 % of an H100's 989e12."""
TILE_BYTES_PER_ENTRY = 10
"""Of the loss's buffers with bf16 products."""
GATHER_BYTES = 200e9
"""Bytes a second between devices: half of NVLink's on an H100."""
ENCODERS = {
    "Qwen2.5-0.5B": EncoderSize(parameters=0.494e9, multiplied=0.358e9, layers=24, hidden=896),
    "Llama-3.2-1B": EncoderSize(parameters=1.236e9, multiplied=0.973e9, layers=16, hidden=2048),
    "Qwen2.5-1.5B": EncoderSize(parameters=1.544e9, multiplied=1.310e9, layers=28, hidden=1536),
    "Qwen2.5-3B": EncoderSize(parameters=3.086e9, multiplied=2.775e9, layers=36, hidden=2048),
    "Mistral-7B": EncoderSize(parameters=7.242e9, multiplied=7.111e9, layers=32, hidden=4096),
}
"""Name -> size, from its config.json."""
LORA_SHARE = 0.02
"""Weights of adapters of rank 32 on every linear layer, over the encoder's."""


def with_adapters(size: EncoderSize) -> EncoderSize:
    """The encoder frozen, with low-rank adapters that are trained."""
    adapters = LORA_SHARE * size.parameters
    return size.model_copy(update={"parameters": size.parameters + adapters, "trained": adapters})


def device_bytes(size: EncoderSize, batch: int, devices: int, document_tokens: int) -> float:
    """Peak bytes of one device: weights, gradients and Adam, one pass, embeddings, and the loss's tiles.

    Gathered are all documents, their gradient and its sum, and half as much again in bf16.
    """
    embeddings = 4 * size.hidden * (3.5 * devices + 4) * batch / devices
    states = state_bytes(size, TEXTS_PER_PASS * document_tokens, checkpointing=True)
    tile = min(DEVICE_TILE_BYTES, TILE_BYTES_PER_ENTRY * batch * batch / devices)
    return weight_bytes(size) + states + embeddings + tile


def step_seconds(size: EncoderSize, batch: int, devices: int, lengths: Sequence[int]) -> tuple[float, float, float]:
    """Seconds of encoding, of the loss (three products of B / W queries by B documents), and between devices."""
    encoding = operations(size, [(length, batch) for length in lengths], True, gradient_cache=True) / devices / ACHIEVED
    loss = 3 * 2.0 * -(-batch // devices) * batch * size.hidden / ACHIEVED
    between = (2 * 4 * batch * size.hidden + 2 * 4 * (size.trained or size.parameters)) * (devices > 1) / GATHER_BYTES
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
    memory, time = "full, GB | LoRA, GB", "encode, s | loss, s | between devices, s (full / LoRA)"
    print(f"| encoder | batch | {memory} | {time} |")
    print("|---|---|---|---|---|---|---|")
    lengths = (options.query_tokens, options.document_tokens)
    for name, size in ENCODERS.items():
        for batch in options.batches:
            both = (size, with_adapters(size))
            full, lora = (device_bytes(size, batch, options.devices, options.document_tokens) / GB for size in both)
            encoding, loss, between = step_seconds(both[0], batch, options.devices, lengths)
            less = step_seconds(both[1], batch, options.devices, lengths)[2]
            print(f"| {name} | {batch:,} | {full:.1f} | {lora:.1f} | {encoding:.2f} | {loss:.3f} | "
                  f"{between:.3f} / {less:.3f} |")  # fmt: skip


if __name__ == "__main__":
    main()
