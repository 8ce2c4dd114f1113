"""The static student: a small sentence-transformers model that the trainer and search take as any other."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bixse.encoders.embedding import identical_texts, number_of_texts, tokens_without_padding
from bixse.errors import ModelError
from bixse.lab.studies.study_inputs import save_static_student


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
