"""An embedding model as a judge: its head's probabilities, a stated map of cosines, and what is refused."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bixse.encoders.head import RelevanceHead
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import InputError, ModelError
from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Question
from bixse.judging.judges.score_judges import EncoderJudge
from bixse.judging.open_judge import open_judge, reads_rubric
from bixse.judging.rubrics import load_rubric

TEXTS = [("copy a file", "copy the file"), ("copy a file", "sleep and wait"), ("sort a list", "sort the list")]
QUESTIONS = [Question(f"q{i}", f"d{i}", *texts) for i, texts in enumerate(TEXTS)]


@pytest.fixture
def with_head(tiny_model_path, tmp_path):
    model = RelevanceModel(str(tiny_model_path), device="cpu")
    model.head = RelevanceHead(12.0, -5.0, slope=0.8, intercept=0.3)
    model.prompts = {"query": "find ", "document": ""}
    model.save_pretrained(str(tmp_path / "trained"))
    return tmp_path / "trained"


def graded(judge, questions=QUESTIONS):
    return [answer for _, answer in judge.answers(questions)]


def cosines(folder):
    model = SentenceTransformer(str(folder), device="cpu")
    queries = model.encode_query([query for query, _ in TEXTS], normalize_embeddings=True)
    documents = model.encode_document([document for _, document in TEXTS], normalize_embeddings=True)
    return (queries.astype(np.float64) * documents).sum(1)


def test_a_model_without_a_head_needs_a_map(tiny_model_path):
    with pytest.raises(InputError, match="score-map"):
        EncoderJudge(tiny_model_path, device="cpu")


def test_what_is_refused(tiny_model_path, tmp_path):
    with pytest.raises(ModelError):
        EncoderJudge(tmp_path / "none", "logit")
    with pytest.raises(InputError, match="map"):
        EncoderJudge(tiny_model_path, "binary")
    with pytest.raises(InputError, match="float16"):
        EncoderJudge(tiny_model_path, "platt:20,-10", dtype="float16")


@pytest.mark.precision("float32")
def test_the_grade_is_the_probability_of_the_head(with_head):
    judge = open_judge([f"encoder:{with_head}"], load_rubric("trec-dl-0-3"), JudgeOptions(device="cpu"))
    expected = 1 / (1 + np.exp(-(0.8 * (12.0 * cosines(with_head) - 5.0) + 0.3)))
    assert [answer.grade for answer in graded(judge)] == pytest.approx(expected, abs=1e-5)
    assert not reads_rubric([f"encoder:{with_head}"])


@pytest.mark.precision("float32")
def test_a_map_of_cosines(tiny_model_path):
    judge = EncoderJudge(tiny_model_path, "platt:20,-10", "cpu")
    expected = 1 / (1 + np.exp(-(20.0 * cosines(tiny_model_path) - 10.0)))
    assert [answer.grade for answer in graded(judge)] == pytest.approx(expected, abs=1e-5)


def test_a_text_longer_than_the_model_reads_is_too_long_and_never_cut(with_head):
    judge = EncoderJudge(with_head, device="cpu")
    limit = RelevanceModel(str(with_head)).max_seq_length
    fits, long = "file " * (limit - 2), "file " * (limit - 1)
    texts = [("copy", fits), ("copy", long), (fits, "copy")]  # the prompt makes the last one a token too long
    answers = graded(judge, [Question("q", str(i), *pair) for i, pair in enumerate(texts)])
    assert [answer.status for answer in answers] == ["graded", "too-long", "too-long"]
    assert answers[0].usage.prompt == limit


def test_another_head_or_map_is_another_judge(with_head):
    first = EncoderJudge(with_head, device="cpu").identity
    assert EncoderJudge(with_head, "platt:1,1", "cpu").identity != first
    RelevanceHead(10.0, -5.0).save(with_head)
    assert EncoderJudge(with_head, device="cpu").identity != first
