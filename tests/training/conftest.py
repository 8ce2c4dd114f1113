import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.errors import InterruptedRunError
from bixse.training.config import TrainConfig
from bixse.training.loop.checkpoints import StopOnInterrupt
from bixse.training.train import train_into

SHARED_QUERIES = 45
"""Queries of two tasks, of sizes no batch divides: the last batches are uneven among the processes."""


@pytest.fixture(scope="package", autouse=True)
def deterministic():
    """Let a GPU add in one order, as resumed runs are compared bit by bit."""
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def graded_pairs(actions):
    return load_graded_pairs(actions.parent / "pairs.jsonl")


@pytest.fixture(scope="session")
def run_config(actions, tiny_model_path):
    """Makes the configuration of a run on the toy collection; keywords replace its settings."""

    def make(model=tiny_model_path, **changes):
        optimizer = {"num_train_epochs": 2, "global_batch_size": 8, "learning_rate": 1e-3, "documents_per_query": 3}
        settings = {"dev": actions, "max_length": 16, "pairs": actions.parent / "pairs.jsonl"}
        optimizer |= changes.pop("optimizer", {})
        return TrainConfig(**{**settings, "model": str(model), "optimizer": optimizer, **changes})

    return make


@pytest.fixture(scope="session")
def headed_path(tiny_model_path, tmp_path_factory):
    """Folder of the tiny encoder with a linear layer after the pooling."""
    model = SentenceTransformer(str(tiny_model_path), device="cpu")
    torch.manual_seed(0)
    model.append(Dense(32, 16))
    folder = tmp_path_factory.mktemp("headed") / "model"
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def train_toy(run_config, tmp_path):
    """Trains on the toy collection into a folder of the test; keywords replace settings."""
    return lambda out="out", **changes: train_into(run_config(**changes), tmp_path / out, progress=False)


@pytest.fixture
def train_interrupted(monkeypatch):
    """Trains as `train` does, cut short after a step as by Ctrl-C."""
    ended = StopOnInterrupt.on_step_end

    def cut(settings, out, step=3):
        def interrupted(self, args, state, control, **named):
            self.requested = self.requested or state.global_step == step
            return ended(self, args, state, control, **named)

        with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
            patch.setattr(StopOnInterrupt, "on_step_end", interrupted)
            train_into(settings, out, progress=False)
        assert json.loads((out / "run.json").read_text())["status"] == "interrupted"

    return cut


@pytest.fixture
def train_both_ways(train_interrupted, tmp_path):
    """Trains without a stop and with one; the named files of both runs are equal to the last byte."""

    def check(settings, *names, step=3):
        result = train_into(settings, tmp_path / "whole", progress=False)
        train_interrupted(settings, tmp_path / "cut", step)
        assert train_into(settings, tmp_path / "cut", progress=False).history == result.history
        for name in ("model/model.safetensors", *names):
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        return result

    return check


@pytest.fixture(scope="session")
def tasks_file(tmp_path_factory):
    """Pairs of two tasks; documents are shared between queries, and the number a query has differs."""
    rows, things = [], ["file", "folder", "path", "name", "text", "line"]
    for number in range(SHARED_QUERIES):
        task = "short" if number < 19 else "long"
        query = f"how do i {['copy', 'move', 'delete', 'open', 'read'][number % 5]} the {things[number % 6]} {number}"
        for step in range(1 + number % 4):
            word = ["sort", "join", "split", "replace", "find", "match", "search", "map", "set"][(number + step) % 9]
            document = f"{things[(number + step) % 6]} {'list of words ' * (number % 3)}{word}"
            rows.append({"query": query, "document": document, "relevance": (3 - step) / 3, "task": task})
    path = tmp_path_factory.mktemp("tasks") / "pairs.jsonl"
    save_graded_pairs(Pairs.from_rows(rows), path)
    return path
