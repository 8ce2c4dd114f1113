"""What computes a loss, and why it cannot here."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch

from bixse.errors import InputError
from bixse.losses.engines.products import TILE_SIDE, product_dtype, tile_bytes, tile_shape
from bixse.losses.engines.tiles import CompiledTiles, EagerTiles

if TYPE_CHECKING:
    from bixse.encoders.loading.precision import Setting
    from bixse.losses.engines.tiles import Tiles

Implementation: TypeAlias = Literal["auto", "tiles", "compiled", "triton"]
"""What computes the loss:

- "tiles": PyTorch's own operations, on every device; the others are held to it. A tile is read and written several
  times between its products.
- "compiled": what lies between the products is one pass that torch.compile writes; the first call takes seconds.
- "triton": logits never leave the registers of a GPU, one number an entry is written; needs triton and an NVIDIA GPU of
  compute capability 8.0 or more.
- "auto": "tiles", as long as no other was measured to be faster on the kind of device.
"""

RowImplementation: TypeAlias = Literal["auto", "rows", "triton"]
"""What computes a softmax loss: "rows" is PyTorch's own operations on blocks of whole rows, "triton" and "auto" as
above."""


class Chosen(NamedTuple):
    """What computes the loss of one batch."""

    name: Implementation | RowImplementation
    dtype: torch.dtype
    """Of the factors of its matrix products."""
    device: torch.device
    tiles: type[Tiles] | None
    """None: the tiles of the processor, or whole rows."""

    def tile_shape(self, queries: int, documents: int) -> tuple[int, int]:
        """Rows and columns that suit the device; the last ones may be fewer."""
        if self.device.type == "cpu" or self.tiles is None:
            return TILE_SIDE, TILE_SIDE
        return tile_shape(queries, documents, self.tiles.bytes_per_entry[self.dtype], tile_bytes(self.device))

    def __str__(self) -> str:
        return f"{self.name}, products of {str(self.dtype).removeprefix('torch.')}"


def choose(
    implementation: Implementation | RowImplementation,
    products: Setting,
    device: torch.device,
    embeddings: torch.dtype,
    everywhere: Literal["tiles", "rows"] = "tiles",
) -> Chosen:
    """What computes the loss of float32 or float64 embeddings on a device; nothing else is taken silently.

    `everywhere` is the form that every device has, which "auto" takes.

    Raises:
        InputError: what was asked for cannot run here.
    """
    dtype = product_dtype(products, device, embeddings)
    name = everywhere if implementation == "auto" else implementation
    missing = _MISSING[name](device, dtype) if name in _MISSING else None
    if missing is not None:
        raise InputError(f"implementation: got {name!r}; expected {missing}, or implementation: {everywhere}")
    if name == "triton":
        from bixse.losses.engines.triton_tiles import TritonTiles

        return Chosen(name, dtype, device, TritonTiles)
    if name == "compiled":
        return Chosen(name, dtype, device, CompiledTiles)
    on_host = name == "rows" or (device.type == "cpu" and dtype == embeddings)
    return Chosen(name, dtype, device, None if on_host else EagerTiles)


def _missing_for_compiled(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type == "cuda":
        return None if find_spec("triton") else "triton, which torch.compile writes for; fix: pip install triton"
    if device.type != "cpu":
        return f"the processor or an NVIDIA GPU, got {device.type}; fix: another device"
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"a C++ compiler, {compiler!r} is missing; fix: install g++"


def _missing_for_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    if not find_spec("triton"):
        return "triton, which is missing; fix: pip install triton (Linux)"
    if dtype == torch.float64:
        return "float32 embeddings, got float64; fix: embeddings.float()"
    if device.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else "an NVIDIA GPU, got the processor; fix: device cuda"
    if device.type != "cuda" or torch.version.hip:
        return f"an NVIDIA GPU, got {'ROCm' if device.type == 'cuda' else device.type}; fix: device cuda"
    capability = torch.cuda.get_device_capability(device)
    found = ".".join(map(str, capability))
    return None if capability >= (8, 0) else f"compute capability 8.0 or more, got {found}; fix: another GPU"


_MISSING = {"compiled": _missing_for_compiled, "triton": _missing_for_triton}
