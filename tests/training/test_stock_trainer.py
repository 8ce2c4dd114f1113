"""sentence-transformers' own trainer with the losses of bixse: what it saves, and what it is refused."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch
from sentence_transformers import (
    CrossEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import AutoModel

from bixse import (
    BiXSELoss,
    InfoNCELoss,
    SaveRelevanceHead,
    build_encoder,
    load_relevance_model,
    save_relevance_head,
)
from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import InputError, ModelError

DOCS = Path(__file__).parents[2] / "docs"


def stock(model, dataset, folder, loss, *callbacks, **changes) -> SentenceTransformerTrainer:
    settings = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "learning_rate_mapping": {r"^logit_bias$": 0.1},
        "save_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    arguments = SentenceTransformerTrainingArguments(str(folder), **settings)
    return SentenceTransformerTrainer(model, arguments, train_dataset=dataset, loss=loss, callbacks=list(callbacks))


@pytest.fixture(params=["SentenceTransformer", "RelevanceModel"])
def model(request, tiny_model_path):
    if request.param == "RelevanceModel":
        return build_encoder(tiny_model_path, device="cpu")
    return SentenceTransformer(str(tiny_model_path), device="cpu")


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
        assert probabilities == pytest.approx(1 / (1 + torch.exp(-torch.tensor(
            own(loss)[0] * vectors[1:] @ vectors[0] + own(loss)[1]))).numpy(), abs=1e-5)  # fmt: skip

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

    def test_the_best_checkpoints_head_comes_with_its_weights(self, model, graded_pairs, tmp_path):
        class Scripted(BaseEvaluator):
            scores = iter([0.9, 0.1])
            primary_metric = "score"

            def __call__(self, *args, **kwargs):
                return {"score": next(self.scores)}

        loss = BiXSELoss(model)
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path), max_steps=4, save_steps=2, eval_steps=2, eval_strategy="steps", learning_rate=1e-3,
            learning_rate_mapping={r"^logit_bias$": 0.1}, load_best_model_at_end=True, greater_is_better=True,
            metric_for_best_model="eval_score", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model, arguments, train_dataset=graded_pairs.to_dataset(), loss=loss, evaluator=Scripted(),
            callbacks=[SaveRelevanceHead(loss)],
        )  # fmt: skip
        trainer.train()
        trainer.save_model()
        assert trainer.state.best_global_step == 2
        assert scale_and_bias(tmp_path) == scale_and_bias(tmp_path / "checkpoint-2") == own(loss)
        assert scale_and_bias(tmp_path) != scale_and_bias(tmp_path / "checkpoint-4")

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

    def test_what_cannot_be_kept_is_refused(self, model, graded_pairs, tmp_path):
        loss = InfoNCELoss(model)
        with pytest.raises(InputError, match=r"InfoNCELoss.*fix:"):
            save_relevance_head(loss, tmp_path)
        with pytest.raises(InputError, match=r"InfoNCELoss.*fix:"):
            stock(
                model, graded_pairs.to_dataset(), tmp_path, loss, SaveRelevanceHead(loss), learning_rate_mapping={}
            ).train()
        with pytest.raises(InputError, match=r"seen no batch.*fix:"):
            save_relevance_head(BiXSELoss(model), tmp_path)
        assert not (tmp_path / HEAD_FILE).exists()


def test_the_example_of_the_documentation(tiny_model_path, training_files, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?SentenceTransformerTrainer.*?)```", (DOCS / "losses.md").read_text(), re.S)
    (tmp_path / "pairs.jsonl").write_bytes((training_files / "pairs.jsonl").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    names: dict = {}
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert name in code
    exec(textwrap.dedent(code).replace(name, str(tiny_model_path)), names)
    assert scale_and_bias(tmp_path / "my-model") == own(names["loss"])


class TestRefused:
    @pytest.mark.parametrize("kind", ["CrossEncoder", "transformers", "name"])
    def test_models_that_embed_no_texts(self, tiny_model_path, kind):
        backbone = tiny_model_path.parent / "backbone"
        models = {
            "CrossEncoder": lambda: CrossEncoder(str(backbone), device="cpu"),
            "transformers": lambda: AutoModel.from_pretrained(backbone),
            "name": lambda: "demo",
        }
        with pytest.raises(ModelError, match=r"got .*; expected a SentenceTransformer.*; fix: "):
            BiXSELoss(models[kind]())

    def test_a_column_named_relevance(self, model, graded_pairs, tmp_path):
        dataset = graded_pairs.to_dataset().rename_column("label", "relevance")
        loss = BiXSELoss(model)
        with pytest.raises(InputError, match=r"query, document, relevance; expected .*label.*fix:"):
            stock(model, dataset, tmp_path, loss, SaveRelevanceHead(loss)).train()
        if isinstance(model, RelevanceModel):
            with pytest.raises(InputError, match=r"as a text; .*fix: .*label"):
                stock(model, dataset, tmp_path, loss).train()
