"""Arithmetic of the losses on a GPU: bytes, operations and expected milliseconds. Nothing is run.

    python benchmarks/loss_roofline.py [--batch 65536] [--dims 1024 4096]

Every assumption is a constant of this file. `make bench-loss DEVICE=cuda` measures what is computed here.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from bixse.losses.engines.products import DEVICE_TILE_BYTES, SHARE_OF_DEVICE, tile_shape
from bixse.losses.infonce import InfoNCELoss

if TYPE_CHECKING:
    from collections.abc import Sequence


class GPU(NamedTuple):
    """What the maker states: dense bf16 operations a second, bytes a second and bytes of memory."""

    operations: float
    bandwidth: float
    memory: float


GPUS = {
    "A100": GPU(312e12, 2.039e12, 80e9),
    "H100": GPU(989e12, 3.35e12, 80e9),
    "H200": GPU(989e12, 4.8e12, 141e9),
}
"""The SXM forms."""
REACHED_OPERATIONS = 0.7
"""Part of the stated operations that large bf16 products reach."""
REACHED_BANDWIDTH = 0.9
"""Part of the stated bandwidth that long reads and writes reach."""


class Traffic(NamedTuple):
    """Bytes an entry that go to or from memory in bf16, were no cache to hold them, and those of the tile's buffers."""

    during_products: float
    """While a product computes: the slower of the two counts."""
    between_products: float
    """While nothing else happens."""
    held: int
    products: int = 3
    whole_rows: bool = False


PRODUCTS = Traffic(during_products=6, between_products=0, held=2)
"""Bare: scores are written once in bf16 and read twice."""
IMPLEMENTATIONS = {
    # float32 logits written by the product; then scale and bias (read, write), softplus (read, write), its sum (read),
    # sigma (read, write), its sum (read), rounding (read, write 2); then bf16 read by two products
    "tiles": Traffic(4 + 2 + 2, 8 + 8 + 4 + 8 + 4 + 6, held=10),
    # float32 products written; one pass that reads them and writes bf16; two products
    "compiled": Traffic(4 + 2 + 2, 4 + 2, held=6),
    # bf16 read (which entries are known) and written by the kernel, and read by two products
    "triton": Traffic(2 + 2 + 2 + 2, 0, held=2),
    # float32 logits written by the product; then the scale (read, write), log-sum-exp (maximum: read; less it, exp:
    # read, write each; sum: read), less it, exp, times the share (read, write each), rounding (read, write 2); products
    "InfoNCE, rows": Traffic(
        4 + 2 + 2, 8 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 6, held=4 * InfoNCELoss.blocks_held, whole_rows=True
    ),
    # as triton, after a product more whose kernel reads bf16 (which entries are left out)
    "InfoNCE, triton": Traffic(2 + 2 + 2 + 2 + 2, 0, held=2, products=4),
}
"""Implementation -> traffic, from the operations of `bixse.losses.engines`."""


def operations(traffic: Traffic, queries: int, documents: int, dim: int) -> float:
    """Of the products."""
    return traffic.products * 2.0 * queries * documents * dim


def memory_bytes(traffic: Traffic, gpu: GPU, queries: int, documents: int, dim: int) -> tuple[float, float]:
    """During products, the float32 gradients of every tile included, and between them."""
    budget = min(DEVICE_TILE_BYTES, int(gpu.memory) // SHARE_OF_DEVICE)
    rows, columns = tile_shape(queries, documents, traffic.held, budget)
    if traffic.whole_rows:
        rows, columns = max(1, min(queries, budget // traffic.held // documents)), documents
    entries = float(queries) * documents
    gradients = 8.0 * dim * (entries / rows + entries / columns)  # of documents once a row of tiles, and the reverse
    return entries * traffic.during_products + gradients, entries * traffic.between_products


def expected_seconds(traffic: Traffic, gpu: GPU, queries: int, documents: int, dim: int) -> float:
    """Products at what is reached of the operations or, where slower, of the bandwidth; then what lies between them."""
    during, between = memory_bytes(traffic, gpu, queries, documents, dim)
    bandwidth = REACHED_BANDWIDTH * gpu.bandwidth
    products = operations(traffic, queries, documents, dim) / (REACHED_OPERATIONS * gpu.operations)
    return max(products, during / bandwidth) + between / bandwidth


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=65536, help="B = N")
    parser.add_argument("--dims", type=int, nargs="+", default=[1024, 4096], help="D")
    options = parser.parse_args(arguments)
    if min(options.batch, *options.dims) < 1:
        parser.error("expected numbers of at least 1")
    batch = options.batch
    print(f"{batch:,} queries and documents, bf16 products. Computed, not measured.\n")
    print("| D | implementation | 10¹² operations | GB to and from memory | " + " | ".join(
        f"{name}, ms (share of the products)" for name in GPUS) + " |")  # fmt: skip
    print("|---|---|---|---|" + "---|" * len(GPUS))
    for dim in options.dims:
        for name, traffic in {"products": PRODUCTS, **IMPLEMENTATIONS}.items():
            moved = sum(memory_bytes(traffic, GPUS["H100"], batch, batch, dim)) / 1e9
            times = []
            for gpu in GPUS.values():
                seconds, bare = (expected_seconds(each, gpu, batch, batch, dim) for each in (traffic, PRODUCTS))
                times.append(f"{1e3 * seconds:.1f} ({bare / seconds:.0%})")
            done = operations(traffic, batch, batch, dim) / 1e12
            print(f"| {dim:,} | {name} | {done:.1f} | {moved:.0f} | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
