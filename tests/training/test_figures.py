import json
import math
from itertools import pairwise

import pytest
from test_trainer import make_trainer
from transformers import TrainerCallback

from bixse.data.pairs_files import load_graded_pairs
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import DivergedError
from bixse.losses import build_loss
from bixse.training.loop import figures
from bixse.training.loop.checkpoints import StepLog
from bixse.training.loop.trainer import GradedTrainer
from helpers.card import stand_in

ONE_EPOCH = {"per_device_train_batch_size": 2, "num_train_epochs": 1}  # the loader of an epoch reads its seed
SELDOM = dict.fromkeys(("cpu", "cuda"), 1000.0)
RATES = ("train_pairs_per_second", "train_tokens_per_second")


@pytest.fixture
def slow_device(monkeypatch):
    """A device whose figures are read seldom."""
    monkeypatch.setattr(figures, "SECONDS_BETWEEN_READS", SELDOM)


def trained(path, pairs, folder, **changes):
    """Return a trainer after three epochs of four steps, and its log."""
    model = RelevanceModel(str(path), device="cpu")
    settings = {"save_strategy": "no", **changes}
    trainer = make_trainer(model, pairs, folder, callbacks=[StepLog(folder / "log.jsonl")], **settings)
    trainer.train()
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert history == [{name: line[name] for name in history[0]} for line in lines if "loss" in line]
    return trainer, history


def without_rates(history):
    return [{name: value for name, value in entry.items() if name not in RATES} for entry in history]


@pytest.fixture(params=[{}, {"gradient_accumulation_steps": 2}, {"logging_steps": 5}], ids=str)
def changes(request):
    return request.param


def test_a_log_that_is_written_seldom_has_the_entries_of_one_that_is_written_at_every_step(
    tiny_model_path, graded_pairs, tmp_path, monkeypatch, changes
):
    (tmp_path / "often").mkdir()
    (tmp_path / "seldom").mkdir()
    each, expected = trained(tiny_model_path, graded_pairs, tmp_path / "often", **changes)
    monkeypatch.setattr(figures, "SECONDS_BETWEEN_READS", SELDOM)
    seldom, history = trained(tiny_model_path, graded_pairs, tmp_path / "seldom", **changes)
    assert without_rates(history) == without_rates(expected)
    assert each.state.global_step == seldom.state.global_step == (6 if "gradient_accumulation_steps" in changes else 12)
    total = [trainer.state.log_history[-1]["train_loss"] for trainer in (each, seldom)]
    assert total[0] == pytest.approx(total[1], rel=1e-6)
    assert all(entry[name] > 0 for entry in history for name in RATES)
    assert seldom.figures.seconds > 0


LOSSES = ["bixse", "margin-mse"]
LOSSES += [pytest.param(word, marks=pytest.mark.slow) for word in ("infonce", "soft-infonce", "distill-kl")]


@pytest.mark.parametrize("word", LOSSES)
def test_steps_wait_for_a_gpu_where_figures_are_read_alone(tiny_model_path, graded_pairs, tmp_path, monkeypatch, word):
    monkeypatch.setattr(figures, "SECONDS_BETWEEN_READS", SELDOM)
    begins, reads, read = [], [], figures.UnreadFigures.read

    class Begins(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            begins.append(len(card.waits))

    def counted(self, *args, **kwargs):
        reads.append(trainer.state.global_step)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(figures.UnreadFigures, "read", counted)
    with stand_in() as card:
        model = RelevanceModel(str(tiny_model_path), device="cuda")
        options = {**ONE_EPOCH, "save_strategy": "no", "callbacks": [Begins()], "bf16": True}
        trainer = make_trainer(model, graded_pairs, tmp_path, build_loss(word, model), **options)
        trainer.train()
    waits = {step: card.waits[slice(*part)] for step, part in enumerate(pairwise(begins), 1) if part[0] < part[1]}
    assert reads == [1, 3, 7, 15, 15], "twice as many steps each time, at the end, and after it"
    assert list(waits) == [1, 3, 7]
    assert [what for what, _ in waits[3] + waits[7]] == ["tolist"] * 2
    assert len(begins) == 15


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_found_before_a_checkpoint_and_its_batch_is_written(
    tiny_model, graded_pairs, tmp_path, slow_device, monkeypatch, value
):
    step, seen = GradedTrainer.compute_loss, []

    def spoiled(self, model, inputs, *args, **kwargs):
        loss = step(self, model, inputs, *args, **kwargs)
        return loss * value if self.state.global_step == 4 else loss

    monkeypatch.setattr(GradedTrainer, "compute_loss", spoiled)
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, save_steps=6)
    collate = trainer.data_collator.__call__
    trainer.data_collator = lambda groups: (seen.append([group.number for group in groups]), collate(groups))[1]
    trainer.data_collator.tokenise, trainer.data_collator.is_tokenised = (lambda *a: None), False
    with pytest.raises(DivergedError, match=f"got loss {value} at step 5.*diverged.jsonl"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))
    assert [entry["step"] for entry in trainer.state.log_history] == [1, 2, 3, 4]
    written = load_graded_pairs(tmp_path / "diverged.jsonl")
    groups = graded_pairs.groups()
    assert set(written.queries) == {groups[number].query for number in seen[4]}
    expected = {
        (query, document): z
        for query, document, z in zip(graded_pairs.queries, graded_pairs.documents, graded_pairs.relevance, strict=True)
    }
    for query, document, relevance in zip(written.queries, written.documents, written.relevance, strict=True):
        assert expected[query, document] == relevance
    assert len(written) >= 3 * len(seen[4])


def test_figures_are_read_before_an_evaluation_and_a_checkpoint(tiny_model_path, graded_pairs, tmp_path, slow_device):
    trained(tiny_model_path, graded_pairs, tmp_path, save_strategy="steps", save_steps=5, max_steps=7)
    state = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"]] == [1, 2, 3, 4, 5]
