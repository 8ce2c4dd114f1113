import re
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, SentenceTransformer, losses
from sentence_transformers import SentenceTransformerTrainer as Trainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import AutoModel, TrainerCallback, set_seed

from bixse import SaveRelevanceHead, save_relevance_head
from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.weights import set_dropout
from bixse.errors import DivergedError, InputError, ModelError, TrainingError
from bixse.losses import BiXSELoss, DistillKLLoss, InfoNCELoss, MarginMSELoss
from bixse.training.loop.checkpoints import LOSS_STATE_FILE, load_loss_state
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

PLAIN = {"learning_rate_mapping": {}, "logging_steps": 1}
"""Arguments of a loss without parameters."""
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_score", "eval_strategy": "steps"}
DOCS = Path(__file__).parents[2] / "docs"


class Scripted(BaseEvaluator):
    primary_metric = "score"

    def __init__(self, *scores):
        self.scores = iter(scores)

    def __call__(self, *args, **kwargs):
        return {"score": next(self.scores)}


class After(TrainerCallback):
    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(control)


def make_trainer(model, pairs, folder, loss=None, callbacks=None, evaluator=None, **changes):
    set_seed(11)
    learning = {"learning_rate": 1e-3, "warmup_steps": 0.1, "documents_per_query": 3}
    saving = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "seed": 11, **learning, **saving, **changes}
    arguments = GradedTrainingArguments(str(folder), **settings)
    return GradedTrainer(
        model, arguments, pairs, loss or BiXSELoss(model, bias_lr_multiplier=10.0), evaluator, callbacks
    )


def state_of(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.loss.named_parameters()}


def fresh(path):
    return RelevanceModel(str(path), device="cpu")


@pytest.mark.parametrize("launched", [False, True])
def test_bf16_of_the_arguments_or_of_the_launcher(tiny_model, graded_pairs, tmp_path, monkeypatch, launched):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16" if launched else "no")
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, bf16=not launched, max_steps=1, use_cpu=True)
    layer, seen, pooled = tiny_model[0].auto_model.encoder.layer[0].output.dense, [], []
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    trainer.train()
    assert len(seen) > 1 and {output.dtype for output in seen} == {torch.bfloat16}
    # each pass rounds the weights anew, so that gradients of many passes are added in float32
    with trainer.autocast_smart_context_manager():
        pooled += [layer(torch.ones(1, 64)) for _ in range(2)]
    casts = [next(part for part, _ in output.grad_fn.next_functions if "ToCopy" in part.name()) for output in pooled]
    assert casts[0] is not casts[1]


@pytest.mark.parametrize("learn_scale", [False, True])
def test_the_scale_and_the_bias_take_no_weight_decay_and_no_rate_of_their_own(
    tiny_model, graded_pairs, tmp_path, learn_scale
):
    loss = BiXSELoss(tiny_model, learn_scale=learn_scale)
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, loss, weight_decay=0.1)
    groups = {id(p): group for group in trainer.create_optimizer().param_groups for p in group["params"]}
    bias, scale = (groups.get(id(own), {}) for own in (loss.scaled_bias, loss.logit_scale))
    assert (bias["lr"], bias["weight_decay"]) == (1e-3, 0.0)
    assert (scale.get("lr"), scale.get("weight_decay")) == ((1e-3, 0.0) if learn_scale else (None, None))
    encoder = [groups[id(p)] for p in tiny_model.parameters()]
    assert {group["lr"] for group in encoder} == {1e-3}
    assert 0.1 in {group["weight_decay"] for group in encoder}


@pytest.mark.parametrize(
    ("value", "message"), [("nan", r"got loss nan at step 4"), ("inf", r"\(scaled_bias\) after step 3")]
)
def test_numbers_that_are_not_finite_stop_the_run_and_are_not_written(
    tiny_model, graded_pairs, tmp_path, value, message
):
    spoil = After(3, lambda control: trainer.loss.set_bias(float(value)))
    saves = {"save_steps": 2 if value == "nan" else 1}
    trainer = make_trainer(tiny_model, graded_pairs, tmp_path, callbacks=[spoil], **saves)
    with pytest.raises(DivergedError, match=message):
        trainer.train()
    assert (tmp_path / "checkpoint-2" / LOSS_STATE_FILE).is_file()
    assert not list(tmp_path.glob("checkpoint-[34]/*.safetensors"))


@pytest.fixture(scope="module")
def whole(tiny_model_path, graded_pairs, tmp_path_factory):
    """A trainer after three epochs of four steps."""
    trainer = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path_factory.mktemp("whole"))
    trainer.train()
    assert trainer.state.global_step == 12
    return trainer


@pytest.mark.parametrize(
    "stop_at", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(
    tiny_model_path, graded_pairs, tmp_path, whole, stop_at
):
    stop = lambda control: setattr(control, "should_training_stop", True)  # noqa: E731
    first = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut", callbacks=[After(stop_at, stop)])
    first.train()
    assert first.state.global_step == stop_at
    resumed = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path / "cut")
    resumed.train(resume_from_checkpoint=True)
    expected, got = state_of(whole), state_of(resumed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert 10 * expected["scaled_bias"] != whole.state.log_history[0]["logit_bias"]
    moments = [t.optimizer.state_dict()["state"] for t in (whole, resumed)]
    assert all(torch.equal(moments[0][k]["exp_avg"], moments[1][k]["exp_avg"]) for k in moments[0])
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]


def test_the_best_checkpoints_bias_comes_back_with_its_weights(tiny_model_path, graded_pairs, tmp_path):
    evaluator = Scripted(0.2, 0.9, 0.4, 0.1)
    best = {**BEST, "eval_steps": 1, "max_steps": 4}
    trainer = make_trainer(fresh(tiny_model_path), graded_pairs, tmp_path, evaluator=evaluator, **best)
    trainer.train()
    assert trainer.state.best_global_step == 2
    logged = {entry["step"]: entry["logit_bias"] for entry in trainer.state.log_history if "loss" in entry}
    # the entry of step 3 holds the bias after step 2
    assert float(trainer.loss.logit_bias.detach()) == pytest.approx(logged[3], abs=1e-6)
    saved = fresh(tmp_path / "checkpoint-2")
    assert all(torch.equal(a, b.cpu()) for a, b in zip(saved.parameters(), trainer.model.parameters(), strict=True))


def test_a_checkpoint_holds_no_pickled_arguments_and_loads_in_plain_sentence_transformers(
    tiny_model, graded_pairs, tmp_path
):
    make_trainer(tiny_model, graded_pairs, tmp_path, max_steps=1).train()
    with pytest.raises(TrainingError, match="scaled_bias"):
        load_loss_state(BiXSELoss(tiny_model), tmp_path)  # where no checkpoint is
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


def stock(model, dataset, folder, loss, *callbacks, evaluator=None, **changes):
    learning = {"learning_rate": 1e-3}
    steps = {"per_device_train_batch_size": 8, "max_steps": 4, "save_steps": 2}
    settings = {**learning, **steps, "report_to": "none", "disable_tqdm": True, "use_cpu": True, **changes}
    more = {"loss": loss, "callbacks": list(callbacks), "evaluator": evaluator}
    return Trainer(model, Arguments(str(folder), **settings), train_dataset=dataset, **more)


@pytest.fixture(params=["SentenceTransformer", "RelevanceModel"])
def model(request, tiny_model_path):
    if request.param == "RelevanceModel":
        return build_encoder(tiny_model_path, device="cpu")
    return SentenceTransformer(str(tiny_model_path), device="cpu")


def test_every_trainer_moves_the_bias_alike(tiny_model_path, graded_pairs, tmp_path):
    groups = [graded_pairs.groups()[number] for number in range(12)]
    rows = {"query": [group.query for group in groups], "document": [group.documents[0] for group in groups],
            "label": [float(group.relevance[0]) for group in groups]}  # fmt: skip
    settings = {"max_steps": 3, "num_train_epochs": 3, "per_device_train_batch_size": 12, "warmup_steps": 0,
                "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no"}  # fmt: skip
    biases, weights = [], []
    for kind in ("stock", "ours", "loop"):
        model = fresh(tiny_model_path)
        set_dropout(model, 0.0)
        loss = BiXSELoss(model)
        if kind == "stock":
            stock(model, Dataset.from_dict(rows), tmp_path / kind, loss, **settings).train()
        elif kind == "ours":
            make_trainer(model, Dataset.from_dict(rows), tmp_path / kind, loss, **settings).train()
        else:
            steps = torch.optim.AdamW(loss.parameters(), lr=1e-3, weight_decay=0.0)
            for _ in range(3):
                columns = [model.preprocess(rows[name]) for name in ("query", "document")]
                loss(columns, torch.tensor(rows["label"])).backward()
                steps.step()
                steps.zero_grad()
        biases.append(loss.logit_bias.item())
        weights.append(torch.cat([part.detach().flatten().cpu() for part in model.parameters()]))
    assert biases == pytest.approx([biases[0]] * 3, abs=1e-4)
    assert all(torch.allclose(weights[0], other, atol=1e-4) for other in weights[1:])


def own(loss) -> tuple[float, float]:
    return loss.logit_scale.item(), loss.logit_bias.item()


def scale_and_bias(folder) -> tuple[float, float]:
    head = load_relevance_model(folder, device="cpu").head
    return head.logit_scale, head.logit_bias


class TestHead:
    def test_the_callback_keeps_scale_and_bias_with_every_checkpoint_and_at_the_end(
        self, model, graded_pairs, tmp_path
    ):
        loss = BiXSELoss(model, learn_scale=True)
        seen = []
        forward = loss.forward
        loss.forward = lambda *a: (forward(*a), seen.append((own(loss), loss.statistics["mean_target"].item())))[0]
        trainer = stock(model, graded_pairs.to_dataset(), tmp_path, loss, SaveRelevanceHead(loss))
        model.save_pretrained(str(tmp_path))  # of an earlier training: its weights have no part in the head
        trainer.train()
        trainer.save_model()
        assert scale_and_bias(tmp_path / "checkpoint-2") == seen[2][0]  # what step 3 began with
        assert scale_and_bias(tmp_path / "checkpoint-4") == scale_and_bias(tmp_path) == own(loss)
        assert own(loss) != seen[2][0]
        head = load_relevance_model(tmp_path, device="cpu").head
        assert head.trained_prior == head.prior == pytest.approx(sum(target for _, target in seen) / 4)
        documents = ["copy the file", "move the path"]
        probabilities = load_relevance_model(tmp_path, device="cpu").relevance("how do i copy the file", documents)
        vectors = trainer.model.encode(["how do i copy the file", *documents], normalize_embeddings=True)
        logits = torch.tensor(own(loss)[0] * vectors[1:] @ vectors[0] + own(loss)[1])
        assert probabilities == pytest.approx(torch.sigmoid(logits).numpy(), abs=1e-5)

    def test_the_best_checkpoints_head_comes_with_its_weights(self, model, graded_pairs, tmp_path):
        loss = BiXSELoss(model)
        best = {**BEST, "eval_steps": 2, "evaluator": Scripted(0.9, 0.1)}
        trainer = stock(model, graded_pairs.to_dataset(), tmp_path, loss, SaveRelevanceHead(loss), **best)
        trainer.train()
        trainer.save_model()
        assert trainer.state.best_global_step == 2
        assert scale_and_bias(tmp_path) == scale_and_bias(tmp_path / "checkpoint-2") == own(loss)
        assert scale_and_bias(tmp_path) != scale_and_bias(tmp_path / "checkpoint-4")

    def test_a_loss_without_a_head_or_without_a_batch_is_refused(self, tiny_model, graded_pairs, tmp_path):
        loss = InfoNCELoss(tiny_model)
        trainer = stock(tiny_model, graded_pairs.to_dataset(), tmp_path, loss, SaveRelevanceHead(loss), **PLAIN)
        for refuse in (lambda: save_relevance_head(loss, tmp_path), trainer.train):
            with pytest.raises(InputError, match="InfoNCELoss"):
                refuse()
        with pytest.raises(InputError, match="no batch"):
            save_relevance_head(BiXSELoss(tiny_model), tmp_path)
        assert not (tmp_path / HEAD_FILE).exists()

    def test_the_call_after_training(self, model, graded_pairs, tmp_path):
        loss = BiXSELoss(model)
        stock(model, graded_pairs.to_dataset(), tmp_path / "out", loss, save_strategy="no").train()
        model.save_pretrained(str(tmp_path / "model"))
        with pytest.raises(ModelError, match="without a relevance head"):
            load_relevance_model(tmp_path / "model")
        save_relevance_head(loss, tmp_path / "model", prior=0.25)
        assert scale_and_bias(tmp_path / "model") == own(loss)
        assert RelevanceHead.load(tmp_path / "model").prior == 0.25
        if isinstance(model, RelevanceModel):
            model.save_pretrained(str(tmp_path / "again"))
            assert scale_and_bias(tmp_path / "again") == own(loss)

    def test_a_resumed_run_goes_on_with_the_checkpoints_bias(self, tiny_model_path, graded_pairs, tmp_path):
        def run(resume: bool) -> list[float]:
            model = SentenceTransformer(str(tiny_model_path), device="cpu")
            loss = BiXSELoss(model)
            seen = []
            forward = loss.forward
            loss.forward = lambda *a: (seen.append(loss.logit_bias.item()), forward(*a))[1]
            trainer = stock(model, graded_pairs.to_dataset(), tmp_path, loss, SaveRelevanceHead(loss))
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if resume else None)
            return [*seen, loss.logit_bias.item()]

        whole = run(resume=False)
        prior = RelevanceHead.load(tmp_path / "checkpoint-4").trained_prior
        assert run(resume=True) == pytest.approx(whole[2:], abs=1e-6)
        assert RelevanceHead.load(tmp_path / "checkpoint-4").trained_prior == pytest.approx(prior, abs=1e-6)


def test_the_example_of_the_documentation(tiny_model_path, actions, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?SentenceTransformerTrainer.*?)```", (DOCS / "losses.md").read_text(), re.S)
    (tmp_path / "pairs.jsonl").write_bytes((actions.parent / "pairs.jsonl").read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert name in code
    exec(textwrap.dedent(code).replace(name, str(tiny_model_path)), names)
    assert scale_and_bias(tmp_path / "my-model") == own(names["loss"])


class TestFlatRows:
    @pytest.mark.parametrize("kind", [MarginMSELoss, pytest.param(DistillKLLoss, marks=pytest.mark.slow)])
    def test_are_refused_unless_each_row_has_several_documents(self, model, graded_pairs, tmp_path, kind):
        flat_rows = graded_pairs.to_dataset().select(range(0, 60, 5))
        with pytest.raises(InputError, match=rf"{kind.__name__}.*a column for each document"):
            stock(model, flat_rows, tmp_path, kind(model), **PLAIN).train()
        groups = [graded_pairs.groups()[number] for number in range(12)]
        columns = {f"document_{number}": [group.documents[number] for group in groups] for number in range(3)}
        labels = [list(group.relevance[:3]) for group in groups]
        wide = Dataset.from_dict({"query": [group.query for group in groups], **columns, "label": labels})
        trainer = stock(model, wide, tmp_path, kind(model), **PLAIN)
        trainer.train()
        assert all(entry["loss"] > 0 for entry in trainer.state.log_history if "loss" in entry)

    def test_a_batch_without_a_pair_after_one_with_is_no_error(self, tiny_model):
        loss = MarginMSELoss(tiny_model)
        two = [tiny_model.preprocess(texts) for texts in (["copy", "copy"], ["copy a file", "sort a list"])]
        one = [tiny_model.preprocess(texts) for texts in (["copy"], ["copy a file"])]
        with pytest.raises(InputError):
            loss(one, torch.tensor([1.0]))
        assert loss(two, torch.tensor([1.0, 0.0])) > 0
        assert loss(one, torch.tensor([1.0])) == 0


class TestWrappers:
    """Losses of sentence-transformers around a loss of ours, which replace the encoder's `forward` in their calls."""

    QUERIES = ("copy a file", "sort a list", "open the name", "move in the tree")
    DOCUMENTS = ("copy the file", "sort the list or the tree", "open", "a path to move")

    def loss_at(self, states, mask, dimensions) -> torch.Tensor:
        """BiXSE with scale 10 and bias -3 of mean-pooled states (8, T, 32): 4 queries, then 4 documents."""
        pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        pooled = torch.nn.functional.normalize(pooled[:, :dimensions], dim=1)
        logits = 10 * pooled[:4] @ pooled[4:].T - 3
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.eye(4) * 0.75, reduction="sum") / 4

    @pytest.mark.parametrize("dimensions", [[32], [32, 16]], ids=["layers", "layers and dimensions"])
    def test_every_layer_and_dimension_counts(self, model, dimensions):
        set_dropout(model, 0.0)
        loss = BiXSELoss(model, bias=-3.0, mini_batch_size=2)
        options = {"n_layers_per_step": -1, "kl_temperature": 0.0}
        wrapped = losses.AdaptiveLayerLoss(model, loss, **options)
        if len(dimensions) > 1:
            wrapped = losses.Matryoshka2dLoss(model, loss, dimensions, n_dims_per_step=-1, **options)
        columns = [model.preprocess(list(texts)) for texts in (self.QUERIES, self.DOCUMENTS)]
        computed = wrapped(columns, torch.full((4,), 0.75))
        features = model.preprocess([*self.QUERIES, *self.DOCUMENTS])
        ids, mask = features["input_ids"], features["attention_mask"]
        encoder = model[0].auto_model
        states = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        *earlier, last = [sum(self.loss_at(state, mask, size) for size in dimensions) for state in states]
        expected = last + sum(earlier) / len(earlier)
        assert computed.item() == pytest.approx(expected.item(), rel=1e-5)
        table = encoder.embeddings.word_embeddings.weight
        gradient, wanted = (torch.autograd.grad(value, table)[0] for value in (computed, expected))
        assert torch.allclose(gradient, wanted, atol=1e-5)

    @pytest.mark.parametrize("wrapper", [losses.AdaptiveLayerLoss, losses.Matryoshka2dLoss, losses.MatryoshkaLoss])
    def test_the_stock_trainer_trains_with_them_and_gradient_cache_is_refused(
        self, tiny_model, graded_pairs, tmp_path, wrapper
    ):
        dimensions = [] if wrapper is losses.AdaptiveLayerLoss else [[32, 16]]
        plain, cached = (
            stock(tiny_model, graded_pairs.to_dataset(), tmp_path, wrapper(tiny_model, loss, *dimensions), **PLAIN)
            for loss in (BiXSELoss(tiny_model), BiXSELoss(tiny_model, gradient_cache=True))
        )
        plain.train()
        figures = [entry for entry in plain.state.log_history if "loss" in entry]
        assert all(entry["loss"] > 0 and entry["grad_norm"] > 0 for entry in figures)
        with pytest.raises(InputError, match="gradient_cache: "):
            cached.train()


@pytest.mark.parametrize("load", [partial(CrossEncoder, device="cpu"), AutoModel.from_pretrained, str])
def test_models_that_embed_no_texts_are_refused(tiny_model_path, load):
    with pytest.raises(ModelError, match="expected a SentenceTransformer"):
        BiXSELoss(load(str(tiny_model_path.parent / "backbone")))


def test_a_column_named_relevance_is_refused(tiny_model, graded_pairs, tmp_path):
    dataset = graded_pairs.to_dataset().rename_column("label", "relevance")
    with pytest.raises(InputError, match="as a text") as caught:
        stock(tiny_model, dataset, tmp_path, BiXSELoss(tiny_model)).train()
    assert "label" in caught.value.fix
