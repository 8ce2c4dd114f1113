import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, set_seed

from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import DivergedError, InputError, TrainingError
from bixse.losses import BiXSELoss
from bixse.training.dev_evaluation import GradedRetrievalEvaluator
from bixse.training.loop.checkpoints import LOSS_STATE_FILE, load_loss_state
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments


class After(TrainerCallback):
    """Calls an action after a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(control)


def make_trainer(model, pairs, folder, loss=None, callbacks=None, evaluator=None, **changes):
    set_seed(11)
    learning = {"learning_rate": 1e-3, "bias_lr_multiplier": 10.0, "warmup_steps": 0.1, "documents_per_query": 3}
    saving = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "seed": 11, **learning, **saving, **changes}
    arguments = GradedTrainingArguments(str(folder), **settings)
    return GradedTrainer(model, arguments, pairs, loss or BiXSELoss(model), evaluator, callbacks)


def state_of(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.loss.named_parameters()}


def fresh(path):
    return RelevanceModel(str(path), device="cpu")


def per_parameter(trainer, setting):
    return {id(p): group[setting] for group in trainer.create_optimizer().param_groups for p in group["params"]}


def test_only_the_logit_bias_gets_the_multiplied_rate(tiny_model, graded_pairs, tmp_path):
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path)
    rates = per_parameter(trainer, "lr")
    assert rates[id(trainer.loss.logit_bias)] == pytest.approx(1e-2)
    assert {rates[id(p)] for p in tiny_model.parameters()} == {1e-3}
    assert id(trainer.loss.logit_scale) not in rates


def test_a_learned_scale_takes_no_weight_decay(tiny_model, graded_pairs, tmp_path):
    loss = BiXSELoss(tiny_model, learn_scale=True)
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, loss, weight_decay=0.1)
    decays = per_parameter(trainer, "weight_decay")
    assert decays[id(loss.logit_scale)] == decays[id(loss.logit_bias)] == 0.0
    assert 0.1 in decays.values()


@pytest.mark.parametrize(
    ("value", "message"), [("nan", r"got loss nan at step 4"), ("inf", r"\(logit_bias\) after step 3")]
)
def test_numbers_that_are_not_finite_stop_the_run_and_are_not_written(
    tiny_model, graded_pairs, tmp_path, value, message
):
    spoil = After(3, lambda control: trainer.loss.logit_bias.data.fill_(float(value)))
    saves = {"save_steps": 2 if value == "nan" else 1}
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, callbacks=[spoil], **saves)
    with pytest.raises(DivergedError, match=message):
        trainer.train()
    assert (tmp_path / "checkpoint-2" / LOSS_STATE_FILE).is_file()
    assert not list(tmp_path.glob("checkpoint-[34]/*.safetensors"))


@pytest.mark.parametrize("stop_at", [1, 4, 5, 9])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(tiny_model_path, graded_pairs, tmp_path, stop_at):
    whole = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "whole")
    whole.train()
    assert whole.state.global_step == 12
    stop = lambda control: setattr(control, "should_training_stop", True)  # noqa: E731
    first = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut", callbacks=[After(stop_at, stop)])
    first.train()
    assert first.state.global_step == stop_at
    resumed = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut")
    resumed.train(resume_from_checkpoint=True)
    expected, got = state_of(whole), state_of(resumed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert expected["logit_bias"] != whole.state.log_history[0]["logit_bias"]
    moments = [t.optimizer.state_dict()["state"] for t in (whole, resumed)]
    assert all(torch.equal(moments[0][k]["exp_avg"], moments[1][k]["exp_avg"]) for k in moments[0])
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]


def test_the_best_checkpoints_bias_comes_back_with_its_weights(tiny_model_path, graded_pairs, tmp_path):
    scores = iter([0.2, 0.9, 0.4, 0.1, *[0.05] * 20])

    class Scripted(GradedRetrievalEvaluator):
        def __call__(self, *args, **kwargs):
            return {"dev_ndcg@10": next(scores)}

    evaluator = Scripted([])
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_dev_ndcg@10", "greater_is_better": True}
    best |= {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 4}
    trainer = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path, evaluator=evaluator, **best)
    trainer.train()
    assert trainer.state.best_global_step == 2
    logged = {entry["step"]: entry["logit_bias"] for entry in trainer.state.log_history if "loss" in entry}
    # the entry of step 3 holds the bias after step 2
    assert float(trainer.loss.logit_bias.detach()) == pytest.approx(logged[3], abs=1e-6)
    saved = fresh(tmp_path / "checkpoint-2")
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), trainer.model.parameters(), strict=True))


def test_a_checkpoint_holds_no_pickled_arguments_and_loads_in_plain_sentence_transformers(
    tiny_model, graded_pairs, tmp_path
):
    make_trainer(tiny_model, graded_pairs, tmp_path, max_steps=1).train()
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert LOSS_STATE_FILE in names
    assert "training_args.bin" not in names
    assert SentenceTransformer(str(tmp_path / "checkpoint-1"), device="cpu").encode("copy").shape == (32,)


def test_a_data_set_and_graded_pairs_train_alike_and_wrong_columns_are_named(tiny_model_path, graded_pairs, tmp_path):
    states = []
    for data in (graded_pairs, Dataset(graded_pairs.to_arrow())):
        trainer = make_trainer(fresh(tiny_model_path), data, tmp_path, max_steps=3)
        trainer.train()
        states.append(state_of(trainer))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(InputError, match="anchor, positive"):
        make_trainer(trainer.model, Dataset.from_dict({"anchor": ["a"], "positive": ["b"]}), tmp_path)


def test_one_process_alone_writes_a_checkpoint(tiny_model_path, graded_pairs, tmp_path, monkeypatch):
    trainer = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path)
    for rank, names in ((1, []), (0, ["model.safetensors"])):
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        trainer.save_model(str(tmp_path / "checkpoint-1"), _internal_call=True)
        written = (tmp_path / "checkpoint-1").glob("*.safetensors")
        assert [path.name for path in written if "loss" not in path.name] == names


def test_the_batch_that_the_bias_was_fitted_to_does_not_move_it(tiny_model, graded_pairs, tmp_path):
    # without a warm-up, Adam would make a full step of a gradient that is 0 but for rounding
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, max_steps=2, warmup_steps=0)
    trainer.train()
    first, second = (entry["logit_bias"] for entry in trainer.state.log_history if "logit_bias" in entry)
    assert first == second
    assert abs(trainer.loss.logit_bias.item() - second) > 1e-3


def test_a_missing_loss_state_is_an_error(tiny_model, tmp_path):
    with pytest.raises(TrainingError, match="logit_bias"):
        load_loss_state(BiXSELoss(tiny_model), tmp_path)
