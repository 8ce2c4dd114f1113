from __future__ import annotations

import resource

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, set_seed

from bixse.encoders.loading.build import set_dropout
from bixse.errors import DivergedError, InputError, StorageError, TrainingError
from bixse.losses import BiXSELoss
from bixse.training.dev_evaluation import GradedRetrievalEvaluator, small_task
from bixse.training.loop.checkpoints import LOSS_STATE_FILE, load_loss_state, save_loss_state
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "documents_per_query": 3,
        "learning_rate": 1e-3,
        "bias_lr_multiplier": 10.0,
        "warmup_steps": 0.1,
        "max_grad_norm": 0.0,
        "adam_beta2": 0.98,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 11,
        **changes,
    }
    return GradedTrainingArguments(**settings)


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def make_trainer(model, pairs, folder, loss=None, callbacks=None, evaluator=None, **changes):
    set_seed(11)
    loss = loss if loss is not None else BiXSELoss(model)
    settings = arguments(folder, **changes)
    return GradedTrainer(model, settings, pairs, loss, evaluator, callbacks)


def state_of(trainer):
    own = {f"loss.{n}": p.detach().clone() for n, p in trainer.loss.named_parameters(recurse=False)}
    return {**{n: p.detach().clone() for n, p in trainer.model.named_parameters()}, **own}


def fresh(path):
    from bixse.encoders.relevance_model import RelevanceModel

    return RelevanceModel(str(path), device="cpu")


def test_only_the_logit_bias_gets_the_multiplied_rate(tiny_model, graded_pairs, tmp_path):
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path)
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(trainer.loss.logit_bias)] == pytest.approx(1e-2)
    assert {rates[id(p)] for p in tiny_model.parameters()} == {1e-3}
    assert id(trainer.loss.logit_scale) not in rates


def test_a_learned_scale_takes_no_weight_decay(tiny_model, graded_pairs, tmp_path):
    loss = BiXSELoss(tiny_model, learn_scale=True)
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, loss, weight_decay=0.1)
    optimizer = trainer.create_optimizer()
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(loss.logit_scale)] == 0.0
    assert decays[id(loss.logit_bias)] == 0.0
    assert 0.1 in decays.values()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tiny_model, graded_pairs, tmp_path):
    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                trainer.loss.logit_bias.data.fill_(float("nan"))

    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, callbacks=[Spoil()], save_steps=2)
    with pytest.raises(TrainingError, match=r"got loss nan at step 4; expected a finite number"):
        trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-2"}
    assert (tmp_path / "checkpoint-2" / LOSS_STATE_FILE).is_file()


def test_weights_that_are_not_finite_are_not_written(tiny_model, graded_pairs, tmp_path):
    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                trainer.loss.logit_bias.data.fill_(float("inf"))

    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, callbacks=[Spoil()])
    with pytest.raises(DivergedError, match=r"\(logit_bias\) after step 2"):
        trainer.train()
    assert not list((tmp_path / "checkpoint-2").glob("*.safetensors"))


@pytest.mark.parametrize("stop_at", [1, 4, 5, 9])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(tiny_model_path, graded_pairs, tmp_path, stop_at):
    whole = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "whole")
    whole.train()
    assert whole.state.global_step == 12
    first = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut", callbacks=[StopAfter(stop_at)])
    first.train()
    assert first.state.global_step == stop_at
    resumed = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut")
    resumed.train(resume_from_checkpoint=True)
    expected, got = state_of(whole), state_of(resumed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert expected["loss.logit_bias"] != whole.state.log_history[0]["logit_bias"]
    moments = [t.optimizer.state_dict()["state"] for t in (whole, resumed)]
    assert all(torch.equal(moments[0][k]["exp_avg"], moments[1][k]["exp_avg"]) for k in moments[0])
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]


def test_the_best_checkpoints_bias_comes_back_with_its_weights(
    tiny_model_path, graded_pairs, graded_collection, tmp_path
):
    qrels = graded_collection.qrels["dev"]
    texts = {name: document.content for name, document in graded_collection.corpus.items()}
    queries = {query: graded_collection.queries[query] for query in qrels}
    evaluator = GradedRetrievalEvaluator([small_task("toy", texts, queries, qrels, 1.0)])
    scores = iter([0.2, 0.9, 0.4, 0.1, *[0.05] * 20])
    evaluator.__class__ = type(
        "Scripted", (GradedRetrievalEvaluator,), {"__call__": lambda self, *a, **k: {"dev_ndcg@10": next(scores)}}
    )
    trainer = make_trainer(
        fresh(tiny_model_path),
        graded_pairs,
        tmp_path,
        evaluator=evaluator,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_dev_ndcg@10",
        greater_is_better=True,
        max_steps=4,
    )
    trainer.train()
    assert trainer.state.best_global_step == 2
    logged = {entry["step"]: entry["logit_bias"] for entry in trainer.state.log_history if "loss" in entry}
    # The entry of step 3 holds the bias that step 2 left.
    assert float(trainer.loss.logit_bias.detach()) == pytest.approx(logged[3], abs=1e-6)
    kept = fresh(tmp_path / "checkpoint-2")
    assert all(torch.equal(a, b) for a, b in zip(kept.parameters(), trainer.model.parameters(), strict=True))


def test_a_checkpoint_holds_no_pickled_arguments_and_loads_in_plain_sentence_transformers(
    tiny_model, graded_pairs, tmp_path
):
    from sentence_transformers import SentenceTransformer

    make_trainer(tiny_model, graded_pairs, tmp_path, max_steps=1).train()
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert LOSS_STATE_FILE in names
    assert "training_args.bin" not in names
    assert SentenceTransformer(str(tmp_path / "checkpoint-1"), device="cpu").encode("copy").shape == (32,)


def test_training_text_is_shortened_and_the_encoder_keeps_its_own_length(tiny_model, graded_pairs, tmp_path):
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, train_max_length=5)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["document_input_ids"].shape[1] == 5
    assert tiny_model.max_seq_length == 32


class TestDataSets:
    def test_a_data_set_and_graded_pairs_train_alike(self, tiny_model_path, graded_pairs, tmp_path):
        given = [graded_pairs, Dataset(graded_pairs.to_arrow())]
        states = []
        for data in given:
            trainer = make_trainer(fresh(tiny_model_path), data, tmp_path, max_steps=3)
            trainer.train()
            states.append(state_of(trainer))
        first, second = states
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_wrong_columns_are_named(self, tiny_model, graded_pairs, tmp_path):
        wrong = Dataset.from_dict({"anchor": ["a"], "positive": ["b"]})
        with pytest.raises(InputError, match="anchor, positive"):
            GradedTrainer(tiny_model, arguments(tmp_path), wrong)


class TestLossState:
    def test_a_missing_file_is_an_error_for_a_loss_with_parameters(self, tiny_model, tmp_path):
        with pytest.raises(TrainingError, match=r"got \[\]; expected \['bias_is_set', 'logit_bias', 'logit_scale'\]"):
            load_loss_state(BiXSELoss(tiny_model), tmp_path)

    def test_round_trip_keeps_every_bit_and_that_the_bias_is_set(self, tiny_model, tmp_path):
        loss = BiXSELoss(tiny_model, scale=17.3)
        loss.logit_bias.data.fill_(-5.123456789)
        loss.bias_is_set.fill_(True)
        save_loss_state(loss, tmp_path)
        other = BiXSELoss(tiny_model)
        load_loss_state(other, tmp_path)
        assert torch.equal(other.logit_bias, loss.logit_bias)
        assert torch.equal(other.logit_scale, loss.logit_scale)
        assert bool(other.bias_is_set)


def test_one_process_alone_writes_a_checkpoint(tiny_model_path, graded_pairs, tmp_path, monkeypatch):
    trainer = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path)
    for rank, names in ((1, []), (0, ["model.safetensors"])):
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        trainer.save_model(str(tmp_path / "checkpoint-1"), _internal_call=True)
        assert [
            path.name for path in (tmp_path / "checkpoint-1").glob("*.safetensors") if "loss" not in path.name
        ] == names


@pytest.mark.parametrize("room", [20_000, 150_000], ids=["weights", "optimizer"])
def test_a_checkpoint_without_room_is_blamed_on_the_disk(tiny_model_path, graded_pairs, tmp_path, room):
    """The limit on a file's size stands for a full disk: 95 kB of weights, 190 kB of Adam's moments."""
    trainer = make_trainer(SentenceTransformer(str(tiny_model_path), device="cpu"), graded_pairs, tmp_path, max_steps=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(StorageError, match=f"{tmp_path}.*fix:"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestFittedBias:
    """Without a warm-up, where the gradient of a bias that was just fitted is 0 but for rounding."""

    def test_the_batch_that_it_was_fitted_to_does_not_move_it(self, tiny_model, graded_pairs, tmp_path):
        loss = BiXSELoss(tiny_model)
        trainer = make_trainer(tiny_model, graded_pairs, tmp_path, loss, max_steps=1, warmup_steps=0)
        trainer.train()
        assert loss.logit_bias.item() == trainer.state.log_history[0]["logit_bias"]

    def test_runs_with_and_without_gradient_cache_are_equal_up_to_rounding(
        self, tiny_model_path, graded_pairs, tmp_path
    ):
        biases = []
        for cached in (True, False):
            model = fresh(tiny_model_path)
            set_dropout(model, 0.0)  # passes of other sizes draw other dropout
            loss = BiXSELoss(model, gradient_cache=cached, mini_batch_size=3 if cached else 32)
            settings = {"max_steps": 6, "warmup_steps": 0, "bias_lr_multiplier": 100.0}
            trainer = make_trainer(model, graded_pairs, tmp_path / str(cached), loss, **settings)
            trainer.train()
            biases.append([entry["logit_bias"] for entry in trainer.state.log_history if "logit_bias" in entry])
        assert biases[0] == pytest.approx(biases[1], abs=1e-4)
        assert abs(biases[0][2] - biases[0][1]) > 1e-2  # it learns from the second batch on
