"""A batch of 16,384 queries and as many documents, 64 texts at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

CHILD = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from bixse.encoders.relevance_model import RelevanceModel
from bixse.losses import build_loss

folder, word, cached, out = sys.argv[1], sys.argv[2], sys.argv[3] == "cached", sys.argv[4]


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def batch(size):
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(5, 100, (size, 12), generator=generator) for _ in range(2)]
    features = [{"input_ids": text, "attention_mask": torch.ones_like(text)} for text in texts]
    rows = torch.arange(size).repeat_interleave(2)
    columns = (rows + torch.arange(2).repeat(size)) % size
    return features, {"rows": rows, "columns": columns, "relevance": torch.tensor([1.0, 0.3]).repeat(size)}


torch.manual_seed(0)
model = RelevanceModel(folder, device="cpu").train()
options = {"bias": -3.0, "learn_scale": True} if word == "bixse" else {}
loss = build_loss(word, model, scale=10.0, mini_batch_size=64, gradient_cache=cached, **options)
loss(*batch(64)).backward()  # load the kernels
loss.zero_grad()
features, targets = batch(16384)
level = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
torch.manual_seed(0)
value = loss(features, targets)
value.backward()
save_file({name: p.grad for name, p in loss.named_parameters() if p.grad is not None}, out)
print(json.dumps({"loss": value.item(), "extra_mib": resident("VmHWM") - level}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory is read from /proc")
@pytest.mark.parametrize("word", ["bixse", "infonce"])
def test_cached_gradients_are_those_of_the_whole_batch_in_a_fraction_of_its_memory(tiny_model_path, tmp_path, word):
    found = {}
    for form in ("cached", "whole"):
        command = [sys.executable, "-c", CHILD, str(tiny_model_path), word, form, str(tmp_path / form)]
        found[form] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    gradients = {form: load_file(tmp_path / form) for form in found}
    assert found["cached"]["loss"] == pytest.approx(found["whole"]["loss"], rel=1e-6)
    assert set(gradients["cached"]) == set(gradients["whole"])
    for name, gradient in gradients["whole"].items():
        torch.testing.assert_close(gradients["cached"][name], gradient, rtol=1e-3, atol=1e-5)
    assert found["cached"]["extra_mib"] < found["whole"]["extra_mib"] / 4
