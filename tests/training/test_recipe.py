from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from bixse.cli.main import main
from bixse.data.collection import load_collection
from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.loading.build import load_relevance_model
from bixse.errors import InputError, InvalidFileError, ModelError, OutputExistsError, TrainingError
from bixse.files.files import write_hashes
from bixse.losses import LOSSES
from bixse.training.loop.checkpoints import checkpoint_to_resume, whole_checkpoints
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import train


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


class TestUnhappyPaths:
    def test_invalid_pairs_leave_no_output_folder(self, tmp_path, train_toy):
        path = tmp_path / "pairs.csv"
        path.write_text("query,document,relevance\ncopy,move,3\n")
        with pytest.raises(InvalidFileError, match="row 1, column 'relevance'"):
            train_toy(pairs=path)
        assert not (tmp_path / "out").exists()

    def test_dev_judgements_without_their_document(self, training_files, tmp_path, train_toy):
        dev = tmp_path / "dev"
        shutil.copytree(training_files / "collection", dev)
        with (dev / "qrels" / "dev.tsv").open("a") as file:
            file.write(f"{next(iter(load_collection(dev).qrels['dev']))}\tgone\t2\n")
        with pytest.raises(InvalidFileError, match="gone"):
            train_toy(dev=dev)

    @pytest.mark.parametrize("flags", [[], ["--dev-split", "dev"]])
    def test_the_split_is_that_of_the_file_unless_a_flag_is_given(self, tmp_path, flags, monkeypatch):
        (tmp_path / "train.yaml").write_text("pairs: pairs.jsonl\nmodel: demo\ndev_split: test\n")
        found = []
        monkeypatch.setattr("bixse.training.dry_run.plan_training", lambda config, out: found.append(config) or 1 / 0)
        main(["train", "--config", str(tmp_path / "train.yaml"), "--dry-run", *flags])
        assert found[0].dev_split == ("dev" if flags else "test")

    def test_a_half_written_checkpoint_is_passed_over(self, tmp_path):
        for step in (2, 10, 12):
            (tmp_path / f"checkpoint-{step}").mkdir()
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
        for step in (2, 10):
            write_hashes(tmp_path / f"checkpoint-{step}")
        (tmp_path / "checkpoint-16").mkdir()
        assert whole_checkpoints(tmp_path) == [tmp_path / "checkpoint-10", tmp_path / "checkpoint-2"]
        assert checkpoint_to_resume(tmp_path) == (str(tmp_path / "checkpoint-10"), [])
        assert checkpoint_to_resume(tmp_path / "none") == (None, [])

    def test_a_batch_that_does_not_fit_into_a_gpu(self, tmp_path, monkeypatch, train_toy):
        def full(*given, **named):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ...")

        monkeypatch.setattr(GradedTrainer, "training_step", full)
        with pytest.raises(InputError, match=r"CUDA out of memory\).*fix: set `gradient_cache: true`"):
            train_toy()
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"

    def test_a_model_that_is_none_leaves_no_folder_behind(self, tmp_path, train_toy):
        with pytest.raises(ModelError, match="got no such folder"):
            train_toy(model=tmp_path / "no" / "model")
        assert not (tmp_path / "out").exists()

    def test_another_runs_folder_is_refused_and_left_as_it_was(self, tmp_path, train_toy):
        train_toy()
        before = weights(tmp_path / "out")
        with pytest.raises(OutputExistsError, match="changed: seed"):
            train_toy(seed=5)
        assert weights(tmp_path / "out") == before

    def test_another_base_model_in_the_same_folder_is_another_run(self, tiny_model_path, tmp_path, train_toy):
        base = tmp_path / "base"
        shutil.copytree(tiny_model_path, base)
        train_toy(model=base)
        shutil.copy(tmp_path / "out" / "model" / "model.safetensors", base / "model.safetensors")
        with pytest.raises(OutputExistsError, match=r"model/model\.safetensors"):
            train_toy(model=base)

    def test_weights_that_diverge_are_not_saved(self, tmp_path, monkeypatch, train_toy):
        """At the last step, without a dev collection: nothing but the weights shows it."""
        from bixse.training.loop.trainer import GradedTrainer

        step = GradedTrainer.training_step

        def spoiled(self, *given, **named):
            loss = step(self, *given, **named)
            if self.state.global_step == self.state.max_steps - 1:
                next(self.model.parameters()).data.fill_(float("inf"))
            return loss

        monkeypatch.setattr(GradedTrainer, "training_step", spoiled)
        with pytest.raises(TrainingError, match="weights"):
            train_toy(dev=None)
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
        assert not (tmp_path / "out" / "model").exists()

    def test_a_folder_that_another_process_trains_into(self, tmp_path, train_toy):
        (tmp_path / "out").mkdir()
        lock = str(tmp_path / "out" / ".lock")
        hold = f"from filelock import FileLock; lock = FileLock({lock!r}); lock.acquire(); print(); input()"
        other = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            other.stdout.readline()
            with pytest.raises(OutputExistsError, match="another process writes to"):
                train_toy()
        finally:
            other.communicate("\n")
        train_toy()

    def test_what_a_static_model_cannot_have_leaves_no_folder_behind(self, student, tmp_path, train_toy):
        with pytest.raises(ModelError, match=r"lora: .*fix:"):
            train_toy(model=student, max_length=None, lora={})
        assert not (tmp_path / "out").exists()


def test_the_learning_rate_is_for_the_queries_that_a_step_holds(training_files, tiny_model_path, tmp_path, capsys):
    words = ["train", "--pairs", str(training_files / "pairs.jsonl"), "--model", str(tiny_model_path)]
    words += ["--num-train-epochs", "1", "--global-batch-size", "10", "--gradient-accumulation-steps", "100"]
    rate = 1e-4 * (30 / 16) ** 0.5
    for more in (["--out", str(tmp_path / "out")], ["--out", str(tmp_path / "other"), "--dry-run"]):
        assert main([*words, *more]) == 0
        shown = capsys.readouterr().out
        assert f"learning rate: {rate:.3g} = 0.0001 * sqrt(30 / 16); 30 queries in all" in shown
        assert "1000" in shown
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert max(entry.get("learning_rate", 0) for entry in log) <= rate
    assert json.loads((tmp_path / "out" / "run.json").read_text())["results"]["learning_rate"] == pytest.approx(rate)


def test_a_run_trains_records_and_is_reused(tmp_path, train_toy):
    result = train_toy()
    assert not result.reused
    figures = {e["step"]: e["eval_dev_ndcg@10"] for e in result.history if "eval_dev_ndcg@10" in e}
    assert set(figures) == {0, 4, 8}
    assert result.best_step == max((4, 8), key=lambda step: (figures[step], -step))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "finished"
    of_the_model = {name for name in record["inputs"] if name.startswith("model/")}
    assert "model/model.safetensors" in of_the_model
    assert set(record["inputs"]) - of_the_model == {
        "pairs",
        "dev/corpus.jsonl",
        "dev/queries.jsonl",
        "dev/qrels/dev.tsv",
    }
    head = RelevanceHead.load(result.model_path)
    assert head is not None
    targets = [entry["mean_target"] for entry in result.history if "mean_target" in entry]
    assert head.trained_prior == head.prior == pytest.approx(sum(targets) / len(targets))
    assert 0 < head.prior < 0.5
    assert not (tmp_path / "out" / "checkpoints").exists()
    again = train_toy()
    assert again.reused
    assert again.history == result.history


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_trains(tiny_model_path, tmp_path, loss, train_toy):
    result = train_toy(loss=loss, dev=None)
    assert all(entry["loss"] > 0 for entry in result.history)
    assert weights(tmp_path / "out") != (tiny_model_path / "model.safetensors").read_bytes()
    assert (result.model_path / HEAD_FILE).is_file() == loss.startswith("bixse")


def test_the_head_of_the_base_model_is_not_kept(train_toy):
    """It belongs to other embeddings: its probabilities would be wrong without a word."""
    first = train_toy("first")
    assert (first.model_path / HEAD_FILE).is_file()
    second = train_toy("second", model=first.model_path, loss="infonce")
    assert not (second.model_path / HEAD_FILE).exists()


def test_training_on_real_grades_raises_dev_ndcg(train_toy):
    result = train_toy(optimizer={"num_train_epochs": 8, "learning_rate": 3e-3})
    figures = [e["eval_dev_ndcg@10"] for e in result.history if "eval_dev_ndcg@10" in e]
    assert max(figures) > figures[0] + 0.1


def test_the_model_gives_probabilities_and_loads_in_plain_sentence_transformers(train_toy):
    from sentence_transformers import SentenceTransformer

    result = train_toy()
    model = load_relevance_model(result.model_path, device="cpu")
    probabilities = model.relevance("copy the file", ["copy a file", "sort a path"])
    assert probabilities.shape == (2,)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert model.max_seq_length == 16
    plain = SentenceTransformer(str(result.model_path), device="cpu")
    assert (plain.encode(["copy"]) == model.encode(["copy"])).all()


def test_every_folder_that_is_saved_is_read_alike_by_older_servers(tiny_model_path, graded_pairs, tmp_path, train_toy):
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.serving import older_settings
    from bixse.files.files import damage
    from bixse.losses import BiXSELoss
    from bixse.training.config import MergeModelsConfig
    from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
    from bixse.training.merge_models import merge_models
    from helpers.server_readers import text_embeddings_inference, vllm_before_september_2026

    trained = train_toy(merge={"keep_tuned": True}).model_path
    plain = SentenceTransformer(str(tiny_model_path), device="cpu")
    arguments = GradedTrainingArguments(str(tmp_path / "plain"), max_steps=1, save_steps=1, report_to="none")
    trainer = GradedTrainer(plain, arguments, graded_pairs, loss=BiXSELoss(plain))
    trainer.train()
    trainer.save_model()
    average = MergeModelsConfig(models=[str(trained), str(tiny_model_path)], weights=[0.5, 0.5])
    folders = {
        trained: 16,
        trained.parent / "tuned": 16,
        merge_models(average, tmp_path / "merged").model_path: 16,
        tmp_path / "plain" / "checkpoint-1": 32,
        tmp_path / "plain": 32,
    }
    for folder, length in folders.items():
        assert older_settings(folder) == {}
        assert damage(folder) is None
        assert text_embeddings_inference(folder)[:2] == vllm_before_september_2026(folder)[:2] == ("mean", length)


def test_a_head_after_the_pooling_is_trained_saved_and_resumed(
    run_config, training_files, tiny_model_path, tmp_path, train_interrupted
):
    headed = SentenceTransformer(str(tiny_model_path), device="cpu")
    headed.append(Dense(32, 16))
    headed.save_pretrained(str(tmp_path / "headed"), create_model_card=False)
    settings = run_config(training_files, tmp_path / "headed", dev=None)
    result = train(settings, tmp_path / "whole", progress=False)
    trained = load_relevance_model(result.model_path, device="cpu")
    assert (trained[2].linear.weight - headed[2].linear.weight).abs().max() > 1e-3
    train_interrupted(settings, tmp_path / "cut")
    train(settings, tmp_path / "cut", progress=False)
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        assert (tmp_path / "cut" / "model" / name).read_bytes() == (result.model_path / name).read_bytes()


def test_the_same_seed_gives_the_same_weights(tmp_path, train_toy):
    for name in ("a", "b"):
        train_toy(name)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


@pytest.mark.slow
def test_ctrl_c_in_a_real_process_leaves_a_checkpoint_and_the_same_command_goes_on(
    training_files, tiny_model_path, tmp_path
):
    def command(out):
        options = {"pairs": training_files / "pairs.jsonl", "dev": training_files / "collection", "out": out}
        options |= {
            "model": tiny_model_path,
            "max-length": 16,
            "num-train-epochs": 40,
            "global-batch-size": 2,
            "learning-rate": 0.001,
        }
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

    cut = cut.rename(tmp_path / "moved")  # also to another folder
    resumed = subprocess.run(command(cut), capture_output=True, env=environment, timeout=240, check=False)
    assert resumed.returncode == 0, resumed.stderr.decode()
    whole = tmp_path / "whole"
    subprocess.run(command(whole), capture_output=True, env=environment, timeout=240, check=True)
    assert weights(cut) == weights(whole)
    histories = [json.loads((run / "run.json").read_text())["results"]["history"] for run in (cut, whole)]
    assert histories[0] == histories[1]
    assert any("eval_dev_ndcg@10" in entry for entry in histories[0])
