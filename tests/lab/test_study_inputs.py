"""What a study reads: the static student, and the transforms of an arm's pairs."""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static") / "student"
    save_static_student(folder, dimensions=24)
    return folder


def test_it_loads_in_plain_sentence_transformers_and_knows_words(folder):
    model = SentenceTransformer(str(folder))
    cat, kitten, engine = model.encode(["a cat", "the kitten", "an engine"], normalize_embeddings=True)
    assert cat.shape == (24,)
    assert cat @ kitten > cat @ engine


def test_frequent_tokens_weigh_little(folder):
    model = SentenceTransformer(str(folder))
    the, shutil = np.linalg.norm(model.encode(["the", "archive"]), axis=1)
    assert the < shutil / 3


def test_tokens_of_texts_in_one_row_are_told_apart(folder):
    features = SentenceTransformer(str(folder)).preprocess(["copy a file", "copy", "copy a file"])
    assert number_of_texts(features) == 3
    assert tokens_without_padding(features).shape == (3, 3)
    first, index = identical_texts(features)
    assert first.tolist() == [0, 1] and index.tolist() == [0, 1, 0]


def test_a_text_without_tokens_is_a_row_too():
    features = {"input_ids": torch.tensor([5, 6]), "offsets": torch.tensor([0, 0, 2])}
    assert tokens_without_padding(features).tolist() == [[-1, -1], [5, 6], [-1, -1]]


def test_a_model_without_a_table_is_refused(folder, tmp_path):
    with pytest.raises(ModelError, match="expected a transformers backbone"):
        save_static_student(tmp_path / "again", model=str(folder))


@pytest.fixture(scope="module")
def pairs() -> GradedPairs:
    return GradedPairs.from_rows(
        {"query_id": f"q{q}", "query": f"query {q}", "document_id": f"d{d}", "document": f"text {d}",
         "relevance": d / 10}
        for q in range(QUERIES) for d in range(2 if q == 0 else DOCUMENTS)
    )  # fmt: skip


def labels_of(pairs: GradedPairs) -> dict[tuple[str, str], float]:
    found = {}
    for group in pairs.groups():
        for document, relevance in zip(group.document_ids, group.relevance, strict=True):
            found[group.query_id, document] = float(relevance)
    return found


class TestLabelsPerQuery:
    def test_every_query_keeps_so_many_of_its_documents(self, pairs):
        kept = transformed(pairs, {"labels_per_query": 4}, seed=0)
        assert sorted(len(group.documents) for group in kept.groups()) == [2] + [4] * (QUERIES - 1)
        assert labels_of(kept).items() <= labels_of(pairs).items()
        assert labels_of(kept) != labels_of(transformed(pairs, {"labels_per_query": 4}, seed=1))

    def test_none_keeps_all(self, pairs):
        assert labels_of(transformed(pairs, {"labels_per_query": None}, seed=0)) == labels_of(pairs)

    def test_a_budget_of_labels_takes_fewer_queries(self, pairs):
        kept = transformed(pairs, {"labels_per_query": 4, "labels": 20}, seed=0)
        assert len(kept) == 20 and 5 <= len(kept.groups()) <= 6
        with pytest.raises(InputError, match="158"):  # 2 + 39 * 4
            transformed(pairs, {"labels_per_query": 4, "labels": 200}, seed=0)

    def test_noise_exchanges_the_best_and_the_worst_of_those_kept(self, pairs):
        clean = transformed(pairs, {"labels_per_query": 4}, seed=0)
        noisy = transformed(pairs, {"labels_per_query": 4, "noise": 1}, seed=0)
        for before, after in zip(clean.groups(), noisy.groups(), strict=True):
            assert before.document_ids == after.document_ids
            changed = [
                place for place, _ in enumerate(before.relevance) if before.relevance[place] != after.relevance[place]
            ]
            assert sorted(float(before.relevance[place]) for place in changed) == [
                float(min(before.relevance)), float(max(before.relevance))
            ]  # fmt: skip

    def test_the_same_queries_are_hit_however_many_labels_are_kept(self, pairs):
        def hit(settings):
            clean, noisy = (labels_of(transformed(pairs, {**settings, "noise": share}, seed=3)) for share in (0, 0.5))
            return {query for query, document in clean if clean[query, document] != noisy[query, document]}

        assert hit({"labels_per_query": 4}) == hit({})
        assert 10 <= len(hit({})) <= 30
