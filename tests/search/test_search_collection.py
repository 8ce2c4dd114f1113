import numpy as np
import pytest

from bixse.search.search_collection import EncodedCollection


def test_searches_and_cosines_are_those_of_the_embeddings() -> None:
    vectors = np.eye(4, dtype=np.float32)
    encoded = EncodedCollection(["a", "b", "c", "d"], vectors, ["a", "q"], vectors[:2] * 0.5)
    assert encoded.search(["q", "a"], 2) == {"q": {"b": 0.5, "a": 0.0}, "a": {"a": 0.5, "b": 0.0}}
    assert encoded.cosines([("q", "b"), ("a", "c")]).tolist() == pytest.approx([0.5, 0.0])
