"""The processes that train one model: they start together, compare their inputs, and stop together.

The launcher's environment gives the rank of this process before torch is imported; accelerate does the rest.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bixse.errors import BixseError, InputError
from bixse.machine import launched_number

if TYPE_CHECKING:
    import torch

NUMBERS_AT_ONCE = 2**23
"""Gradient values summed over the processes in one message: 32 MB of float32."""
PATIENCE = timedelta(hours=6)
"""Timeout of a process that waits for the others, for example while the first one searches the dev collection."""


def world_size() -> int:
    """Return the number of processes that the launcher (torchrun, accelerate launch) started; 1 without one."""
    return launched_number("WORLD_SIZE", 1)


def rank() -> int:
    """Return the rank of this process, from 0, as the launcher set it."""
    return launched_number("RANK", 0)


def is_main_process() -> bool:
    """Return True in the process that writes files and talks to the user."""
    return rank() == 0 or world_size() == 1


def init_distributed() -> None:
    """Join the other processes; do nothing in a single process."""
    if world_size() > 1:
        import torch
        from accelerate import PartialState

        if not torch.distributed.is_initialized():
            try:
                PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
            except ValueError as error:  # a launcher's variable is missing, such as MASTER_ADDR
                raise InputError(
                    f"WORLD_SIZE={world_size()}: got no way for processes to meet ({error}); expected the variables of "
                    "a launcher; fix: start the command with torchrun or accelerate, or unset WORLD_SIZE"
                ) from error
            atexit.register(torch.distributed.destroy_process_group)
            # torch 2.13 has new names for both; older versions lack them
            names = "all_gather_into_tensor|reduce_scatter_tensor"
            warnings.filterwarnings("ignore", message=f".*({names}).* is deprecated", category=FutureWarning)


@contextmanager
def raise_together() -> Iterator[None]:
    """Run the block in every process; an error in one process fails all, with the error of the lowest rank.

    Above a function, `@raise_together()` makes each call such a block.
    """
    if world_size() == 1:
        yield
        return
    from accelerate.utils import gather_object

    error: BixseError | None = None
    try:
        yield
    except BixseError as raised:
        error = raised
    errors = [other for other in gather_object([error]) if other is not None]
    if errors:
        raise errors[0].of_all_processes()


def check_agreement(named: Mapping[str, Any]) -> None:
    """Refuse, by an InputError, values that differ between processes."""
    from accelerate.utils import gather_object

    everyone = gather_object([dict(named)])
    for name in named:
        values = [other.get(name) for other in everyone]
        odd = [number for number, value in enumerate(values) if value != values[0]]
        if odd:
            raise InputError(
                f"{name}: got another value in process {', '.join(map(str, odd))} than in process 0 "
                f"({values[odd[0]]!r}, not {values[0]!r}); expected the same everywhere; fix: start all processes "
                "with the same command, on the same files"
            ).of_all_processes()


def any_process(flag: bool, device: torch.device) -> bool:
    """Return True if the flag is set in at least one process; each process must call this."""
    if world_size() == 1:
        return flag
    import torch

    from bixse.encoders.processes import all_reduce_sum

    return bool(all_reduce_sum(torch.tensor(float(flag), device=device)) > 0)


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its mean over all processes, after the last backward pass of a step."""
    # torch's DistributedDataParallel averages during the backward pass, and expects one forward pass per step through
    # its wrapper; an encoder runs many passes per step, also in the backward pass if checkpointed or cached; the sum
    # afterwards is correct for all these passes, and for the loss's own parameters
    if world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        return
    import torch
    import torch.distributed as dist

    has = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=trained[0].device)
    dist.all_reduce(has)
    # a parameter without a gradient in every process keeps none
    used = [parameter for parameter, number in zip(trained, has.tolist(), strict=True) if number > 0]
    for bucket in _buckets(used):
        gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in bucket]
        flat = torch.cat([gradient.float().reshape(-1) for gradient in gradients])  # sums in float32
        dist.all_reduce(flat)
        flat /= world_size()
        for parameter, part in zip(bucket, flat.split([parameter.numel() for parameter in bucket]), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(member.numel() for member in bucket) >= NUMBERS_AT_ONCE:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
