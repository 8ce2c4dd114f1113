"""A judge where a CrossEncoder is expected: the same shapes, the same ranking, NaN where there is no grade."""

import math

import numpy as np
import pytest

from bixse.errors import InputError
from bixse.grading.judge import Answer
from bixse.grading.rubrics import load_rubric
from bixse.grading.scorer import JudgeScorer
from helpers.scripted_judge import ScriptedJudge
from helpers.tiny_judges import questions_of, save_judge, small_rubric, some_texts


def graded(grade):
    return Answer("graded", "verbal", (), grade, grade, grade)


def by_words(question):
    """Grade 0 to 3: shared words, one at most 3; documents with 'filtered' are not graded."""
    if "filtered" in question.document:
        return Answer("filtered", "verbal")
    return graded(float(min(3, len(set(question.query.split()) & set(question.document.split())))))


@pytest.fixture
def scorer():
    return JudgeScorer(ScriptedJudge(rule=by_words, ahead=3), load_rubric("trec-dl-0-3"))


class TestRefused:
    @pytest.mark.parametrize(
        "sentences",
        [
            "copy a file",
            ["copy a file", "shutil"],
            [("copy a file",)],
            [("copy", "shutil", "os")],
            [("copy", None)],
            [("copy", "shutil"), 3],
        ],
    )
    def test_what_is_no_list_of_pairs(self, scorer, sentences):
        with pytest.raises(InputError, match=r"expected a (list of pairs|pair of texts)"):
            scorer.predict(sentences)

    def test_arguments_that_a_judge_does_not_have(self, scorer):
        with pytest.raises(InputError, match="got activation_fn"):
            scorer.predict([("a", "b")], activation_fn=None)


class TestPredict:
    def test_relevance_in_the_order_of_the_pairs(self, scorer):
        """The judge answers out of order."""
        pairs = [("copy a file", "copy"), ("copy a file", "x"), ("copy a file", "copy a file"), ["copy", "copy"]]
        found = scorer.predict(pairs, batch_size=2, show_progress_bar=False)
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.dtype) == ((4,), np.float32)
        assert found == pytest.approx([1 / 3, 0.0, 1.0, 1 / 3])

    def test_no_grade_is_nan_and_never_0(self, scorer):
        found = scorer.predict([("a b", "a filtered"), ("a b", "c")])
        assert math.isnan(found[0])
        assert found[1] == 0.0

    def test_a_list_where_asked_and_nothing_for_nothing(self, scorer):
        assert scorer.predict([("a", "a")], convert_to_numpy=False) == pytest.approx([1 / 3])
        assert scorer.predict([]).shape == (0,)

    def test_the_same_pair_twice(self, scorer):
        assert scorer.predict([("a", "a"), ("a", "a")]) == pytest.approx([1 / 3, 1 / 3])

    def test_orders_are_averaged_and_one_without_grade_leaves_none(self):
        def by_order(question):
            if "half" in question.document and question.variant == "query-document":
                return Answer("refused", "verbal")
            return graded(3.0 if question.variant == "query-document" else 0.0)

        scorer = JudgeScorer(ScriptedJudge(rule=by_order), load_rubric("relatedness-1-5"))
        found = scorer.predict([("a", "whole"), ("a", "half")])
        assert found[0] == pytest.approx(0.5)
        assert math.isnan(found[1])

    def test_judges_without_rubric_are_asked_once(self):
        judge = ScriptedJudge(rule=by_words)
        assert JudgeScorer(judge).predict([("a", "a")]) == pytest.approx([1 / 3])
        assert [(question.variant, question.messages) for question in judge.asked] == [("", ())]


class TestRank:
    DOCUMENTS = ("x", "copy a", "filtered copy a file", "copy a file", "y")

    def test_as_a_cross_encoder_ranks(self, scorer):
        found = scorer.rank("copy a file", self.DOCUMENTS, top_k=2, return_documents=True)
        assert found == [
            {"corpus_id": 3, "score": pytest.approx(1.0), "text": "copy a file"},
            {"corpus_id": 1, "score": pytest.approx(2 / 3), "text": "copy a"},
        ]

    def test_equal_ones_keep_their_order_and_those_without_grade_stand_last(self, scorer):
        found = scorer.rank("copy a file", self.DOCUMENTS)
        assert [entry["corpus_id"] for entry in found] == [3, 1, 0, 4, 2]
        assert math.isnan(found[-1]["score"])
        assert all(set(entry) == {"corpus_id", "score"} for entry in found)

    def test_the_shape_is_that_of_sentence_transformers(self, scorer, tmp_path, tiny_model_path):
        from sentence_transformers import CrossEncoder
        from test_cross_encoder_judge import save_reranker

        theirs = CrossEncoder(str(save_reranker(tmp_path, tiny_model_path)), device="cpu")
        expected = theirs.rank("copy a file", list(self.DOCUMENTS), top_k=3, return_documents=True)
        found = scorer.rank("copy a file", list(self.DOCUMENTS), top_k=3, return_documents=True)
        assert [set(entry) for entry in found] == [set(entry) for entry in expected]
        assert [type(value) for value in found[0].values()] == [type(value) for value in expected[0].values()]


def test_with_a_local_judge(tmp_path):
    """Grades through the scorer are the judge's own."""
    from bixse.grading.local.local_judge import LocalJudge

    rubric = small_rubric()
    judge = LocalJudge(save_judge(tmp_path), rubric, "cpu", min_mass=0.0)
    texts = some_texts(2, 3)
    scorer = JudgeScorer(judge, rubric)
    found = scorer.predict(texts)
    grades = {question.document_id: answer.grade for question, answer in judge.answers(questions_of(rubric, texts))}
    assert found == pytest.approx([grades[f"d{number}"] / 2 for number in range(len(texts))], abs=1e-5)
    best = scorer.rank(texts[0][0], [document for query, document in texts if query == texts[0][0]])
    assert best[0]["score"] == max(entry["score"] for entry in best)
