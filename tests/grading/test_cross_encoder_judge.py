"""A reranker as a judge: one sigmoid and no more, fitted maps, and everything that is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from bixse.encoders.loading.precision import use_precision
from bixse.errors import InputError, ModelError
from bixse.grading.judge import Question
from bixse.grading.local.cross_encoder_judge import CrossEncoderJudge

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
    settings.num_labels = labels
    torch.manual_seed(0)
    model = BertForSequenceClassification(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model.classifier.weight.mul_(gain)
    model.save_pretrained(folder)
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
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
    def test_a_model_that_is_not_there(self, tmp_path):
        with pytest.raises(ModelError, match="expected a CrossEncoder"):
            CrossEncoderJudge(tmp_path / "none")

    def test_an_encoder_whose_head_would_be_random(self, tiny_model_path):
        with pytest.raises(ModelError, match=r"architecture BertModel; expected one with a trained head"):
            CrossEncoderJudge(tiny_model_path)

    def test_a_classifier_of_several_labels(self, tmp_path, tiny_model_path):
        with pytest.raises(InputError, match="got 3 scores per pair; expected one"):
            CrossEncoderJudge(save_reranker(tmp_path, tiny_model_path, labels=3))

    def test_a_model_that_gives_every_pair_the_same(self, tmp_path, tiny_model_path):
        with pytest.raises(InputError, match=r"for three different pairs; expected scores that differ"):
            CrossEncoderJudge(save_reranker(tmp_path, tiny_model_path, gain=0.0))

    def test_equal_scores_of_many_documents(self, reranker, monkeypatch):
        judge = CrossEncoderJudge(reranker, device="cpu")
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.full(len(pairs), 1.25))
        many = [Question("q", str(i), "copy", f"file {i}") for i in range(20)]
        with pytest.raises(InputError, match=r"got the score 1\.25 for all of 20 pairs"):
            list(judge.answers(many))
        same_text = [Question("q", str(i), "copy", "file") for i in range(20)]
        assert len(list(judge.answers(same_text))) == 20

    @pytest.mark.parametrize("activation", ["minmax", "binary", "sigmod", "platt:-1,0"])
    def test_an_activation_that_is_none(self, reranker, activation):
        with pytest.raises(InputError, match="fix"):
            CrossEncoderJudge(reranker, activation)

    @pytest.mark.parametrize(
        "content",
        [
            "no json",
            '{"kind": "spline"}',
            '{"kind": "platt", "slope": -1.0}',
            '{"kind": "platt", "slope": NaN}',
            '{"kind": "isotonic", "knots": [[0, 0.5]]}',
            '{"kind": "isotonic", "knots": [[0, 0.5], [0, 0.6]]}',
            '{"kind": "isotonic", "knots": [[0, 0.5], [1, 0.4]]}',
            '{"kind": "isotonic", "knots": [[0, 0.5], [1, 1.4]]}',
            '{"kind": "platt", "slope": 1.0, "intercept": 0.0, "scale": [0, 3]}',
        ],
    )
    def test_a_file_that_holds_no_map(self, reranker, tmp_path, content):
        (tmp_path / "map.json").write_text(content)
        with pytest.raises(InputError, match=r"map\.json: .*expected a map of raw scores; fix: write"):
            CrossEncoderJudge(reranker, tmp_path / "map.json")

    @pytest.mark.parametrize("setting", ["batch_size", "window"])
    def test_a_number_below_one(self, reranker, setting):
        with pytest.raises(InputError, match=f"{setting}: got 0"):
            CrossEncoderJudge(reranker, **{setting: 0})


@pytest.mark.precision("float32")
class TestGrades:
    @pytest.mark.parametrize("batch_size", [1, 32])
    def test_they_are_one_sigmoid_of_the_raw_score(self, reranker, raw, batch_size):
        judge = CrossEncoderJudge(reranker, device="cpu", batch_size=batch_size, window=3)
        assert grades(judge) == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-5)

    @pytest.mark.parametrize(
        "config",
        [
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        ],
    )
    def test_the_activation_a_model_brings_along_changes_nothing(self, tmp_path, tiny_model_path, raw, config):
        """Two sigmoids would put every relevance between 0.5 and 0.73."""
        judge = CrossEncoderJudge(save_reranker(tmp_path, tiny_model_path, **config), device="cpu")
        assert grades(judge) == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-5)

    def test_an_answer_says_how_it_was_read(self, reranker, raw):
        judge = CrossEncoderJudge(reranker, device="cpu")
        (question, answer), *_ = judge.answers(QUESTIONS)
        z = 1 / (1 + np.exp(-raw[0]))
        assert (answer.status, answer.mode, question.document_id) == ("graded", "score", "d0")
        assert answer.probabilities == pytest.approx((1 - z, z), abs=1e-5)
        assert answer.low == answer.high == answer.grade
        assert float(answer.text) == pytest.approx(raw[0], abs=1e-4)
        assert (judge.scale.minimum, judge.scale.maximum) == (0.0, 1.0)
        assert answer.usage.prompt == judge.count_tokens(QUESTIONS)[0] == 3 + 3 + 3

    def test_fitted_maps(self, reranker, raw, tmp_path):
        low, high = float(raw.min()), float(raw.max())
        platt, isotonic = tmp_path / "platt.json", tmp_path / "isotonic.json"
        platt.write_text(json.dumps({"kind": "platt", "slope": 0.5, "intercept": -1.0}))
        isotonic.write_text(json.dumps({"kind": "isotonic", "knots": [[low, 0.1], [high, 0.9]]}))
        expected = 1 / (1 + np.exp(-(0.5 * raw - 1.0)))
        assert grades(CrossEncoderJudge(reranker, platt, "cpu")) == pytest.approx(expected, abs=1e-5)
        assert grades(CrossEncoderJudge(reranker, "platt:0.5,-1", "cpu")) == pytest.approx(expected, abs=1e-5)
        line = 0.1 + 0.8 * (raw - low) / (high - low)
        assert grades(CrossEncoderJudge(reranker, isotonic, "cpu")) == pytest.approx(line, abs=1e-5)

    def test_scores_outside_the_range_of_the_map_are_off_scale(self, reranker, raw):
        judge = CrossEncoderJudge(reranker, "prob", "cpu")
        found = [answer for _, answer in judge.answers(QUESTIONS)]
        inside = [0 <= score <= 1 for score in raw]
        assert [answer.status == "graded" for answer in found] == inside
        assert not all(inside)
        assert {answer.status for answer in found} <= {"graded", "off-scale"}

    def test_a_pair_longer_than_the_model_reads_is_too_long_and_never_cut(self, reranker):
        judge = CrossEncoderJudge(reranker, device="cpu")
        long = Question("q", "long", "copy", "file " * 40)
        found = {question.document_id: answer for question, answer in judge.answers([*QUESTIONS, long])}
        assert found["long"].status == "too-long"
        assert "reads 32" in found["long"].detail
        assert found["d0"].status == "graded"
        only_long = list(judge.answers([long]))
        assert [answer.status for _, answer in only_long] == ["too-long"]

    @pytest.mark.parametrize(("activation", "warned"), [("sigmoid", True), ("prob", False), ("platt:4,-2", False)])
    def test_scores_that_are_probabilities_already_are_said(self, reranker, monkeypatch, activation, warned):
        judge = CrossEncoderJudge(reranker, activation, "cpu", window=20)
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.linspace(0.01, 0.99, len(pairs)))
        many = [Question("q", str(i), "copy", f"file {i}") for i in range(40)]
        assert judge.warnings == []
        assert len(list(judge.answers(many))) == 40
        assert [("use the map 'prob'" in warning) for warning in judge.warnings] == [True] * warned

    def test_a_score_that_is_no_number_fails(self, reranker, monkeypatch):
        judge = CrossEncoderJudge(reranker, device="cpu")
        monkeypatch.setattr(judge, "_scores", lambda pairs: np.array([np.nan, 1.0, -np.inf, 0.0]))
        assert [answer.status for _, answer in judge.answers(QUESTIONS)] == ["failed", "graded", "failed", "graded"]


def test_it_computes_in_the_precision_that_is_set(reranker):
    found = {}
    for precision in ("float32", "bfloat16"):
        with use_precision(precision):
            judge = CrossEncoderJudge(reranker, device="cpu")
            assert CrossEncoderJudge(reranker, device="cpu", dtype=precision).identity == judge.identity
        assert judge.identity["dtype"] == precision
        found[precision] = grades(judge)
    assert found["float32"] != found["bfloat16"]
    assert CrossEncoderJudge(reranker, device="cpu", dtype="float16").identity["dtype"] == "float16"
    with pytest.raises(InputError, match="dtype: got 'float64'; expected one of auto, float32"):
        CrossEncoderJudge(reranker, device="cpu", dtype="float64")


def test_identity_follows_weights_and_map(reranker, tmp_path, tiny_model_path):
    base = CrossEncoderJudge(reranker, device="cpu").identity
    moved = shutil.copytree(reranker, tmp_path / "moved" / reranker.name)
    assert CrossEncoderJudge(moved, device="cpu", batch_size=2).identity == base
    assert CrossEncoderJudge(reranker, "platt:0.5,-1", "cpu").identity["map"] != base["map"]
    other = save_reranker(tmp_path / reranker.name, tiny_model_path, gain=2.0)
    assert CrossEncoderJudge(other, device="cpu").identity["revision"] != base["revision"]
    assert QUESTIONS[0].key(base) != QUESTIONS[0].key({**base, "mode": "other"})
