import errno
import json
import random
import shutil
import signal
import time

import pytest
import torch
from launch import TRAIN_ALL, compare, finish, read, run_all, settings_file, start, wait_until
from safetensors.torch import load_file, save_file

from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.errors import InputError, ModelError, StorageError, TrainingError
from bixse.files.files import write_with_hash
from bixse.losses import BiXSELoss
from bixse.training.config import TrainConfig
from bixse.training.loop.checkpoints import STATE_FILE, complete_checkpoints
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.sharding import check_can_be_sharded, load_weights, save_shards
from bixse.training.train import train_into
from helpers.command import odd_modes

pytestmark = pytest.mark.precision("float32")
HALF = {"weights": [0.5], "keep_tuned": True}


def flip(path):
    """Change one bit; of safetensors, a bit of a weight."""
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


def checkpoints(out):
    return sorted((out / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))


@pytest.fixture(scope="module")
def settings(run_config):
    return run_config(max_length=None, evaluations_per_epoch=4, dev=None)


@pytest.fixture
def cut(settings, tmp_path, train_interrupted):
    train_interrupted(settings, tmp_path / "cut")
    assert [path.name for path in checkpoints(tmp_path / "cut")] == ["checkpoint-2", "checkpoint-3"]
    assert odd_modes(tmp_path / "cut") == {}
    return tmp_path / "cut"


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    path = train_into(settings, tmp_path_factory.mktemp("whole"), progress=False).model_path
    assert odd_modes(path) == {}
    return path


@pytest.mark.parametrize(
    "part", ["model.safetensors", *(pytest.param(p, marks=pytest.mark.slow) for p in ("optimizer.pt", STATE_FILE))]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(settings, cut, whole, part):
    flip(checkpoints(cut)[-1] / part)
    result = train_into(settings, cut, progress=False)
    (warning,) = result.warnings
    assert all(fact in warning for fact in ("checkpoint-3", part, "checkpoint-2"))
    assert (result.model_path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_without_an_undamaged_checkpoint_the_run_is_refused_and_nothing_is_lost(settings, cut):
    first, last = checkpoints(cut)
    flip(first / "model.safetensors")
    flip(last / "optimizer.pt")
    before = {path: path.read_bytes() for path in cut.rglob("*") if path.is_file() and path.name != "run.json"}
    with pytest.raises(TrainingError, match=r"checkpoint-3: got optimizer\.pt ") as caught:
        train_into(settings, cut, progress=False)
    assert str(cut / "checkpoints") in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
    flip(last / "optimizer.pt")
    assert train_into(settings, cut, progress=False).warnings == []


@pytest.mark.parametrize("step", [3, 8])
def test_a_best_checkpoint_that_is_damaged_or_gone_is_refused_and_a_moved_run_ends_with_it(
    run_config, tmp_path, train_interrupted, step
):
    settings, out = run_config(max_length=None, evaluations_per_epoch=4, merge=HALF), tmp_path / "out"
    train_interrupted(settings, out, step)
    best, last = checkpoints(out)
    state = json.loads((last / STATE_FILE).read_bytes())
    assert state["best_model_checkpoint"]
    number = int(best.name.rpartition("-")[2])
    state |= {"best_model_checkpoint": str(best), "best_global_step": number, "best_metric": 2.0}  # no other is better
    write_with_hash(last / STATE_FILE, json.dumps(state))
    flip(best / "model.safetensors")
    moved = out.rename(tmp_path / "moved")
    best = moved / "checkpoints" / best.name
    with pytest.raises(TrainingError, match=rf"{best.name}: got model\.safetensors"):
        train_into(settings, moved, progress=False)
    flip(best / "model.safetensors")
    copy = best.rename(tmp_path / "copy")
    with pytest.raises(TrainingError, match=rf"{best.name}: got no such folder"):
        train_into(settings, moved, progress=False)
    expected = load_file(shutil.copytree(copy, best) / "model.safetensors")
    result = train_into(settings, moved, progress=False)
    assert (result.best_step, result.warnings) == (number, [])
    saved = load_file(moved / "tuned" / "model.safetensors")
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


def test_a_best_checkpoint_that_is_damaged_while_training_goes_on_is_no_model(run_config, tmp_path, monkeypatch):
    load = GradedTrainer._load_best_model

    def damaged(self):
        for checkpoint in checkpoints(tmp_path):
            flip(checkpoint / "model.safetensors")
        load(self)

    monkeypatch.setattr(GradedTrainer, "_load_best_model", damaged)
    with pytest.raises(TrainingError, match=r"got model\.safetensors"):
        train_into(run_config(), tmp_path, progress=False)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "relevance_head.json", "1_Pooling/config.json"])
def test_a_damaged_file_of_a_model_is_named(whole, tmp_path, name):
    model = shutil.copytree(whole, tmp_path / "model")
    load_relevance_model(model, device="cpu")
    flip(model / name)
    for load in (load_relevance_model, build_encoder):
        with pytest.raises(ModelError) as caught:
            load(model, device="cpu")
        assert name in str(caught.value) and str(model) in str(caught.value)


@pytest.fixture
def config(run_config, tmp_path):
    """Ten steps with a checkpoint after each."""
    learning = {"num_train_epochs": 2, "global_batch_size": 6}
    config = run_config(dev=None, dropout=0.2, optimizer=learning, evaluations_per_epoch=5)
    return settings_file(tmp_path, config)


def outcome(out):
    return (out / "model" / "model.safetensors").read_bytes(), read(out)[1]


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
def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_never_was(config, tmp_path):
    out = tmp_path / "killed"
    kill_after(3, 1, config, out)
    run_all(1, config, out, config, tmp_path / "whole")  # with as many threads
    assert outcome(out) == outcome(tmp_path / "whole")
    assert len(outcome(out)[1]) == 10


@pytest.mark.slow
def test_a_disk_that_fills_up_while_a_checkpoint_is_written(config, tmp_path, monkeypatch):
    settings = TrainConfig.load(config)
    train_into(settings, tmp_path / "whole", progress=False)
    save = GradedTrainer._save_optimizer_and_scheduler

    def full(self, folder):
        if self.state.global_step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, folder)

    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(GradedTrainer, "_save_optimizer_and_scheduler", full)
        train_into(settings, out, progress=False)
    assert (out / "checkpoints" / "checkpoint-4" / "model.safetensors").is_file(), "half a checkpoint is there"
    train_into(settings, out, progress=False)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--seed", "3"], "settings: got another value in process 1"), (["--pairs", "none.jsonl"], "none.jsonl: got no")],
)
def test_an_error_of_one_process_ends_all_before_anything_is_written(config, tmp_path, flags, message):
    arguments = ("train", "--config", config, "--out", tmp_path / "out")
    (code, _, first), (other, output, errors) = finish(start(2, *arguments, each={1: flags}))
    assert code == other == 2
    assert message in first and "Traceback" not in first
    assert "error:" not in output + errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_signal_that_ends_cluster_jobs_stops_all_processes_after_one_step(config, tmp_path):
    out = tmp_path / "out"
    first, second = start(2, "train", "--config", config, "--out", out)
    wait_until((out / "checkpoints" / "checkpoint-2").exists, first)
    second.send_signal(signal.SIGTERM)
    ended = finish([first, second])
    assert [code for code, *_ in ended] == [130, 130], ended
    assert "got Ctrl-C or SIGTERM after step" in ended[0][2]
    run_all(1, config, out)  # another number of processes
    steps = [entry["step"] for entry in outcome(out)[1]]
    assert steps == list(range(1, 11))


def test_other_verbs_refuse_to_be_started_several_times():
    (code, _, message), (other, *silent) = finish(start(2, "doctor"))
    assert code == other == 2
    assert "bixse doctor: got 2 processes" in message
    assert silent == ["", ""]


@pytest.mark.slow
def test_an_error_that_only_one_process_sees_is_told_by_it(config, tmp_path):
    script = """
import os, sys
from bixse.cli.main import main
from bixse.training.loop.trainer import GradedTrainer
step = GradedTrainer.training_step
def failing(self, *given, **named):
    if os.environ["RANK"] == "1" and self.state.global_step == 2:
        raise RuntimeError("the real cause")
    return step(self, *given, **named)
GradedTrainer.training_step = failing
sys.exit(main(sys.argv[1:]))
"""
    first, second = finish(start(2, "train", "--config", config, "--out", tmp_path / "out", script=script))
    assert first[0] == second[0] == 1
    assert "error: process 1: unexpected RuntimeError: the real cause" in second[2]
    assert "another process ended" in first[2]
    assert "fault of bixse" not in first[2]


@pytest.mark.slow
def test_frozen_weights_in_bf16_beside_adapters_in_float32(run_config, tiny_model, tasks_file, tmp_path):
    tiny_model.bfloat16().save_pretrained(str(tmp_path / "half"))
    changes = {"dev": None, "dropout": 0.0, "lora": {"rank": 4}, "precision": "bfloat16", "merge": None}
    config = run_config(tmp_path / "half", pairs=tasks_file, sharding="full", **changes)
    path = settings_file(tmp_path, config)
    train_into(TrainConfig.load(path, {"sharding": None}), tmp_path / "whole", progress=False)
    run_all(2, path, tmp_path / "by 2")
    losses = [[entry["loss"] for entry in read(tmp_path / out)[1]] for out in ("whole", "by 2")]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # as far as bf16 agrees


@pytest.fixture
def sharded(run_config, tmp_path):
    """Twenty steps with a checkpoint after each; without dropout, which depends on the number of processes."""
    settings = {"dev": None, "dropout": 0.0, "evaluations_per_epoch": 5, "sharding": "full", "merge": None}
    return settings_file(tmp_path, run_config(optimizer={"num_train_epochs": 4}, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(2, 1), (2, 2, 4), (4, 2, 1), (1, 2, 2)])
def test_a_killed_run_goes_on_by_another_number_of_processes(sharded, tmp_path, numbers):
    train_into(TrainConfig.load(sharded), tmp_path / "never stopped", progress=False)
    *killed, last = numbers
    for step, processes in zip((3, 12), killed, strict=False):
        kill_after(step, processes, sharded, tmp_path / "killed")
    assert complete_checkpoints(tmp_path / "killed" / "checkpoints")
    run_all(last, sharded, tmp_path / "killed")
    compare(tmp_path / "never stopped", tmp_path / "killed")


@pytest.mark.slow
def test_what_a_checkpoint_holds(sharded, tmp_path):
    kill_after(4, 2, sharded, tmp_path / "out")
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
        train_into(TrainConfig.load(sharded), tmp_path / "out", progress=False)


WHEN_REDUCED = """
import sys
import torch
from torch.distributed.tensor import DTensor
from bixse.encoders.embedding import embed_features
from bixse.encoders.loading.build import build_encoder
from bixse.training.distributed import init_distributed
from bixse.training.sharding import shard_encoder
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


@pytest.mark.slow
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


class TestShardingRefused:
    @pytest.mark.parametrize("reason", ["an encoder without blocks", "a launcher that shards too"])
    def test_before_anything_is_written(self, sharded, tmp_path, student, monkeypatch, reason):
        settings, error = TrainConfig.load(sharded), InputError
        if reason == "an encoder without blocks":
            settings, error = settings.model_copy(update={"model": str(student), "max_length": None}), ModelError
        else:
            monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        with pytest.raises(error, match=r"sharding.*fix"):
            train_into(settings, tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_quantised_weights_and_an_optimizer_with_a_state_of_another_shape(self, tiny_model, tmp_path):
        with pytest.raises(InputError, match="'adafactor'"):
            check_can_be_sharded(tiny_model, GradedTrainingArguments(str(tmp_path), optim="adafactor"))
        layer = tiny_model[0].auto_model.encoder.layer[0].output.dense
        layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.int8), requires_grad=False)
        with pytest.raises(ModelError, match=r"quantised encoder.*dense"):
            check_can_be_sharded(tiny_model, GradedTrainingArguments(str(tmp_path)))
