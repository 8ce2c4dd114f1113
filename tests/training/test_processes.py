"""Two and four real processes (gloo) against one on the same batches, each with all weights or a part of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from launch import ACCELERATE, TOLERANCE, TRAIN_ALL, compare, finish, free_port, settings_file, start
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from bixse.training.config import TrainConfig
from bixse.training.recipe import train

pytestmark = pytest.mark.precision("float32")
CACHED = {"gradient_cache": True, "mini_batch_size": 4}
CLIPPED = {"max_grad_norm": 0.5, "weight_decay": 0.01}
LEARNED = {"reduction": "mean", "learn_scale": True}
CASES = {
    "bixse": {"loss": "bixse"},
    "bixse, mean": {"loss": "bixse", "loss_options": LEARNED},
    "bixse, base": {"loss": "bixse", "loss_options": {"unlabelled": "base", "learn_scale": True}},
    "bixse, clipped": {"loss": "bixse", "loss_options": LEARNED, "optimizer": CLIPPED},
    "bixse, a head, clipped": {"loss": "bixse", "optimizer": CLIPPED},
    "infonce, cached": {"loss": "infonce", "loss_options": CACHED},
    "lambdaloss, accumulated": {"loss": "lambdaloss-v2", "optimizer": {"gradient_accumulation_steps": 2}},
    "bixse, lora, checkpointing, cached": {
        "loss": "bixse",
        "lora": {"rank": 4},
        "optimizer": {"gradient_checkpointing": True},
        "loss_options": CACHED,
    },
    "bixse, dev, merged": {
        "loss": "bixse",
        "evaluations_per_epoch": 2,
        "merge": {"weights": [0.3, 0.7, 1.0], "keep_tuned": True},
    },
}
WITH_DEV, WITH_ADAPTERS, WITH_HEAD = (
    "bixse, dev, merged",
    "bixse, lora, checkpointing, cached",
    "bixse, a head, clipped",
)
BOTH_WAYS = ("infonce, cached", "lambdaloss, accumulated", WITH_ADAPTERS)
RUNS = [
    *((name, "whole") for name in ("bixse", "bixse, mean", "bixse, base", *BOTH_WAYS)),
    *((name, "in parts") for name in ("bixse, clipped", WITH_HEAD, WITH_DEV, *BOTH_WAYS)),
]
"""Cases, with all weights in every process or a part of them in each."""
QUICK = [("bixse, base", "whole"), ("infonce, cached", "whole"), (WITH_ADAPTERS, "whole"), (WITH_DEV, "in parts")]
OTHERS = [run for run in RUNS if run not in QUICK]


@pytest.fixture(scope="module")
def headed_path(tiny_model_path, tmp_path_factory):
    """Folder of the tiny encoder with a linear layer after the pooling."""
    tiny = SentenceTransformer(str(tiny_model_path), device="cpu")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("headed") / "model"
    model = SentenceTransformer(modules=[*tiny, Dense(32, 16)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def configs(tiny_model_path, headed_path, tasks_file, training_files, tmp_path_factory):
    """The settings of every case, both ways, each file in a folder of its own."""
    found = {}
    for name, changes in CASES.items():
        collection = {"dev": str(training_files / "collection")} if name == WITH_DEV else {}
        pairs = training_files / "pairs.jsonl" if name == WITH_DEV else tasks_file
        model = headed_path if name == WITH_HEAD else tiny_model_path
        for weights, sharding in (("whole", {}), ("in parts", {"sharding": "full"})):
            given = {**changes, **collection, **sharding}
            found[name, weights] = settings_file(tmp_path_factory.mktemp("case"), pairs, model, **given)
    return found


@pytest.fixture(scope="module")
def alone(configs):
    """Trains a case by one process that has all weights, once."""
    outs = {}

    def of(name):
        if name not in outs:
            outs[name] = configs[name, "whole"].parent / "one"
            train(TrainConfig.load(configs[name, "whole"]), outs[name], progress=False)
        return outs[name]

    return of


def train_all(processes, configs, runs):
    """These runs by several processes, which load the libraries once for all of them."""
    outs = {run: configs[run].parent / f"of {processes}" for run in runs}
    arguments = [part for run in runs for part in (configs[run], outs[run])]
    ended = finish(start(processes, *arguments, script=TRAIN_ALL), timeout=480)
    assert [code for code, *_ in ended] == [0] * processes, ended
    return outs


@pytest.fixture(scope="module")
def by_two(configs):
    return train_all(2, configs, QUICK)


@pytest.fixture(scope="module")
def others_by_two(configs):
    return train_all(2, configs, OTHERS)


@pytest.fixture(scope="module")
def by_four(configs):
    return train_all(4, configs, RUNS)


@pytest.mark.parametrize(("name", "weights"), QUICK)
def test_two_processes_give_the_losses_and_weights_of_one(alone, by_two, name, weights):
    compare(alone(name), by_two[name, weights])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights"), OTHERS)
def test_two_processes_do_for_other_losses_too(alone, others_by_two, name, weights):
    compare(alone(name), others_by_two[name, weights])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights"), RUNS)
def test_four_processes_give_the_losses_and_weights_of_one(alone, by_four, name, weights):
    compare(alone(name), by_four[name, weights])


@pytest.mark.slow
def test_one_process_has_all_weights_with_the_setting_too(alone, configs):
    in_parts = [run for run in RUNS if run[1] == "in parts"]
    for (name, _), out in train_all(1, configs, in_parts).items():
        compare(alone(name), out)


def results(out):
    return json.loads((out / "run.json").read_text(encoding="utf-8"))["results"]


def close(one, other):
    """The same JSON, numbers up to rounding."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return other == pytest.approx(one, rel=TOLERANCE, abs=TOLERANCE)
    return one == other


def test_dev_the_best_checkpoints_the_merge_and_the_card_are_those_of_one_process(alone, by_two):
    outs = alone(WITH_DEV), by_two[WITH_DEV, "in parts"]
    mine, theirs = map(results, outs)
    assert mine["best_step"] == theirs["best_step"]
    assert close(mine["merge"], theirs["merge"])
    for folder in ("model", "tuned"):
        files = [sorted(path.name for path in (out / folder).iterdir()) for out in outs]
        assert files[0] == files[1]
        one, other = (load_file(out / folder / "model.safetensors") for out in outs)
        assert {name: own.dtype for name, own in one.items()} == {name: own.dtype for name, own in other.items()}
        assert all(torch.allclose(one[name], other[name], atol=TOLERANCE) for name in one)
        configuration = [(out / folder / "config.json").read_text() for out in outs]
        assert configuration[0] == configuration[1]
    cards = [(out / "model" / "README.md").read_text().splitlines() for out in outs]
    assert [line for line in cards[0] if line.startswith("#")] == [line for line in cards[1] if line.startswith("#")]
    assert not (by_two[WITH_DEV, "in parts"] / "checkpoints").exists()


@pytest.mark.slow
def test_adapters_are_saved_alone_too(alone, others_by_two):
    outs = alone(WITH_ADAPTERS), others_by_two[WITH_ADAPTERS, "in parts"]
    one, other = (load_file(out / "adapter" / "adapter_model.safetensors") for out in outs)
    assert set(one) == set(other)
    assert all(torch.allclose(one[name], other[name], atol=TOLERANCE) for name in one)


BETA = """
import hashlib, json, sys
from bixse.data.pairs_files import load_graded_pairs
from bixse.encoders.loading.build import build_encoder
from bixse.losses import BiXSELoss
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
model = build_encoder(sys.argv[2])
loss = BiXSELoss(model, learn_scale=True, bias=-5.0)
args = GradedTrainingArguments(sys.argv[3], per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3,
    documents_per_query=3, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True)
GradedTrainer(model, args, load_graded_pairs(sys.argv[1]), loss=loss).train()
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(json.dumps([loss.logit_bias.item(), loss.logit_scale.item(), weights]))
"""
"""A user's own script with the trainer, without the recipe."""


@pytest.mark.slow
def test_beta_and_weights_stay_equal_on_all_ranks_to_the_last_bit(tiny_model_path, tasks_file, tmp_path):
    """The loss stands outside of what DistributedDataParallel wraps: its own parameters would drift apart."""
    ended = finish(start(2, tasks_file, tiny_model_path, tmp_path, script=BETA))
    assert [code for code, *_ in ended] == [0, 0], ended
    first, second = (json.loads(output.splitlines()[-1]) for _, output, _ in ended)
    assert first == second
    assert first[0] != -5.0
    assert first[1] != 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bixse"],
        ["accelerate.commands.launch", *ACCELERATE.split(), "-m", "bixse"],
    ],
    ids=["torchrun", "accelerate launch"],
)
@pytest.mark.parametrize("sharding", [[], ["--sharding", "full"]], ids=["whole", "sharded"])
def test_the_launchers_of_torch_and_accelerate(alone, configs, tmp_path, launcher, sharding):
    """The commands of the docs, word for word but for the number of processes."""
    arguments = ["train", "--config", str(configs["bixse", "whole"]), *sharding, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *launcher, *arguments], capture_output=True, text=True,
                          check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trained: ") == 1
    compare(alone("bixse"), tmp_path / "out")


@pytest.mark.slow
def test_two_nodes(alone, configs, tmp_path):
    """Two agents of torchrun that meet at one address, each with a process of its own: the command of the docs."""
    arguments = ["train", "--config", str(configs["bixse", "whole"]), "--out", str(tmp_path / "out")]
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "bixse", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = finish(nodes)
    assert [code for code, *_ in ended] == [0, 0], ended
    assert sum(output.count("trained: ") for _, output, _ in ended) == 1
    compare(alone("bixse"), tmp_path / "out")


def test_processes_without_a_launcher_are_told_to_use_one(tasks_file, tiny_model_path, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"} | {"WORLD_SIZE": "2"}
    command = [
        sys.executable,
        "-m",
        "bixse",
        "train",
        "--pairs",
        tasks_file,
        "--model",
        tiny_model_path,
        "--out",
        "out",
    ]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "WORLD_SIZE" in ended.stderr and "torchrun" in ended.stderr and "Traceback" not in ended.stderr
