"""Study `memory`: what a loss needs beyond embeddings and gradients, against the batch size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from bixse.errors import InputError
from bixse.lab.experiments import Arm, Measured
from bixse.lab.studies.study import Study
from bixse.losses.catalogue import build_loss
from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from bixse.data.graded_pairs import GradedPairs
    from bixse.lab.experiments import ArmRun
    from bixse.lab.lab_config import StudyConfig
    from bixse.lab.studies.study import Choices

CLEAR_PEAK = Path("/proc/self/clear_refs")
"""Where Linux is told to count the peak of resident memory anew."""
WHOLE_MATRIX = "bixse, whole matrix"
"""The same loss in plain PyTorch, which keeps the batch x documents matrix."""
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


def measure_memory(run: ArmRun, inputs: None, own: Path) -> Measured:
    """Extra memory (MiB) and time (s) of one forward and backward pass of a loss, in a process of its own.

    The labels of its arm are the loss (a word of the catalogue, or `WHOLE_MATRIX`) and the batch size B of queries and
    as many documents; its option `dim` is D of the embeddings.
    """
    if not CLEAR_PEAK.exists():
        raise InputError(
            "memory: got a system without /proc/self/clear_refs; expected Linux; fix: run this study there"
        )
    loss, batch_size = run.arm.labels["loss"], run.arm.labels["batch_size"]
    command = [sys.executable, "-m", "bixse.lab.studies.memory", loss, str(batch_size), str(run.arm.options["dim"])]
    done = subprocess.run(command, capture_output=True, text=True, env=freed_at_once(), check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise InputError(
            f"memory of {loss} at batch {batch_size}: got {said[0]}; expected a measurement; "
            "fix: smaller batches (the whole matrix takes some 7 times batch^2 * 4 bytes)"
        )
    return Measured(json.loads(done.stdout))


def _measure_here(loss: str, batch_size: int, dim: int) -> dict[str, float]:
    _pass(loss, Problem(64, dim))  # load the kernels
    problem = Problem(batch_size, dim)
    extra = peak_beyond_gradients(lambda: _pass(loss, problem), (problem.queries, problem.documents))
    started = time.perf_counter()
    _pass(loss, problem)
    return {"extra_mib": round(extra, 1), "pass_seconds": time.perf_counter() - started}


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


def _pass(word: str, problem: Problem) -> None:
    leaves = (problem.queries, problem.documents)
    if word == WHOLE_MATRIX:
        relevance, _ = problem.targets.dense()
        logits = 20.0 * problem.queries @ problem.documents.T - 8.0
        value = binary_cross_entropy_with_logits(logits, relevance, reduction="sum") / len(logits)
    else:
        no_encoder: Any = nn.Identity()
        loss = build_loss(word, no_encoder, **({"bias": -8.0} if word == "bixse" else {}))
        value = loss.compute_loss_from_embeddings(*leaves, problem.targets)
    torch.autograd.grad(value, leaves)


def _arms(config: StudyConfig, values: Choices, pairs: GradedPairs | None) -> list[Arm]:
    return [
        Arm({"loss": loss, "batch_size": size}, options={"dim": values["dim"]})
        for loss in values["losses"]
        for size in values["batch_sizes"]
    ]


MEMORY = Study(
    name="memory",
    title="Memory of a loss beyond embeddings and gradients",
    paper="Memory of the score tensors at batch 16,384: the paper's 134 MB are (B/8) * B * 4 bytes on each of 8 "
    "devices; one whole float32 matrix is 1.07 GB",
    defaults={
        "losses": ["bixse", "infonce", "soft-infonce", "pairwise-bce", "lambdaloss-v2", WHOLE_MATRIX],
        "batch_sizes": [256, 1024, 4096, 16384],
        "dim": 384,
    },
    arms=_arms,
    contrasts=lambda values: [],
    measure=measure_memory,
    axis="batch_size",
    axis_scale="log",
    metric="extra_mib",
    needs_data=False,
    notes=("One pass in a fresh process, in float32 on the processor; peak resident memory as Linux counts it.",),
)

if __name__ == "__main__":  # python -m bixse.lab.studies.memory LOSS BATCH DIM
    sys.stdout.write(json.dumps(_measure_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
