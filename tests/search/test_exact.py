import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.errors import InputError, NotFiniteError
from bixse.search import exact
from bixse.search.exact import QUERY_BLOCK, TopK, exact_search, home_of, search_device, to_run
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
    check(integers(2, 2 * QUERY_BLOCK["cpu"] + 3), integers(3, 20), 4, chunk_size=6)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu_way(request, monkeypatch):
    """The device of a search by the operations that a GPU is fast at: a GPU, or the CPU that stands in for it."""
    monkeypatch.setattr(exact, "_BEST_KEYS", dict.fromkeys(("cpu", "cuda"), exact._best_by_topk))
    monkeypatch.setattr(exact, "QUERY_BLOCK", {"cpu": 2, "cuda": 2})
    monkeypatch.setattr(exact, "_TIED_ROWS", 1)
    monkeypatch.setattr(exact, "_PINNED", 12)
    return request.param


class TestOnGPU:
    @pytest.mark.parametrize(("count", "top_k", "chunk_size"), [(60, 7, 13), (60, 7, 60), (9, 20, 4), (20, 20, 20)])
    @pytest.mark.parametrize("seed", range(4))
    def test_ties_inside_chunks_and_across_them_equal_a_sort(self, gpu_way, seed, count, top_k, chunk_size):
        queries, documents = integers(seed, 5, 2, reach=1), integers(seed + 9, count, 2, reach=1)
        scores, indices = exact_search(queries, documents, top_k, chunk_size, gpu_way)
        products = queries @ documents.T
        order = np.stack([np.lexsort((np.arange(count), -row)) for row in products])[:, :top_k]
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(scores, np.take_along_axis(products, order, axis=1))

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_equal_documents_stay_in_order(self, gpu_way, value):
        documents = np.full((50, 3), value, dtype=np.float32)
        assert exact_search(np.ones((3, 3)), documents, 5, 11, gpu_way)[1].tolist() == [[0, 1, 2, 3, 4]] * 3

    def test_ties_above_the_documents_known_so_far_stay_in_order(self, gpu_way):
        documents = np.repeat(np.array([[0.0], [1.0], [0.0], [2.0]], dtype=np.float32), 25, axis=0)
        assert exact_search(np.ones((3, 1)), documents, 5, 25, gpu_way)[1].tolist() == [[75, 76, 77, 78, 79]] * 3

    def test_negative_zero_equals_zero(self, gpu_way):
        scores = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0]], device=gpu_way)
        keys = exact._best_by_topk(scores, 0, torch.empty((1, 0), dtype=torch.int64, device=gpu_way), 2)
        assert exact._from_keys(keys)[1].tolist() == [[1, 2]]

    def test_blocks_may_be_cut_anywhere_and_continued_from_the_saved_state(self, gpu_way):
        queries, documents = integers(1, 3, 2), integers(2, 40, 2)
        first = TopK(queries, 6, gpu_way)
        first.add(documents[:17], 5)
        second = TopK(queries, 6, gpu_way)
        second.keys, second.seen = torch.tensor(first.keys.tolist(), device=gpu_way), first.seen
        second.add(torch.from_numpy(documents[17:]).to(gpu_way))
        np.testing.assert_array_equal(second.result()[1], naive(queries, documents, 6)[1])

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_not_finite_are_refused(self, gpu_way, value):
        documents = integers(3, 30)
        documents[25, 1] = value
        with pytest.raises(NotFiniteError, match="document embeddings"):
            exact_search(integers(4, 3), documents, 5, 8, gpu_way)

    def test_inner_products_beyond_float32_are_refused_among_the_best_alone(self, gpu_way):
        """Infinity minus infinity is no score: PyTorch's topk takes it for the highest."""
        queries = np.full((2, 2), 3e38, dtype=np.float32)
        documents = np.array([[1e3, -1e3]] * 3 + [[1e-3, 0], [2e-3, 0], [0, 0]], dtype=np.float32)
        with pytest.raises(InputError, match="inner products beyond float32"):
            exact_search(queries, documents, 4, device=gpu_way)
        assert exact_search(queries, documents, 2, device=gpu_way)[1].tolist() == [[4, 3]] * 2


@pytest.mark.gpu
class TestOnOneGPU:
    def test_host_memory_and_device_memory_give_equal_results(self, tmp_path):
        documents = integers(9, 5000, 64)
        documents.tofile(tmp_path / "documents.f32")
        mapped = np.memmap(tmp_path / "documents.f32", np.float32, "r", shape=documents.shape)
        queries = integers(8, 300, 64)
        expected = naive(queries, documents, 7)
        for given_documents in (documents, mapped, documents.astype(np.float16), torch.from_numpy(documents).cuda()):
            for result, values in zip(exact_search(queries, given_documents, 7, 640, "cuda"), expected, strict=True):
                np.testing.assert_array_equal(result, values)

    def test_scores_are_float32_where_tf32_is_allowed(self):
        draw = np.random.default_rng(0)
        queries, documents = (draw.standard_normal((rows, 256)).astype(np.float32) for rows in (64, 4096))
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            scores, indices = exact_search(queries, documents, 10, device="cuda")
            assert torch.get_float32_matmul_precision() == "high"
        finally:
            torch.set_float32_matmul_precision(before)
        expected = np.einsum("qkd,qd->qk", documents[indices].astype(np.float64), queries.astype(np.float64))
        np.testing.assert_allclose(scores, expected, atol=1e-4)  # TF32 is wrong by 1e-2

    def test_a_large_search_is_done_on_the_gpu_and_a_small_one_is_not(self):
        assert (search_device(64, 2**20), search_device(1, 2**30), search_device(64, 100)) == ("cuda", "cpu", "cpu")
        assert (home_of(2**20), home_of(2**50)) == ("cuda", "cpu")


def test_chunks_shrink_with_the_free_memory_of_a_gpu(monkeypatch):
    queries = torch.empty(1000, 384, device="meta")
    monkeypatch.setattr(exact.torch.Tensor, "device", torch.device("cuda"))
    for free, expected in ((2**40, exact.LARGEST_CHUNK), (2**10, exact.SMALLEST_CHUNK), (4 * 12_609 * 50_000, 50_000)):
        monkeypatch.setattr(exact, "_free_memory", lambda _, free=free: free)
        assert exact._chunk_size(queries) == expected


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
