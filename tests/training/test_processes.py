"""Two and four real processes (gloo) against one process on the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from launch import TRAIN_ALL, finish, free_port, start
from safetensors.torch import load_file

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.training.config import TrainConfig
from bixse.training.recipe import train

pytestmark = pytest.mark.precision("float32")
TOLERANCE = 1e-4
"""Adam makes much of small gradients: what rounding adds in a dozen steps of rate 1e-3."""
SHARED_QUERIES = 45
"""Queries of two tasks, of sizes no batch divides: the last batches are uneven among the processes."""


@pytest.fixture(scope="module")
def tasks_file(tmp_path_factory):
    """Pairs of two tasks; documents are shared between queries, and the number a query has differs."""
    things = ["file", "folder", "path", "name", "text", "line"]
    rows = []
    for number in range(SHARED_QUERIES):
        task = "short" if number < 19 else "long"
        query = f"how do i {['copy', 'move', 'delete', 'open', 'read'][number % 5]} the {things[number % 6]} {number}"
        for step in range(1 + number % 4):
            word = ["sort", "join", "split", "replace", "find", "match", "search", "map", "set"][(number + step) % 9]
            document = f"{things[(number + step) % 6]} {'list of words ' * (number % 3)}{word}"
            rows.append({"query": query, "document": document, "relevance": (3 - step) / 3, "task": task})
    path = tmp_path_factory.mktemp("tasks") / "pairs.jsonl"
    save_graded_pairs(GradedPairs.from_rows(rows), path)
    return path


def settings_file(folder, pairs, model, **changes):
    """The YAML of a run: 3 epochs of 3 + 4 batches of at most 8 queries."""
    optimizer = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "documents_per_query": 3}
    settings = {
        "pairs": str(pairs),
        "model": str(model),
        "max_length": 16,
        "dropout": 0.0,
        "optimizer": {**optimizer, **changes.pop("optimizer", {})},
        **changes,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


ACCELERATE = "--cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
CASES = {
    "bixse": {"loss": "bixse"},
    "bixse, mean": {"loss": "bixse", "loss_options": {"reduction": "mean", "learn_scale": True}},
    "infonce, cached": {"loss": "infonce", "loss_options": {"gradient_cache": True, "mini_batch_size": 4}},
    "lambdaloss, accumulated": {"loss": "lambdaloss-v2", "optimizer": {"gradient_accumulation_steps": 2}},
    "bixse, lora, checkpointing, cached": {
        "loss": "bixse",
        "lora": {"rank": 4},
        "optimizer": {"gradient_checkpointing": True},
        "loss_options": {"gradient_cache": True, "mini_batch_size": 4},
    },
}


def read(out):
    """Weights and log of a run."""
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return load_file(out / "model" / "model.safetensors"), [entry for entry in log if "loss" in entry]


@pytest.fixture(scope="module")
def configs(tiny_model_path, tasks_file, tmp_path_factory):
    """Settings of every case, each in a folder of its own."""
    folders = {name: tmp_path_factory.mktemp("case") for name in CASES}
    return {name: settings_file(folders[name], tasks_file, tiny_model_path, **CASES[name]) for name in CASES}


@pytest.fixture(scope="module")
def alone(configs):
    """Every case trained by one process."""
    for path in configs.values():
        train(TrainConfig.load(path), path.parent / "one", progress=False)
    return {name: path.parent / "one" for name, path in configs.items()}


def train_all(processes, configs):
    """Every case trained by several processes."""
    outs = {name: path.parent / f"of {processes}" for name, path in configs.items()}
    arguments = [part for name in configs for part in (configs[name], outs[name])]
    ended = finish(start(processes, *arguments, script=TRAIN_ALL))
    assert [code for code, *_ in ended] == [0] * processes, ended
    return outs


@pytest.fixture(scope="module")
def by_two(configs):
    return train_all(2, configs)


@pytest.fixture(scope="module")
def by_four(configs):
    return train_all(4, configs)


@pytest.mark.parametrize("name", list(CASES))
def test_two_processes_give_the_losses_and_weights_of_one(alone, by_two, name):
    compare(alone[name], by_two[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_four_processes_give_the_losses_and_weights_of_one(alone, by_four, name):
    compare(alone[name], by_four[name])


def compare(one, several):
    (weights, log), (others, other_log) = read(one), read(several)
    assert [entry["step"] for entry in other_log] == [entry["step"] for entry in log]
    for mine, theirs in zip(log, other_log, strict=True):
        assert set(mine) == set(theirs)
        for figure in mine:
            if not figure.endswith("_second") and figure != "padding_waste":
                assert theirs[figure] == pytest.approx(mine[figure], rel=TOLERANCE, abs=TOLERANCE), figure
    assert all(torch.allclose(weights[name], others[name], atol=TOLERANCE) for name in weights)


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
def test_the_launchers_of_torch_and_accelerate(alone, configs, tmp_path, launcher):
    """The command of the docs, word for word but for the number of processes."""
    arguments = ["train", "--config", str(configs["bixse"]), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *launcher, *arguments], capture_output=True, text=True,
                          check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trained: ") == 1
    compare(alone["bixse"], tmp_path / "out")


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
    compare(alone["bixse"], tmp_path / "out")
