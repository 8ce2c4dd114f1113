"""The dtype that models compute in: one setting per process, resolved in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from bixse.errors import InputError, did_you_mean, shorten

if TYPE_CHECKING:
    import torch

PRECISION_VARIABLE = "BIXSE_PRECISION"
Precision: TypeAlias = Literal["float32", "bfloat16"]
"""Dtype of computation. bfloat16 means matrix products, by autocast; sums, norms and losses stay float32."""
Setting: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""Requested precision; "auto" is bfloat16 if the device is fast at it, else float32."""
SETTINGS: tuple[str, ...] = get_args(Setting)


def check_setting(value: object, name: str = "precision") -> Setting:
    """Return a valid setting; raises InputError for any other value of `name`."""
    if value not in SETTINGS:
        raise InputError(
            f"{name}: got {shorten(value)}; expected one of {', '.join(SETTINGS)}; "
            f"fix: {did_you_mean(str(value), SETTINGS, 'leave it out for auto')}"
        )
    return value  # type: ignore[return-value]


def precision_setting() -> Setting:
    """Return the setting of this process: the value of `BIXSE_PRECISION`, else "auto"."""
    return check_setting(os.environ.get(PRECISION_VARIABLE) or "auto", PRECISION_VARIABLE)


@contextmanager
def use_precision(setting: str | None) -> Iterator[None]:
    """Set the precision inside the block, also for processes started in it; "auto" and None change nothing."""
    before = os.environ.get(PRECISION_VARIABLE)
    wanted = check_setting(setting or "auto")
    if wanted == "auto":
        precision_setting()  # an invalid BIXSE_PRECISION is refused at once
        yield
        return
    os.environ[PRECISION_VARIABLE] = wanted
    try:
        yield
    finally:
        if before is None:
            del os.environ[PRECISION_VARIABLE]
        else:
            os.environ[PRECISION_VARIABLE] = before


def resolve_precision(setting: str | None = None, device: torch.device | str | None = None) -> Precision:
    """Return the dtype for a device (None: `default_device`); "auto" or None: the setting of the process."""
    wanted = check_setting(setting or "auto")
    wanted = precision_setting() if wanted == "auto" else wanted
    if wanted == "auto":
        return "bfloat16" if bf16_is_fast(default_device() if device is None else device) else "float32"
    return wanted


def default_device() -> str:
    """Return the device of a model that was given none."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def bf16_is_fast(device: torch.device | str = "cpu") -> bool:
    """Return True if the device computes in bf16; CPUs without avx512_bf16 and AMX emulate it, slower."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def rounding(dtype: torch.dtype) -> str:
    """Return the precision that products of tensors of a dtype are rounded to: "float32", or a coarser one."""
    import torch

    matmul = torch.backends.cuda.matmul
    if dtype not in (torch.float32, torch.float64):
        return str(dtype).removeprefix("torch.")
    chosen = getattr(matmul, "fp32_precision", None)  # from PyTorch 2.9 on, which refuses to mix it with allow_tf32
    tf32 = matmul.allow_tf32 if chosen is None else chosen == "tf32"
    return "float32 with TF32 allowed, which rounds as half precision does" if tf32 else "float32"


def autocast(device: torch.device | str, setting: str | None = None) -> AbstractContextManager[object]:
    """Return a context that computes as `resolve_precision` says."""
    import torch

    if resolve_precision(setting, device) == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which operations keep the dtypes of their inputs."""
    import torch

    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def make_weights_float32(model: torch.nn.Module) -> None:
    """Make half-precision weights and buffers float32, in place; quantised ones stay."""
    import torch

    # most published decoders are stored in bf16, and loaded as stored
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.data = tensor.data.float()


@contextmanager
def float32_products() -> Iterator[None]:
    """Compute float32 products of a GPU inside the block in float32, even where TF32 is allowed."""
    import torch

    matmul = torch.backends.cuda.matmul
    # PyTorch 2.9 and later raise an error where its old and its new name of the setting are mixed
    name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)
