import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys
from pathlib import Path
import torch
from bixse.encoders.relevance_model import RelevanceModel
from bixse.losses import build_loss

folder, word, cached = sys.argv[1], sys.argv[2], sys.argv[3] == "cached"


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
print(json.dumps({"loss": value.item(), "extra_mib": resident("VmHWM") - level}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory is read from /proc")
@pytest.mark.parametrize("word", ["bixse", "infonce"])
def test_a_cached_batch_of_16384_queries_takes_a_fraction_of_the_memory(tiny_model_path, word):
    results = []
    for form in ("cached", "uncached"):
        command = [sys.executable, "-c", CHILD, str(tiny_model_path), word, form]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    cached, uncached = results
    assert cached["loss"] == pytest.approx(uncached["loss"], rel=1e-6)
    assert cached["extra_mib"] < uncached["extra_mib"] / 4
