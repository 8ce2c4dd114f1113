import json
import os
import subprocess
import sys

import pytest
from launch import ACCELERATE, TOLERANCE, compare, finish, free_port, run_all, settings_file, start

from bixse.training.config import TrainConfig
from bixse.training.train import train_into

pytestmark = pytest.mark.precision("float32")
CACHED = {"gradient_cache": True, "mini_batch_size": 4}
CLIPPED = {"max_grad_norm": 0.5, "weight_decay": 0.01}
LEARNED = {"reduction": "mean", "learn_scale": True}
WITH_DEV, WITH_ADAPTERS, WITH_HEAD = "dev, merged", "lora, checkpointing, cached", "a head, clipped"
CASES = {
    "bixse": {},
    "mean": {"loss_options": LEARNED},
    "lengths": {"loss_options": LEARNED, "dimensions": [8]},
    "clipped": {"loss_options": LEARNED, "optimizer": CLIPPED},
    WITH_HEAD: {"optimizer": CLIPPED},
    "infonce, cached": {"loss": "infonce", "loss_options": CACHED},
    "lambdaloss, accumulated": {"loss": "lambdaloss-v2", "optimizer": {"gradient_accumulation_steps": 2}},
    WITH_ADAPTERS: {"lora": {"rank": 4}, "optimizer": {"gradient_checkpointing": True}, "loss_options": CACHED},
    WITH_DEV: {"evaluations_per_epoch": 2, "merge": {"weights": [0.3, 0.7, 1.0], "keep_tuned": True}},
}
BOTH_WAYS = ("infonce, cached", "lambdaloss, accumulated", WITH_ADAPTERS, WITH_DEV)
RUNS = [
    *((name, "whole") for name in ("bixse", "mean", "lengths", *BOTH_WAYS)),
    *((name, "in parts") for name in ("clipped", WITH_HEAD, *BOTH_WAYS)),
]
QUICK = [(WITH_DEV, "in parts")]
TOGETHER = {
    (2, False): QUICK,
    (2, True): [run for run in RUNS if run not in QUICK],
    (4, True): RUNS,
    (1, True): [run for run in RUNS if run[1] == "in parts"],
}
"""Number of processes, and whether it is slow -> runs of one start, which loads the libraries once."""


@pytest.fixture(scope="module")
def configs(run_config, tiny_model_path, headed_path, tasks_file, tmp_path_factory):
    files = {}
    for name, changes in CASES.items():
        collection = {} if name == WITH_DEV else {"dev": None, "pairs": tasks_file}
        model = headed_path if name == WITH_HEAD else tiny_model_path
        for weights, sharding in (("whole", None), ("in parts", "full")):
            settings = {"dropout": 0.0, "sharding": sharding, **collection, **changes}
            files[name, weights] = settings_file(tmp_path_factory.mktemp("case"), run_config(model, **settings))
    return files


@pytest.fixture(scope="module")
def alone(configs):
    """Trains a case by one process that has all weights, once."""
    outs = {}

    def of(name):
        if name not in outs:
            outs[name] = configs[name, "whole"].parent / "one"
            train_into(TrainConfig.load(configs[name, "whole"]), outs[name], progress=False)
        return outs[name]

    return of


@pytest.fixture(scope="module")
def by(configs):
    """Trains all runs of a start by several processes, once."""
    outs = {}

    def of(start):
        if start not in outs:
            outs[start] = {run: configs[run].parent / f"of {start[0]}" for run in TOGETHER[start]}
            arguments = [path for run, out in outs[start].items() for path in (configs[run], out)]
            run_all(start[0], *arguments, timeout=480)
        return outs[start]

    return of


@pytest.mark.parametrize(
    ("start", "name", "weights"),
    [
        pytest.param(start, *run, marks=pytest.mark.slow if start[1] else ())
        for start, runs in TOGETHER.items()
        for run in runs
    ],
)
def test_several_processes_give_the_losses_and_weights_of_one(alone, by, start, name, weights):
    compare(alone(name), by(start)[name, weights])


def test_dev_the_best_checkpoint_and_the_merge_are_those_of_one_process(alone, by):
    outs = alone(WITH_DEV), by((2, False))[WITH_DEV, "in parts"]
    mine, theirs = (json.loads((out / "run.json").read_text())["results"] for out in outs)
    assert mine["best_step"] == theirs["best_step"]
    assert mine["merge"]["weight"] == theirs["merge"]["weight"]
    for part in ("points", "changes"):
        for point, other in zip(mine["merge"][part], theirs["merge"][part], strict=True):
            scores = point.pop("scores", {}), other.pop("scores", {})
            assert scores[1] == pytest.approx(scores[0], rel=TOLERANCE, abs=TOLERANCE)
            figures = {name: value for name, value in point.items() if isinstance(value, float)}
            assert {name: other[name] for name in figures} == pytest.approx(figures, rel=TOLERANCE, abs=TOLERANCE)
    for folder in ("model", "tuned"):
        files, others = ({path.name: path for path in (out / folder).iterdir()} for out in outs)
        assert files.keys() == others.keys()
        assert files["config.json"].read_text() == others["config.json"].read_text()
    assert not (outs[1] / "checkpoints").exists()


def launched(launcher, configs, *flags):
    words = ["-m", "bixse", "train", "--config", configs["bixse", "whole"], *flags]
    command = [sys.executable, "-m", *launcher, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


TORCHRUN = "torch.distributed.run --nproc-per-node"
LAUNCHERS = {
    "torchrun": f"{TORCHRUN} 2 --standalone",
    "accelerate launch": f"accelerate.commands.launch {ACCELERATE}",
    "two nodes": f"{TORCHRUN} 1 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:",
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("sharding", [[], ["--sharding", "full"]], ids=["whole", "sharded"])
def test_the_launchers_of_torch_and_accelerate(alone, configs, tmp_path, launcher, sharding):
    words = LAUNCHERS[launcher] + (str(free_port()) if launcher == "two nodes" else "")
    flags = (*sharding, "--out", tmp_path / "out")
    ended = finish([launched(words.split(), configs, *flags) for _ in range(2 if launcher == "two nodes" else 1)])
    assert {code for code, *_ in ended} == {0}, ended
    assert sum(output.count("trained: ") for _, output, _ in ended) == 1
    compare(alone("bixse"), tmp_path / "out")


STOCK = """
import sys
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from bixse import BiXSELoss
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = [f"word {number} of a text" for number in range(16)]
data = Dataset.from_dict({"query": texts, "document": texts[::-1], "label": [number / 16 for number in range(16)]})
args = SentenceTransformerTrainingArguments(sys.argv[2], max_steps=4, per_device_train_batch_size=4, use_cpu=True,
    learning_rate=1e-3, save_strategy="no", report_to="none", disable_tqdm=True)
loss = BiXSELoss(model, bias=-2.0)
SentenceTransformerTrainer(model, args, train_dataset=data, loss=loss).train()
print("bias", repr(loss.logit_bias.item()))
"""


def test_the_librarys_trainer_keeps_one_bias_in_all_processes(tiny_model_path, tmp_path):
    ended = finish(start(2, tiny_model_path, tmp_path, script=STOCK))
    biases = {line for _, text, _ in ended for line in text.splitlines() if line.startswith("bias")}
    assert [code for code, *_ in ended] == [0, 0], ended[0][2][-2000:]
    assert len(biases) == 1
    assert biases != {"bias -2.0"}


STOPPED = """
import sys
from bixse import InterruptedRunError, train
from bixse.training.loop.trainer import GradedTrainer
def stop(*given, **named):
    raise KeyboardInterrupt
GradedTrainer.training_step = stop
pairs = [{"query": f"word {n}", "document": f"a text of {n}", "relevance": n / 8} for n in range(8)]
try:
    train(sys.argv[1], pairs, out=sys.argv[2], num_train_epochs=1, global_batch_size=4, verbose=False)
except InterruptedRunError as error:
    print("stopped", error.model)
"""


@pytest.mark.slow
def test_a_ctrl_c_ends_all_processes_of_a_call_from_python_alike(tiny_model_path, tmp_path):
    outputs = run_all(2, tiny_model_path, tmp_path / "out", script=STOPPED)
    assert ["stopped None" in output for output in outputs] == [True, True]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_processes_without_a_launcher_are_refused(tasks_file, tiny_model_path, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"} | {"WORLD_SIZE": "2"}
    words = ["train", "--pairs", tasks_file, "--model", tiny_model_path, "--out", "out"]
    command = [sys.executable, "-m", "bixse", *map(str, words)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "WORLD_SIZE" in ended.stderr and "Traceback" not in ended.stderr
