import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from bixse.encoders.loading.precision import use_precision
from bixse.errors import InputError, ModelError
from bixse.judging.judge import Question
from bixse.judging.judges import cross_encoder_judge
from bixse.judging.judges.cross_encoder_judge import CrossEncoderJudge

TEXTS = [
    ("copy a file", "copy the file"),
    ("copy a file", "sleep and wait"),
    ("sort a list", "sort the list in the heap"),
    ("sort a list", "how do i read a line of text"),
]
QUESTIONS = [Question(f"q{i}", f"d{i}", *texts) for i, texts in enumerate(TEXTS)]


def save_reranker(folder, tiny_model_path, labels=1, gain=1.0, **config):
    """A random reranker over the words of the tiny encoder, its scores about -3 to 3."""
    AutoTokenizer.from_pretrained(tiny_model_path, model_max_length=32).save_pretrained(folder)
    settings = BertConfig.from_pretrained(tiny_model_path)
    settings.update({"num_labels": labels, **config})
    torch.manual_seed(0)
    model = BertForSequenceClassification(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model.classifier.weight.mul_(gain)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reranker(tmp_path_factory, tiny_model_path):
    return save_reranker(tmp_path_factory.mktemp("reranker"), tiny_model_path)


@pytest.fixture(scope="module")
def raw(reranker):
    """Logits by transformers alone, one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(reranker)
    model = AutoModelForSequenceClassification.from_pretrained(reranker).eval()
    with torch.inference_mode():
        found = [float(model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0]) for pair in TEXTS]
    assert max(found) - min(found) > 0.5
    return np.array(found)


def grades(judge, questions=QUESTIONS):
    found = {question.document_id: answer for question, answer in judge.answers(iter(questions))}
    return [found[question.document_id].grade for question in questions]


class TestRefused:
    def test_a_model_that_is_no_reranker(self, tmp_path, tiny_model_path):
        with pytest.raises(ModelError, match="expected a CrossEncoder"):
            CrossEncoderJudge(tmp_path / "none")
        with pytest.raises(ModelError, match=r"architecture BertModel; expected one with a trained head"):
            CrossEncoderJudge(tiny_model_path)
        with pytest.raises(InputError, match="got 3 scores per pair; expected one"):
            CrossEncoderJudge(save_reranker(tmp_path / "several", tiny_model_path, labels=3))
        with pytest.raises(InputError, match=r"for 3 different pairs; expected scores that differ"):
            CrossEncoderJudge(save_reranker(tmp_path / "same", tiny_model_path, gain=0.0))

    def test_equal_scores_of_many_documents(self, reranker, monkeypatch):
        judge = CrossEncoderJudge(reranker, device="cpu")
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.full(len(pairs), 1.25))
        many = [Question("q", str(i), "copy", f"file {i}") for i in range(20)]
        with pytest.raises(InputError, match=r"got the score 1\.25 for 20 different pairs"):
            list(judge.answers(many))
        same_text = [Question("q", str(i), "copy", "file") for i in range(20)]
        assert len(list(judge.answers(same_text))) == 20

    @pytest.mark.parametrize("score_map", ["minmax", "binary", "sigmod", "platt:-1,0"])
    def test_a_map_that_is_none(self, reranker, score_map):
        with pytest.raises(InputError, match="fix"):
            CrossEncoderJudge(reranker, score_map)


@pytest.mark.precision("float32")
class TestGrades:
    @pytest.mark.parametrize(
        "config",
        [
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        ],
    )
    def test_the_activation_a_model_brings_along_changes_nothing(self, tmp_path, tiny_model_path, raw, config):
        judge = CrossEncoderJudge(save_reranker(tmp_path, tiny_model_path, **config), device="cpu")
        assert grades(judge) == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-5)
        (_, answer), *_ = judge.answers(QUESTIONS)
        assert (answer.status, answer.mode, sum(answer.probabilities)) == ("graded", "score", pytest.approx(1))
        assert answer.low == answer.high == answer.grade == pytest.approx(answer.probabilities[1])
        assert float(answer.text) == pytest.approx(raw[0], abs=1e-4)
        assert answer.usage.prompt == judge.count_tokens(QUESTIONS)[0] == 3 + 3 + 3

    def test_a_fitted_map_in_batches_and_windows_of_any_size(self, reranker, raw, monkeypatch):
        monkeypatch.setattr(cross_encoder_judge, "WINDOW", 3)
        expected = 1 / (1 + np.exp(-(0.5 * raw - 1.0)))
        for batch_size in (1, 32):
            monkeypatch.setattr(cross_encoder_judge, "BATCH_SIZE", batch_size)
            judge = CrossEncoderJudge(reranker, "platt:0.5,-1", "cpu")
            assert grades(judge) == pytest.approx(expected, abs=1e-5)

    def test_scores_that_the_map_does_not_take_have_no_grade(self, reranker, monkeypatch):
        judge = CrossEncoderJudge(reranker, "prob", "cpu")
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.array([np.nan, 1.0, -np.inf, 1.5]))
        statuses = [answer.status for _, answer in judge.answers(QUESTIONS)]
        assert statuses == ["failed", "graded", "failed", "off-scale"]

    def test_a_pair_longer_than_the_model_reads_is_too_long_and_never_cut(self, reranker):
        judge = CrossEncoderJudge(reranker, device="cpu")
        long = Question("q", "long", "copy", "file " * 40)
        found = {question.document_id: answer for question, answer in judge.answers([*QUESTIONS, long])}
        assert found["long"].status == "too-long"
        assert "reads 32" in found["long"].detail
        assert found["d0"].status == "graded"
        assert [answer.status for _, answer in judge.answers([long])] == ["too-long"]

    @pytest.mark.parametrize(("score_map", "warned"), [("sigmoid", True), ("prob", False), ("platt:4,-2", False)])
    def test_scores_that_are_probabilities_already_are_said(self, reranker, monkeypatch, score_map, warned):
        monkeypatch.setattr(cross_encoder_judge, "WINDOW", 20)
        judge = CrossEncoderJudge(reranker, score_map, "cpu")
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.linspace(0.01, 0.99, len(pairs)))
        many = [Question("q", str(i), "copy", f"file {i}") for i in range(40)]
        assert judge.warnings == []
        assert len(list(judge.answers(many))) == 40
        assert [("use the map 'prob'" in warning) for warning in judge.warnings] == [True] * warned


def test_it_computes_in_the_precision_that_is_set(reranker):
    found = {}
    for precision in ("float32", "bfloat16"):
        with use_precision(precision):
            judge = CrossEncoderJudge(reranker, device="cpu")
            assert CrossEncoderJudge(reranker, device="cpu", dtype=precision).identity == judge.identity
        assert judge.identity["dtype"] == precision
        found[precision] = grades(judge)
    assert found["float32"] != found["bfloat16"]


def test_identity_follows_weights_and_map(reranker, tmp_path, tiny_model_path):
    base = CrossEncoderJudge(reranker, device="cpu").identity
    moved = shutil.copytree(reranker, tmp_path / "moved" / reranker.name)
    assert CrossEncoderJudge(moved, device="cpu").identity == base
    assert CrossEncoderJudge(reranker, "platt:0.5,-1", "cpu").identity["map"] != base["map"]
    other = save_reranker(tmp_path / reranker.name, tiny_model_path, gain=2.0)
    assert CrossEncoderJudge(other, device="cpu").identity["revision"] != base["revision"]
