"""Two and four real processes (gloo) against one process on the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from launch import ACCELERATE, TRAIN_ALL, compare, finish, free_port, settings_file, start

from bixse.training.config import TrainConfig
from bixse.training.recipe import train

pytestmark = pytest.mark.precision("float32")
CASES = {
    "bixse": {"loss": "bixse"},
    "bixse, mean": {"loss": "bixse", "loss_options": {"reduction": "mean", "learn_scale": True}},
    "bixse, ring": {"loss": "bixse", "loss_options": {"between_devices": "ring", "learn_scale": True}},
    "infonce, cached": {"loss": "infonce", "loss_options": {"gradient_cache": True, "mini_batch_size": 4}},
    "lambdaloss, accumulated": {"loss": "lambdaloss-v2", "optimizer": {"gradient_accumulation_steps": 2}},
    "bixse, lora, checkpointing, cached": {
        "loss": "bixse",
        "lora": {"rank": 4},
        "optimizer": {"gradient_checkpointing": True},
        "loss_options": {"gradient_cache": True, "mini_batch_size": 4},
    },
}
QUICK = ["bixse, ring", "infonce, cached", "bixse, lora, checkpointing, cached"]
OTHERS = [name for name in CASES if name not in QUICK]


@pytest.fixture(scope="module")
def configs(tiny_model_path, tasks_file, tmp_path_factory):
    """Settings of every case, each in a folder of its own."""
    folders = {name: tmp_path_factory.mktemp("case") for name in CASES}
    return {name: settings_file(folders[name], tasks_file, tiny_model_path, **CASES[name]) for name in CASES}


@pytest.fixture(scope="module")
def alone(configs):
    """Trains a case by one process, once."""
    outs = {}

    def of(name):
        if name not in outs:
            outs[name] = configs[name].parent / "one"
            train(TrainConfig.load(configs[name]), outs[name], progress=False)
        return outs[name]

    return of


def train_all(processes, configs, names):
    """These cases trained by several processes."""
    outs = {name: configs[name].parent / f"of {processes}" for name in names}
    arguments = [part for name in names for part in (configs[name], outs[name])]
    ended = finish(start(processes, *arguments, script=TRAIN_ALL))
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
    return train_all(4, configs, CASES)


@pytest.mark.parametrize("name", QUICK)
def test_two_processes_give_the_losses_and_weights_of_one(alone, by_two, name):
    compare(alone(name), by_two[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_two_processes_do_for_other_losses_too(alone, others_by_two, name):
    compare(alone(name), others_by_two[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_four_processes_give_the_losses_and_weights_of_one(alone, by_four, name):
    compare(alone(name), by_four[name])


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
    arguments = ["train", "--config", str(configs["bixse"]), *sharding, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *launcher, *arguments], capture_output=True, text=True,
                          check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trained: ") == 1
    compare(alone("bixse"), tmp_path / "out")


@pytest.mark.slow
def test_two_nodes(alone, configs, tmp_path):
    """Two agents of torchrun that meet at one address, each with a process of its own: the command of the docs."""
    arguments = ["train", "--config", str(configs["bixse"]), "--out", str(tmp_path / "out")]
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
