"""A stand-in for a GPU on the CPU: its tensors say that they are on `cuda`, and what would wait for a GPU is listed.

PyTorch computes on the CPU. A mode below autograd marks the storage of each result whose inputs are marked, and refuses
inputs of both kinds, as a GPU does. A mode above it moves tensors: every request for `cuda` makes a marked copy. Not
imitated: Triton, streams (each operation is done when the next one begins), TF32, the random numbers of a GPU and the
operations that autocast treats otherwise there.
"""

import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.attention import per_text

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIGABYTE = 2**30
READS = """_local_scalar_dense _unique2 bincount equal masked_select nonzero repeat_interleave unique_consecutive
unique_dim""".split()  # noqa: SIM905
"""Operations whose result the CPU needs at once."""
BY_INDEX = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that take indices from the CPU."""


def tensors_in(*values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def is_marked(tensor: torch.Tensor) -> bool:
    tensor = tensor._values() if tensor.is_sparse else tensor
    return not tensor.is_meta and hasattr(tensor.untyped_storage(), "on_card")


def mark(tensor: torch.Tensor, on_card: bool) -> None:
    for part in [tensor._values(), tensor._indices()] if tensor.is_sparse else [tensor]:
        if on_card:
            part.untyped_storage().on_card = True
        elif is_marked(part):
            del part.untyped_storage().on_card


class Card(TorchDispatchMode):
    """The operations of a stand-in, and what waited for them."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, str]] = []
        """What waited, and the line of bixse that led to it."""
        self.counts = True

    def wait(self, what: str) -> None:
        if self.counts:
            lines = [f"{f.filename.rpartition('/src/')[2]}:{f.lineno}" for f in traceback.extract_stack()]
            self.waits.append((what, next((line for line in reversed(lines) if line.startswith("bixse/")), "")))

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        counts, self.counts = self.counts, False
        try:
            yield
        finally:
            self.counts = counts

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), operation.overloadpacket.__name__
        inputs = tensors_in(args, kwargs)
        marked = [is_marked(part) for part in inputs]
        if not any(marked):
            return operation(*args, **kwargs)
        if name == "copy_":
            if marked[0] != marked[1] and not any(map(bool, (*args[2:], kwargs.get("non_blocking")))):
                self.wait("copy_")
        elif self._is_mixed(name, inputs, marked, len(tensors_in(args[1])) if name in BY_INDEX else 0):
            raise RuntimeError(f"{operation}: got tensors on cuda and on the CPU: {[part.shape for part in inputs]}")
        elif name in READS or (name in BY_INDEX and self._needs_sizes(tensors_in(args[1]))):
            self.wait(name)
        with torch._C.DisableTorchFunction():
            if operation is torch.ops.aten.addmm.dtype_out:  # not on the CPU
                total, left, right, dtype = args
                kwargs.pop("out_dtype", None)
                result = torch.ops.aten.addmm.out(total, left.to(dtype), right.to(dtype), **kwargs)
            else:
                result = operation(*args, **kwargs)
        for part in tensors_in(result):
            mark(part, True)
        return result

    @staticmethod
    def _is_mixed(name: str, inputs: list[torch.Tensor], marked: list[bool], indices: int) -> bool:
        """Return True for tensors that a GPU refuses: indices and numbers alone may be on the CPU."""
        of_cpu = [not on and part.dim() > 0 for part, on in zip(inputs, marked, strict=True)]
        changed = (name.endswith("_") or indices) and not marked[0]
        return (
            any(of_cpu[1 + indices :] if indices else of_cpu)
            or changed
            or (name in ("cat", "stack") and not all(marked))
        )

    @staticmethod
    def _needs_sizes(indices: list[torch.Tensor]) -> bool:
        """Return True if indices are masks, whose number of entries sets a size, or are not on the card."""
        return any(part.dtype == torch.bool or not is_marked(part) for part in indices)


class Devices(TorchFunctionMode):
    """Make and move tensors where a call says, and mark those of the card."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name == "pin_memory":
            return source.clone()
        if name in ("__array__", "numpy", "tolist") and is_marked(source):
            if name != "tolist" and not kwargs.get("force"):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            self.card.wait(name)
        if function is torch.Tensor.backward:  # in PyTorch's own, hooks would run without this mode
            gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
            gradient = torch.ones_like(source) if gradient is None else gradient
            with self:
                return _engine_run_backward((source,), (gradient,), False, False, (), accumulate_grad=True)
        kwargs.pop("pin_memory", None)
        if name in ("cuda", "cpu") and source is not None:
            name, function, args = "to", torch.Tensor.to, (source, CUDA if name == "cuda" else CPU)
        target = kwargs.get("device")
        if name == "to" and len(args) > 1 and isinstance(args[1], torch.Tensor | torch.device | str):
            like = args[1]
            target, dtype = (like.device, (like.dtype,)) if isinstance(like, torch.Tensor) else (like, ())
            args = (source, target, *dtype, *args[2:])
        if name == "new_tensor" and target is None:
            target = source.device
        if target is None or (target := torch.device(target)).type == "meta":
            return function(*args, **kwargs)
        on_card = target.type == "cuda"
        if "device" in kwargs or name == "new_tensor":
            kwargs["device"] = CPU
        elif name == "to":
            args = (source, CPU, *args[2:])
        if source is None or is_marked(source) == on_card:
            if on_card and (name == "new_tensor" or (name in ("as_tensor", "tensor") and source is None)):
                self.card.wait("copy to the card")  # of numbers in Python
            result = function(*args, **kwargs)
        else:
            if not kwargs.get("non_blocking"):
                self.card.wait("copy to the card" if on_card else "copy from the card")
            with self.card.uncounted():
                result = function(*args, **kwargs)
                if result.untyped_storage()._cdata == source.untyped_storage()._cdata:
                    result = result.clone()
        for part in tensors_in(result):
            mark(part, on_card)
        return result


class _Stream:
    """A stream, an event of it, and the context of one: each operation is done when the next one begins."""

    def __init__(self, *_, **__) -> None:
        pass

    def __getattr__(self, name):
        return lambda *_, **__: _Stream()


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


def _replacements(card: Card) -> Iterator[tuple[object, str, object]]:
    """Yield what says that there is a GPU: object, name and value."""
    device = torch._C.TensorBase.device.__get__
    yield (
        torch.Tensor,
        "device",
        property(lambda self: CUDA if device(self) == CPU and is_marked(self) else device(self)),
    )
    yield torch.Tensor, "is_cuda", property(lambda self: self.device.type == "cuda")
    yield torch.Tensor, "record_stream", lambda self, stream: None
    state = torch.zeros(1, dtype=torch.uint8)
    properties = SimpleNamespace(
        total_memory=80 * GIGABYTE, name="stand-in", major=8, minor=0, multi_processor_count=100
    )
    answers = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True, "device_count": 1,
        "current_device": 0, "get_device_capability": (8, 0), "get_device_name": "stand-in",
        "get_device_properties": properties, "mem_get_info": (70 * GIGABYTE, 80 * GIGABYTE),
        "memory_reserved": 0, "memory_allocated": 0, "max_memory_allocated": GIGABYTE, "get_rng_state": state,
        "get_rng_state_all": [state], "current_stream": _Stream(), "stream": nullcontext(), "device_of": nullcontext(),
    }  # fmt: skip
    nothing = """_lazy_init empty_cache ipc_collect manual_seed manual_seed_all reset_peak_memory_stats set_device
    set_rng_state set_rng_state_all synchronize""".split()  # noqa: SIM905
    for name, value in {**answers, **dict.fromkeys(nothing)}.items():
        for module in (torch.cuda, torch.cuda.random):
            if hasattr(module, name):
                yield module, name, lambda *_, value=value, **__: value
    yield torch.cuda, "Stream", _Stream
    yield torch, "Generator", _Generator
    from torch.nn.utils import clip_grad

    group = clip_grad._group_tensors_by_device_and_dtype

    def grouped(*args):
        return {
            (CUDA if is_marked(lists[0][0]) else device, dtype): (lists, indices)
            for (device, dtype), (lists, indices) in group(*args).items()
        }

    yield clip_grad, "_group_tensors_by_device_and_dtype", grouped
    enter, leave, make = torch.autocast.__enter__, torch.autocast.__exit__, torch.autocast.__init__

    def made(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        make(self, device_type, dtype, enabled, cache_enabled)
        self.there = None
        if device_type == "cuda":  # the operations run on the CPU
            self.there = torch.autocast("cpu", dtype or torch.bfloat16, enabled, cache_enabled)

    def entered(self):
        if self.there is not None:
            enter(self.there)
        return enter(self)

    def left(self, *error):
        result = leave(self, *error)
        if self.there is not None:
            leave(self.there, *error)
        return result

    yield torch.autocast, "__init__", made
    yield torch.autocast, "__enter__", entered
    yield torch.autocast, "__exit__", left
    run = threading.Thread.run

    def in_modes(self):  # modes belong to one thread
        with Devices(card), card:
            run(self)

    yield threading.Thread, "run", in_modes

    def varlen(*args, **kwargs):
        with card.uncounted():
            return per_text(*args, **kwargs)

    yield "bixse.encoders.unpadded", "varlen_attn", varlen
    yield "bixse.losses.tiles.bce", "has_kernel", lambda device: False


@contextmanager
def stand_in() -> Iterator[Card]:
    """A context in which `cuda` is a stand-in."""
    card = Card()
    with ExitStack() as stack:
        for where, name, value in list(_replacements(card)):
            target = mock.patch(f"{where}.{name}", value) if isinstance(where, str) else None
            stack.enter_context(target or mock.patch.object(where, name, value, create=True))
        stack.enter_context(Devices(card))
        yield stack.enter_context(card)
