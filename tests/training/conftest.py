from __future__ import annotations

import random

import pytest

from bixse.data.collection import Collection, Document, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs

ACTIONS = ["copy", "move", "delete", "open", "read", "write", "sort", "join", "split", "replace"]
THINGS = ["file", "folder", "path", "name", "text", "line"]
SHARED_QUERIES = 45
"""Queries of two tasks, of sizes no batch divides: the last batches are uneven among the processes."""


@pytest.fixture(scope="session")
def graded_collection():
    """Documents about an action on a thing; the right one has grade 3, the same action on another thing grade 1."""
    corpus = {f"{a}-{t}": Document(f"{a} {t}", f"{a} a {t} in the tree") for a in ACTIONS for t in THINGS}
    rng = random.Random(0)
    queries, qrels = {}, {"train": {}, "dev": {}}
    for number, key in enumerate(rng.sample(sorted(corpus), 40)):
        action, thing = key.split("-")
        queries[f"q{number}"] = f"how do i {action} the {thing}"
        others = rng.sample([d for d in sorted(corpus) if d != key], 4)
        judged = {key: 3.0, **{d: 1.0 if d.startswith(action) else 0.0 for d in others}}
        qrels["train" if number < 30 else "dev"][f"q{number}"] = judged
    return Collection("toy", corpus, queries, qrels)


@pytest.fixture(scope="session")
def graded_pairs(graded_collection):
    from bixse.relevance import GradeScale

    return GradedPairs.from_collection(graded_collection, "train", GradeScale(0, 3))


@pytest.fixture(scope="session")
def training_files(tmp_path_factory, graded_collection, graded_pairs):
    """A folder with pairs.jsonl and the collection."""
    folder = tmp_path_factory.mktemp("training-files")
    save_graded_pairs(graded_pairs, folder / "pairs.jsonl")
    save_collection(graded_collection, folder / "collection")
    return folder


@pytest.fixture(scope="session")
def run_config():
    """Makes the configuration of a run on the toy collection; keywords replace its settings."""
    from bixse.training.config import OptimizerConfig, TrainConfig

    def make(training_files, model, **changes):
        optimizer = {"num_train_epochs": 2, "global_batch_size": 8, "learning_rate": 1e-3, "documents_per_query": 3}
        settings = {
            "pairs": training_files / "pairs.jsonl",
            "dev": training_files / "collection",
            "model": str(model),
            "max_length": 16,
            "optimizer": OptimizerConfig(**{**optimizer, **changes.pop("optimizer", {})}),
            **changes,
        }
        return TrainConfig(**settings)

    return make


@pytest.fixture
def train_toy(run_config, training_files, tiny_model_path, tmp_path):
    """Trains on the toy collection into a folder of the test; keywords replace settings."""
    from bixse.training.recipe import train

    def run(out="out", model=tiny_model_path, **changes):
        return train(run_config(training_files, model, **changes), tmp_path / out, progress=False)

    return run


@pytest.fixture
def train_interrupted(monkeypatch):
    """Trains as `train` does, cut short after the third step as by Ctrl-C."""
    from bixse.errors import InterruptedRunError
    from bixse.training.loop.checkpoints import StopOnInterrupt
    from bixse.training.recipe import train

    ended = StopOnInterrupt.on_step_end

    def interrupted(self, args, state, control, **named):
        self.asked = self.asked or state.global_step == 3
        return ended(self, args, state, control, **named)

    def cut(settings, out):
        with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
            patch.setattr(StopOnInterrupt, "on_step_end", interrupted)
            train(settings, out, progress=False)

    return cut


@pytest.fixture(scope="session")
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
