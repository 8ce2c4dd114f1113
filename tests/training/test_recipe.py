from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from typing import TYPE_CHECKING

import pytest

from bixse.encoders.relevance_model import load_relevance_model
from bixse.errors import InputError, InvalidFileError, ModelError, OutputExistsError, StorageError
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.recipe import last_whole_checkpoint, train

if TYPE_CHECKING:
    from pathlib import Path


def config(training_files: Path, tiny_model_path: Path, **changes) -> TrainConfig:
    optimizer = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "documents_per_query": 3}
    settings = {
        "pairs": training_files / "pairs.jsonl",
        "dev": training_files / "collection",
        "model": str(tiny_model_path),
        "max_length": 16,
        "optimizer": OptimizerConfig(**{**optimizer, **changes.pop("optimizer", {})}),
        **changes,
    }
    return TrainConfig(**settings)


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


class TestUnhappyPaths:
    def test_pairs_without_a_relevant_document(self, training_files, tiny_model_path, tmp_path):
        path = tmp_path / "pairs.csv"
        path.write_text("query,document,relevance\ncopy,move,0.0\nopen,read,0.2\n")
        with pytest.raises(InputError, match=r"got 2 queries of which loss 'infonce' can use none"):
            train(config(training_files, tiny_model_path, pairs=path, loss="infonce"), tmp_path / "out", progress=False)

    def test_faulty_pairs_leave_no_output_folder(self, training_files, tiny_model_path, tmp_path):
        path = tmp_path / "pairs.csv"
        path.write_text("query,document,relevance\ncopy,move,3\n")
        with pytest.raises(InvalidFileError, match="map grades to"):
            train(config(training_files, tiny_model_path, pairs=path), tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_a_dev_split_that_is_not_there(self, training_files, tiny_model_path, tmp_path):
        with pytest.raises(InputError, match="got split 'validation'; expected one of"):
            train(config(training_files, tiny_model_path, dev_split="validation"), tmp_path / "out", progress=False)

    def test_a_full_disk_is_refused_before_training(self, training_files, tiny_model_path, tmp_path, monkeypatch):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 1000))
        with pytest.raises(StorageError, match="to mend: free disk space"):
            train(config(training_files, tiny_model_path), tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_a_half_written_checkpoint_is_passed_over(self, tmp_path):
        for step, state in ((2, "{}"), (10, "{}"), (12, "")):
            (tmp_path / f"checkpoint-{step}").mkdir()
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
        (tmp_path / "checkpoint-14").mkdir()
        assert last_whole_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
        assert last_whole_checkpoint(tmp_path / "none") is None

    def test_a_model_that_is_none_leaves_no_folder_behind(self, training_files, tmp_path):
        with pytest.raises(ModelError, match="got no such folder"):
            train(config(training_files, tmp_path / "no" / "model"), tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_another_runs_folder_is_refused_and_left_as_it_was(self, training_files, tiny_model_path, tmp_path):
        train(config(training_files, tiny_model_path), tmp_path / "out", progress=False)
        before = weights(tmp_path / "out")
        with pytest.raises(OutputExistsError, match="changed: seed"):
            train(config(training_files, tiny_model_path, seed=5), tmp_path / "out", progress=False)
        assert weights(tmp_path / "out") == before

    def test_a_batch_larger_than_the_data_is_one_batch(self, training_files, tiny_model_path, tmp_path):
        result = train(
            config(training_files, tiny_model_path, optimizer={"batch_size": 500}), tmp_path / "out", progress=False
        )
        assert sum("loss" in entry for entry in result.history) == 2


def test_a_run_trains_records_and_is_reused(training_files, tiny_model_path, tmp_path):
    result = train(config(training_files, tiny_model_path), tmp_path / "out", progress=False)
    assert not result.reused
    figures = {e["step"]: e["eval_dev_ndcg@10"] for e in result.history if "eval_dev_ndcg@10" in e}
    assert set(figures) == {0, 4, 8}
    assert result.best_step == max((4, 8), key=lambda step: (figures[step], -step))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "finished"
    assert set(record["inputs"]) == {"pairs", "dev/corpus.jsonl", "dev/queries.jsonl", "dev/qrels/dev.tsv"}
    assert not (tmp_path / "out" / "checkpoints").exists()
    again = train(config(training_files, tiny_model_path), tmp_path / "out", progress=False)
    assert again.reused
    assert again.history == result.history


def test_training_on_real_grades_raises_dev_ndcg(training_files, tiny_model_path, tmp_path):
    settings = config(training_files, tiny_model_path, optimizer={"epochs": 8, "learning_rate": 3e-3})
    result = train(settings, tmp_path / "out", progress=False)
    figures = [e["eval_dev_ndcg@10"] for e in result.history if "eval_dev_ndcg@10" in e]
    assert max(figures) > figures[0] + 0.1


def test_the_model_gives_probabilities_and_loads_in_plain_sentence_transformers(
    training_files, tiny_model_path, tmp_path
):
    from sentence_transformers import SentenceTransformer

    result = train(config(training_files, tiny_model_path), tmp_path / "out", progress=False)
    model = load_relevance_model(result.model_path, device="cpu")
    probabilities = model.relevance("copy the file", ["copy a file", "sort a path"])
    assert probabilities.shape == (2,)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert model.max_seq_length == 16
    plain = SentenceTransformer(str(result.model_path), device="cpu")
    assert (plain.encode(["copy"]) == model.encode(["copy"])).all()


def test_the_same_seed_gives_the_same_weights(training_files, tiny_model_path, tmp_path):
    for name in ("a", "b"):
        train(config(training_files, tiny_model_path), tmp_path / name, progress=False)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


@pytest.mark.parametrize("loss", ["infonce", "soft-infonce"])
def test_the_other_losses_run_on_the_same_pairs(training_files, tiny_model_path, tmp_path, loss):
    result = train(config(training_files, tiny_model_path, loss=loss), tmp_path / "out", progress=False)
    assert result.model_path.is_dir()
    assert not (result.model_path / "relevance_head.json").exists()


def test_without_a_dev_collection_the_last_state_is_kept(training_files, tiny_model_path, tmp_path):
    result = train(config(training_files, tiny_model_path, dev=None), tmp_path / "out", progress=False)
    assert result.best_step is None
    assert result.model_path.is_dir()


def test_ctrl_c_in_a_real_process_leaves_a_checkpoint_and_the_same_command_goes_on(
    training_files, tiny_model_path, tmp_path
):
    def command(out: Path) -> list[str]:
        options = {"pairs": training_files / "pairs.jsonl", "dev": training_files / "collection", "out": out}
        options |= {"model": tiny_model_path, "max-length": 16, "epochs": 40, "batch-size": 2, "learning-rate": 0.001}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "bixse.cli.main", "train", *flags, "--json"]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    cut = tmp_path / "cut"
    process = subprocess.Popen(command(cut), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 120
    while not list(cut.glob("checkpoints/checkpoint-*/trainer_state.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors.decode()
    envelope = json.loads(out)
    assert envelope["status"] == "interrupted"
    assert "to go on: give the same command again" in envelope["errors"][0]
    assert json.loads((cut / "run.json").read_text())["status"] == "interrupted"

    resumed = subprocess.run(command(cut), capture_output=True, env=environment, timeout=240, check=False)
    assert resumed.returncode == 0, resumed.stderr.decode()
    whole = tmp_path / "whole"
    subprocess.run(command(whole), capture_output=True, env=environment, timeout=240, check=True)
    assert weights(cut) == weights(whole)
    histories = [json.loads((run / "run.json").read_text())["results"]["history"] for run in (cut, whole)]
    steps = [[(e["step"], e["loss"], e["logit_bias"]) for e in history if "loss" in e] for history in histories]
    assert steps[0] == steps[1]
