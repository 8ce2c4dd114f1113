import random
import signal
import time

import pytest
import torch
from launch import TRAIN_ALL, compare, finish, read, run_all, settings_file, start, wait_until
from safetensors.torch import load_file, save_file

from bixse.errors import InputError, ModelError, OutputExistsError, TrainingError
from bixse.losses import BiXSELoss
from bixse.scale.sharding import check_can_be_sharded, load_weights, save_shards
from bixse.training.config import TrainConfig
from bixse.training.loop.checkpoints import complete_checkpoints
from bixse.training.loop.trainer import GradedTrainingArguments
from bixse.training.recipe import train
from helpers.command import odd_modes

pytestmark = pytest.mark.precision("float32")


@pytest.mark.slow
def test_frozen_weights_in_bf16_beside_adapters_in_float32(run_config, tiny_model, tasks_file, tmp_path):
    tiny_model.bfloat16().save_pretrained(str(tmp_path / "half"))
    changes = {"dev": None, "dropout": 0.0, "lora": {"rank": 4}, "precision": "bfloat16", "merge": None}
    config = run_config(tmp_path / "half", pairs=tasks_file, sharding="full", **changes)
    path = settings_file(tmp_path, config)
    train(TrainConfig.load(path, {"sharding": None}), tmp_path / "whole", progress=False)
    run_all(2, path, tmp_path / "by 2")
    losses = [[entry["loss"] for entry in read(tmp_path / out)[1]] for out in ("whole", "by 2")]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # as far as bf16 agrees


@pytest.fixture
def config(run_config, tmp_path):
    """Twenty steps with a checkpoint after each; without dropout, which depends on the number of processes."""
    settings = {"dev": None, "dropout": 0.0, "evaluations_per_epoch": 5, "sharding": "full", "merge": None}
    return settings_file(tmp_path, run_config(optimizer={"num_train_epochs": 4}, **settings))


def kill_after(step, processes, config, out):
    """Start a run; kill one process, then all, when the checkpoint of a step is begun."""
    started = start(processes, config, out, script=TRAIN_ALL)
    wait_until((out / "checkpoints" / f"checkpoint-{step}").exists, started[0])
    time.sleep(random.random() * 0.2)
    started[-1].send_signal(signal.SIGKILL)
    time.sleep(0.2)
    for process in started:
        process.kill()
    assert finish(started)[-1][0] == -signal.SIGKILL
    assert not (out / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(2, 1), (2, 2, 4), (4, 2, 1), (1, 2, 2)])
def test_a_killed_run_goes_on_by_another_number_of_processes(config, tmp_path, numbers):
    train(TrainConfig.load(config), tmp_path / "never stopped", progress=False)
    *killed, last = numbers
    for step, processes in zip((3, 12), killed, strict=False):
        kill_after(step, processes, config, tmp_path / "killed")
    assert complete_checkpoints(tmp_path / "killed" / "checkpoints")
    run_all(last, config, tmp_path / "killed")
    compare(tmp_path / "never stopped", tmp_path / "killed")


@pytest.mark.slow
def test_what_a_checkpoint_holds(config, tmp_path):
    kill_after(4, 2, config, tmp_path / "out")
    checkpoint, *earlier = complete_checkpoints(tmp_path / "out" / "checkpoints")
    assert odd_modes(checkpoint.parent) == {}
    parts = sorted((checkpoint / "shards").iterdir())
    assert len(parts) == 2
    sizes = [sum(tensor.numel() for tensor in load_file(part).values()) for part in parts]
    assert max(sizes) < 1.1 * min(sizes)
    names = {path.name for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith("rng_state")}
    assert not [name for name in names if not name.endswith((".safetensors", ".json", "SHA256SUMS"))]
    assert (checkpoint / "SHA256SUMS").read_text().count("shards/") == 2
    parts[1].write_bytes(parts[1].read_bytes()[:-4] + b"\0\1\2\3")
    for folder in earlier:
        (folder / "SHA256SUMS").unlink()  # without its hashes it is no checkpoint
    with pytest.raises(TrainingError, match=parts[1].name):
        train(TrainConfig.load(config), tmp_path / "out", progress=False)


WHEN_REDUCED = """
import sys
import torch
from torch.distributed.tensor import DTensor
from bixse.encoders.embedding import embed_features
from bixse.encoders.loading.build import build_encoder
from bixse.training.distributed import init_distributed
from bixse.scale.sharding import shard_encoder
from bixse.training.loop.trainer import GradedTrainingArguments

init_distributed()
model = build_encoder(sys.argv[1], device="cpu").train()
shard_encoder(model, GradedTrainingArguments(sys.argv[2], use_cpu=True))
last = model[0].auto_model.encoder.layer[-1]
weight = next(part for part in last.parameters() if isinstance(part, DTensor))
reduced = []
last.register_full_backward_pre_hook(lambda *given: reduced.append(weight.grad is not None))
features = model.preprocess(["a query", "another one that is longer", "and one more"])
for gradient_cache in (False, True):
    model.zero_grad()
    embed_features(model, features, mini_batch_size=1, gradient_cache=gradient_cache).sum().backward()
print(reduced)
"""


def test_no_process_holds_the_gradient_of_whole_weights_for_longer_than_a_pass(tiny_model_path, tmp_path):
    outputs = run_all(2, tiny_model_path, tmp_path, script=WHEN_REDUCED)
    assert [output.strip() for output in outputs] == [str([False, True, True] * 2)] * 2


def test_parts_of_more_processes_that_were_killed_are_not_read(tiny_model, tmp_path):
    loss = BiXSELoss(tiny_model)
    optimizer = torch.optim.AdamW(loss.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    table = tiny_model[0].auto_model.embeddings.word_embeddings.weight
    before = table.detach().clone()
    (tmp_path / "shards").mkdir()
    left = {"weight.model.0.auto_model.embeddings.word_embeddings.weight": torch.zeros_like(before)}
    save_file(left, tmp_path / "shards" / "shard-00003-model-00001-of-00001.safetensors")
    save_shards(tmp_path, loss, optimizer, scheduler)
    with torch.no_grad():
        table += 1
    load_weights(tmp_path, loss)
    assert torch.equal(table, before)


class TestRefused:
    def refused(self, config, tmp_path, error, **changes):
        settings = TrainConfig.load(config).model_copy(update=changes)
        with pytest.raises(error, match=r"sharding.*fix"):
            train(settings, tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_an_encoder_without_blocks(self, config, tmp_path, student):
        self.refused(config, tmp_path, ModelError, model=str(student), max_length=None)

    def test_weights_that_are_no_floating_point_numbers(self, tiny_model, tmp_path):
        layer = tiny_model[0].auto_model.encoder.layer[0].output.dense
        layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.int8), requires_grad=False)
        with pytest.raises(ModelError, match=r"quantised encoder.*dense"):
            check_can_be_sharded(tiny_model, GradedTrainingArguments(str(tmp_path)))

    def test_an_optimizer_with_a_state_of_another_shape(self, tiny_model, tmp_path):
        with pytest.raises(InputError, match="'adafactor'"):
            check_can_be_sharded(tiny_model, GradedTrainingArguments(str(tmp_path), optim="adafactor"))

    def test_a_launcher_that_shards_too(self, config, tmp_path, monkeypatch):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        self.refused(config, tmp_path, InputError)

    def test_the_same_run_without_it(self, config, tmp_path):
        settings = TrainConfig.load(config).model_copy(update={"evaluations_per_epoch": 1})
        train(settings, tmp_path / "out", progress=False)
        with pytest.raises(OutputExistsError):
            train(settings.model_copy(update={"sharding": None}), tmp_path / "out", progress=False)
