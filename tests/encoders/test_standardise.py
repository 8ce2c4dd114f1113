import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.weights import standardise
from helpers import server_readers as servers

TEXTS = ["copy a file", "sleep in a thread", "move a folder", "sort the list of words", "read", "open the path"]


@pytest.fixture
def bare(bert_path):
    return build_encoder(bert_path(), device="cpu")


@pytest.mark.parametrize("kind", ["mean", "mean-and-deviation"])
def test_embeddings_are_those_of_numpy_and_the_folder_gives_them_everywhere(bare, tmp_path, kind):
    key = embeddings_key(bare)
    vectors = bare.encode(TEXTS)
    standardise(bare, torch.from_numpy(vectors), kind)
    expected = vectors - vectors.mean(axis=0)
    if kind == "mean-and-deviation":
        expected /= vectors.std(axis=0, ddof=1)
    np.testing.assert_allclose(bare.encode(TEXTS), expected, atol=1e-4)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encode_texts(bare, TEXTS, "document", "float32"), expected, atol=1e-4)
    assert embeddings_key(bare) != key, "stored embeddings of another map are not reused"
    bare.save(str(tmp_path))
    for loaded in (SentenceTransformer(str(tmp_path), device="cpu"), build_encoder(tmp_path, device="cpu")):
        np.testing.assert_array_equal(loaded.encode(TEXTS), bare.encode(TEXTS))
    for read in (servers.text_embeddings_inference, servers.vllm_before_september_2026):
        (layer,) = read(tmp_path).layers
        np.testing.assert_allclose(vectors @ layer.weight.T + layer.bias, bare.encode(TEXTS), atol=1e-5)


def test_the_figures_are_those_of_all_pairs_and_no_weight_of_the_map_is_trained(bare):
    vectors = bare.encode(TEXTS)
    figures = standardise(bare, torch.from_numpy(vectors), "mean")
    for of, mean in ((vectors, figures.cosine_before), (vectors - vectors.mean(axis=0), figures.cosine_after)):
        unit = of / np.linalg.norm(of, axis=1, keepdims=True)
        pairs = [unit[i] @ unit[j] for i in range(len(unit)) for j in range(i)]
        assert mean == pytest.approx(np.mean(pairs), abs=1e-5)
    assert figures.norm_of_mean == pytest.approx(np.linalg.norm(vectors.mean(axis=0)), rel=1e-5)
    assert (figures.texts, [part.requires_grad for part in bare[-1].parameters()]) == (len(TEXTS), [False, False])


def test_a_constant_dimension_becomes_0(bare):
    vectors = torch.from_numpy(bare.encode(TEXTS))
    vectors[:, 3] = 7.0
    standardise(bare, vectors, "mean-and-deviation")
    mapped = bare[-1].linear(vectors)
    assert mapped.isfinite().all() and mapped[:, 3].abs().max() == 0
