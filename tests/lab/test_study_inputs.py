"""The inputs of a study: the static student, and the transforms of an arm's pairs."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bixse.data.graded_pairs import GradedPairs
from bixse.encoders.embedding import identical_texts, number_of_texts, tokens_without_padding
from bixse.errors import InputError, ModelError
from bixse.lab.static_student import save_static_student
from bixse.lab.studies.study_inputs import transformed

QUERIES, DOCUMENTS = 40, 10
"""Document d of a query has relevance d / 10, and query 0 has only two documents."""


def test_the_student_knows_words_and_frequent_tokens_have_little_weight(student):
    model = SentenceTransformer(str(student))
    cat, kitten, engine = model.encode(["a cat", "the kitten", "an engine"], normalize_embeddings=True)
    assert cat.shape == (16,)
    assert cat @ kitten > cat @ engine
    the, archive = np.linalg.norm(model.encode(["the", "archive"]), axis=1)
    assert the < archive / 3


def test_tokens_of_texts_in_one_row_are_separated(student):
    features = SentenceTransformer(str(student)).preprocess(["copy a file", "copy", "copy a file"])
    assert number_of_texts(features) == 3
    assert tokens_without_padding(features).shape == (3, 3)
    first, index = identical_texts(features)
    assert first.tolist() == [0, 1] and index.tolist() == [0, 1, 0]
    empty = {"input_ids": torch.tensor([5, 6]), "offsets": torch.tensor([0, 0, 2])}
    assert tokens_without_padding(empty).tolist() == [[-1, -1], [5, 6], [-1, -1]]


def test_a_model_without_a_table_is_refused(student, tmp_path):
    with pytest.raises(ModelError, match="expected a transformers backbone"):
        save_static_student(tmp_path / "again", model=str(student))


@pytest.fixture(scope="module")
def pairs():
    return GradedPairs.from_rows(
        {"query_id": f"q{q}", "query": f"query {q}", "document_id": f"d{d}", "document": f"text {d}",
         "relevance": d / 10}
        for q in range(QUERIES) for d in range(2 if q == 0 else DOCUMENTS)
    )  # fmt: skip


def labels_of(pairs):
    return {
        (group.query_id, document): float(relevance)
        for group in pairs.groups()
        for document, relevance in zip(group.document_ids, group.relevance, strict=True)
    }


def test_labels_per_query_draw_documents_of_each_query(pairs):
    drawn = transformed(pairs, {"labels_per_query": 4}, seed=0)
    assert sorted(len(group.documents) for group in drawn.groups()) == [2] + [4] * (QUERIES - 1)
    assert labels_of(drawn).items() <= labels_of(pairs).items()
    assert labels_of(drawn) != labels_of(transformed(pairs, {"labels_per_query": 4}, seed=1))
    assert labels_of(transformed(pairs, {"labels_per_query": None}, seed=0)) == labels_of(pairs)


def test_a_budget_of_labels_draws_fewer_queries(pairs):
    drawn = transformed(pairs, {"labels_per_query": 4, "labels": 20}, seed=0)
    assert len(drawn) == 20 and 5 <= len(drawn.groups()) <= 6
    with pytest.raises(InputError, match="158"):  # 2 + 39 * 4
        transformed(pairs, {"labels_per_query": 4, "labels": 200}, seed=0)


def test_noise_exchanges_the_best_and_the_worst_of_the_drawn_labels(pairs):
    clean, noisy = (transformed(pairs, {"labels_per_query": 4, "noise": noise}, seed=0) for noise in (0, 1))
    for before, after in zip(clean.groups(), noisy.groups(), strict=True):
        assert before.document_ids == after.document_ids
        changed = [float(b) for b, a in zip(before.relevance, after.relevance, strict=True) if b != a]
        assert sorted(changed) == [float(min(before.relevance)), float(max(before.relevance))]


def test_noise_hits_the_same_queries_for_any_number_of_labels(pairs):
    def hit(settings):
        clean, noisy = (labels_of(transformed(pairs, {**settings, "noise": share}, seed=3)) for share in (0, 0.5))
        return {query for query, document in clean if clean[query, document] != noisy[query, document]}

    assert hit({"labels_per_query": 4}) == hit({}) != set()
