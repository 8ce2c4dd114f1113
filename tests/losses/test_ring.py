"""Documents that travel between real processes (gloo) give what gathered documents give."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from bixse.errors import ConfigError, InputError
from bixse.losses import build_loss
from bixse.losses.engines.ring import Ring

CHILD = """
import sys
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from bixse.losses import BiXSELoss
from bixse.losses.engines.gather import all_gather_rows, all_reduce_sum
from bixse.losses.engines.ring import Ring, ring_bce
from bixse.losses.targets import GradedTargets

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


class Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.untyped_storage().nbytes() // result.element_size())
        return result


def problem(queries, documents, dim, masked, share=0.3):
    generator = torch.Generator().manual_seed(queries)
    q, d = (torch.nn.functional.normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)
            for n in (queries, documents))
    known = torch.rand(queries, documents, generator=generator) < share
    relevance = torch.rand(queries, documents, generator=generator, dtype=torch.float64)
    relevance[torch.rand(queries, documents, generator=generator) < masked] = torch.nan
    shuffled = torch.randperm(documents, generator=generator)
    shares = [shuffled[r::world] for r in range(world)]
    number = -(-documents // world)
    order = torch.zeros(documents, dtype=torch.long)
    for r, columns in enumerate(shares):
        order[columns] = r * number + torch.arange(len(columns))
    mine = torch.arange(queries)[rank::world]
    rows, columns = known[mine].nonzero(as_tuple=True)
    targets = GradedTargets(rows, columns, relevance[mine][rows, columns], (len(mine), documents))
    return q[mine], d[shares[rank]], order, targets


for sizes, reduction in (((9, 14), "query"), ((9, 14), "mean"), ((2, 3), "query"), ((13, 5), "mean")):
    for bias, tolerance in ((-3.0, 1e-10), ("fit", 1e-6)):  # the fit looks at float32
        q, d, order, targets = problem(*sizes, 6, 0.1)
        found = []
        for form in ("gather", "ring"):
            numbers = (torch.tensor(10.0, dtype=torch.float64), torch.tensor(-3.0, dtype=torch.float64))
            leaves = [x.detach().clone().requires_grad_() for x in (q, d, *numbers)]
            loss = BiXSELoss(torch.nn.Identity(), bias=bias, reduction=reduction, learn_scale=True,
                             between_devices=form).double()
            if form == "ring":
                value = loss.compute_loss_around_ring(leaves[0], Ring(leaves[1], order), targets)
            else:
                documents = all_gather_rows(leaves[1], -(-len(order) // world))[order]
                value = loss.compute_loss_from_embeddings(leaves[0], documents, targets)
                count = loss.denominator.double()  # the weights of `global_mean_weight`, which are float32
                value = value * world * count / all_reduce_sum(count)
            gradients = torch.autograd.grad(value * 0.5, [*leaves[:2], loss.logit_scale, loss.logit_bias])
            figures = [loss.statistics[name] for name in sorted(loss.statistics)]
            assert abs(float(loss.logit_bias)) > 0.1
            found.append([value, *gradients, *(torch.nan_to_num(x, -1.0) for x in figures)])
        for ring, gathered in zip(found[1][:5], found[0][:5], strict=True):
            torch.testing.assert_close(ring.detach(), gathered.detach(), rtol=tolerance, atol=1e-3 * tolerance)
        torch.testing.assert_close(found[0][5:], found[1][5:], rtol=1e-5, atol=1e-6)

q, d, order, targets = problem(8, 400, 64, 0.0, 0.02)
leaves = [x.float().requires_grad_() for x in (q, d)]
with Largest() as largest:
    loss, _ = ring_bce(leaves[0], Ring(leaves[1], order), targets, torch.tensor(10.0), torch.tensor(-3.0))
    loss.backward()
print(largest.numbers, flush=True)
dist.barrier()
"""


@pytest.mark.slow  # tests/training/test_processes.py trains around a ring by default
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_equals_the_gathered_form(processes, tmp_path):
    """Loss, its four gradients, the fitted bias and the figures of the log; shares that are uneven or empty."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(rank), str(processes), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes, [error for _, error in ended]
    largest = max(int(printed) for printed, _ in ended)
    assert largest <= 400 * 64 // processes  # a share of the documents


def test_documents_that_were_not_dealt_out():
    with pytest.raises(InputError, match="got 3 documents of process 0; expected 5 of 5"):
        Ring(torch.zeros(3, 2), torch.arange(5))


def test_a_ring_cannot_look_at_all_documents(tiny_model):
    with pytest.raises(ConfigError, match="between_devices: gather"):
        build_loss("bixse", tiny_model, between_devices="ring", false_negative_margin=0.1)


def test_suspicious_zeros_need_all_documents(tiny_model):
    loss = build_loss("bixse", tiny_model, bias=-1.0, between_devices="ring")
    loss.observer = lambda *batch: None
    queries, documents = (tiny_model.preprocess(texts) for texts in (["copy a file"], ["shutil copy", "sort"]))
    labels = {"rows": torch.tensor([0]), "columns": torch.tensor([0]), "relevance": torch.tensor([1.0])}
    with pytest.raises(InputError, match="no regrade"):
        loss([queries, {**documents, "order": torch.arange(2)}], labels)
    loss.observer = None
    alone = build_loss("bixse", tiny_model, bias=-1.0)([queries, documents], labels)
    torch.testing.assert_close(loss([queries, {**documents, "order": torch.arange(2)}], labels), alone)
