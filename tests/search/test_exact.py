import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.errors import InputError
from bixse.search.exact import QUERY_BLOCK, exact_search, to_run
from bixse.search.search_collection import EncodedCollection


def integers(seed, rows, size=4, reach=3):
    """Small whole numbers: their products are exact, so ties are real and orders can be compared."""
    return np.random.default_rng(seed).integers(-reach, reach + 1, size=(rows, size)).astype(np.float32)


def naive(queries, documents, top_k):
    """Score every pair and sort by (score descending, position ascending)."""
    scores = queries @ documents.T
    indices = np.array([sorted(range(len(documents)), key=lambda j: (-row[j], j))[:top_k] for row in scores])
    return np.take_along_axis(scores, indices, axis=1), indices


def check(queries, documents, top_k, *options, **named):
    scores, indices = exact_search(queries, documents, top_k, *options, **named)
    expected_scores, expected_indices = naive(np.asarray(queries), np.asarray(documents), top_k)
    assert (scores.dtype, indices.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(scores, expected_scores)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 70), st.integers(1, 70))
def test_search_equals_a_plain_sort_with_ties_whatever_the_chunks(seed, count, top_k, chunk_size):
    check(integers(seed, 3, 2, reach=1), integers(seed + 1, count, 2, reach=1), top_k, chunk_size)  # 5 scores at most


def test_more_queries_than_a_block():
    check(integers(2, 2 * QUERY_BLOCK + 3), integers(3, 20), 4, chunk_size=6)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_documents():
    check(integers(8, 300), integers(9, 400), 7, 64, device="cuda")


def test_scores_keep_their_bits():
    documents = np.array([[value] for value in (-0.0, 1e-45, -1e-45, 3e38, -3e38, 1.5, -1.5)], dtype=np.float32)
    scores, indices = exact_search(np.ones((1, 1)), documents, 7)
    assert indices.tolist() == [[3, 5, 1, 0, 2, 6, 4]]
    np.testing.assert_array_equal(scores, documents[indices[0], 0][None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_torch_tensors_of_another_dtype(dtype):
    queries, documents = integers(4, 3), integers(5, 11)
    scores, indices = exact_search(torch.tensor(queries, dtype=dtype), torch.tensor(documents, dtype=dtype), 5)
    np.testing.assert_array_equal(indices, naive(queries, documents, 5)[1])
    assert scores.dtype == np.float32


@pytest.mark.filterwarnings("error")
def test_a_read_only_memory_map(tmp_path):
    integers(6, 30).tofile(tmp_path / "documents.f32")
    check(integers(7, 2), np.memmap(tmp_path / "documents.f32", np.float32, "r", shape=(30, 4)), 3, 8)


@pytest.mark.parametrize(("queries", "documents", "shape"), [(0, 5, (0, 2)), (3, 0, (3, 0)), (0, 0, (0, 0))])
def test_no_queries_or_no_documents(queries, documents, shape):
    scores, indices = exact_search(np.zeros((queries, 4)), np.zeros((documents, 4)), 2)
    assert scores.shape == indices.shape == shape
    assert (scores.dtype, indices.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    ("queries", "documents", "options", "message"),
    [
        (np.ones((1, 3)), np.ones((2, 4)), {}, "one D"),
        (np.ones(3), np.ones((2, 3)), {}, r"got queries \(3,\)"),
        (np.ones((1, 3)), np.ones((2, 3)), {"top_k": 0}, "top_k: got 0"),
        (np.full((1, 3), np.nan), np.ones((2, 3)), {}, "query embeddings: got NaN"),
        (np.ones((1, 3)), np.full((2, 3), np.inf), {}, "document embeddings: got NaN or infinity"),
        (np.full((1, 2), 3e38), np.array([[1e3, -1e3], [0, 0]]), {}, "inner products beyond float32"),
    ],
)
def test_unusable_input_is_refused(queries, documents, options, message):
    with pytest.raises(InputError, match=message):
        exact_search(queries, documents, **{"top_k": 1, **options})


def test_finite_embeddings_whose_sum_overflows_are_accepted():
    documents = np.full((8, 8), 1e38, dtype=np.float32)
    assert exact_search(np.full((1, 8), 1e-38), documents, 1)[1].tolist() == [[0]]


def test_a_run_without_documents_or_queries():
    assert to_run(["q"], [], np.zeros((1, 0)), np.zeros((1, 0), dtype=np.int64)) == {"q": {}}
    assert to_run([], ["d"], np.zeros((0, 1)), np.zeros((0, 1), dtype=np.int64)) == {}


def test_searches_and_cosines_are_those_of_the_embeddings():
    vectors = np.eye(4, dtype=np.float32)
    encoded = EncodedCollection(["a", "b", "c", "d"], vectors, ["a", "q"], vectors[:2] * 0.5)
    run = encoded.search(["q", "a"], 2)
    assert run == {"q": {"b": 0.5, "a": 0.0}, "a": {"a": 0.5, "b": 0.0}} and type(run["q"]["b"]) is float
    assert encoded.cosines([("q", "b"), ("a", "c")]).tolist() == pytest.approx([0.5, 0.0])
