import json
import shutil

import pytest

from bixse.cli.main import main
from bixse.encoders.loading.build import build_encoder, load_relevance_model
from bixse.errors import ModelError, TrainingError
from bixse.files.files import damage, write_with_hash
from bixse.training.loop.checkpoints import STATE_FILE
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import train
from helpers.command import odd_modes

PARTS = ["model.safetensors", "optimizer.pt", STATE_FILE]


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
    """The model of an uninterrupted run."""
    path = train(settings, tmp_path_factory.mktemp("whole"), progress=False).model_path
    assert odd_modes(path) == {}
    return path


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(settings, cut, whole, part):
    flip(checkpoints(cut)[-1] / part)
    result = train(settings, cut, progress=False)
    (warning,) = result.warnings
    assert all(fact in warning for fact in ("checkpoint-3", part, "checkpoint-2"))
    assert (result.model_path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_without_an_undamaged_checkpoint_the_run_is_refused_and_nothing_is_lost(settings, cut):
    first, last = checkpoints(cut)
    flip(first / "model.safetensors")
    flip(last / "optimizer.pt")
    before = {path: path.read_bytes() for path in cut.rglob("*") if path.is_file() and path.name != "run.json"}
    with pytest.raises(TrainingError, match=r"checkpoint-3: got optimizer\.pt ") as caught:
        train(settings, cut, progress=False)
    assert str(cut / "checkpoints") in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
    flip(last / "optimizer.pt")
    assert train(settings, cut, progress=False).warnings == []


def test_a_damaged_best_checkpoint_is_refused_before_the_run_goes_on(run_config, tmp_path, train_interrupted):
    settings = run_config(max_length=None, evaluations_per_epoch=4)
    train_interrupted(settings, tmp_path)
    best, last = checkpoints(tmp_path)
    state = json.loads((last / STATE_FILE).read_bytes())
    assert state["best_model_checkpoint"]
    write_with_hash(last / STATE_FILE, json.dumps({**state, "best_model_checkpoint": str(best)}))
    flip(best / "model.safetensors")
    with pytest.raises(TrainingError, match=rf"{best.name}: got model\.safetensors"):
        train(settings, tmp_path, progress=False)


def test_a_best_checkpoint_that_is_damaged_while_training_goes_on_is_no_model(run_config, tmp_path, monkeypatch):
    load = GradedTrainer._load_best_model

    def damaged(self):
        for checkpoint in checkpoints(tmp_path):
            flip(checkpoint / "model.safetensors")
        load(self)

    monkeypatch.setattr(GradedTrainer, "_load_best_model", damaged)
    with pytest.raises(TrainingError, match=r"got model\.safetensors"):
        train(run_config(), tmp_path, progress=False)
    assert not (tmp_path / "model").exists()


def test_a_run_that_was_moved_goes_on(run_config, tmp_path, train_interrupted):
    settings = run_config(max_length=None, evaluations_per_epoch=4)
    train_interrupted(settings, tmp_path / "there")
    (tmp_path / "there").rename(tmp_path / "here")
    assert train(settings, tmp_path / "here", progress=False).warnings == []


class TestModels:
    @pytest.fixture
    def model(self, whole, tmp_path):
        shutil.copytree(whole, tmp_path / "model")
        return tmp_path / "model"

    @pytest.mark.parametrize("name", ["model.safetensors", "relevance_head.json", "1_Pooling/config.json"])
    def test_a_damaged_file_is_named(self, model, name):
        load_relevance_model(model, device="cpu")
        flip(model / name)
        for load in (load_relevance_model, build_encoder):
            with pytest.raises(ModelError) as caught:
                load(model, device="cpu")
            assert name in str(caught.value) and str(model) in str(caught.value)

    def test_calibration_renews_the_hash_of_the_head(self, model, training_files, tmp_path, capsys):
        words = ["calibrate", str(model), "--pairs", str(training_files / "pairs.jsonl"), "--json"]
        head = (model / "relevance_head.json").read_bytes()
        assert main(words) == 0, capsys.readouterr()
        assert (model / "relevance_head.json").read_bytes() != head
        load_relevance_model(model, device="cpu")
        assert damage(model) is None
