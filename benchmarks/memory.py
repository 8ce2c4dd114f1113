"""Peak memory of a piece of work, and the batch on which losses are measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

CLEAR_PEAK = Path("/proc/self/clear_refs")
"""The file by which Linux is asked to count the peak of resident memory anew."""
GRADED = 4
"""Graded documents of a query."""


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MiB; Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_beyond_gradients(work: Callable[[], object], inputs: Sequence[Tensor]) -> float:
    """Peak resident memory in MiB of one call, beyond its inputs and as much again for their gradients."""
    gradients = [torch.ones_like(part) for part in inputs]
    level = resident("VmRSS")
    CLEAR_PEAK.write_text("5", encoding="ascii")
    del gradients
    work()
    return max(0.0, resident("VmHWM") - level)


def freed_at_once() -> dict[str, str]:
    """The environment of a process that gives memory back as soon as it is freed, so that peaks are those in use."""
    return {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class Problem:
    """Unit embeddings of B = N texts in D dimensions; each query's own document is the best of four graded ones."""

    def __init__(self, size: int, dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.queries = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        self.documents = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        rows = torch.arange(size).repeat_interleave(GRADED)
        columns = (rows + torch.arange(GRADED).repeat(size)) % size
        relevance = torch.tensor([1.0, 0.67, 0.33, 0.0]).repeat(size)
        self.targets = GradedTargets(rows, columns, relevance, (size, size))
