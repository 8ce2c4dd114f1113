"""A collection held in memory under one encoder."""

from __future__ import annotations

import numpy as np
import pytest

from bixse.search.search_collection import EncodedCollection


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_depth_is_kept_when_a_query_is_left_out(depth) -> None:
    vectors = np.eye(4, dtype=np.float32)
    encoded = EncodedCollection(["a", "b", "c", "d"], vectors, ["a", "q"], vectors[:2] + 0.1)
    for query_id, found in encoded.search(["a", "q"], depth, exclude_self=True).items():
        full = encoded.search([query_id], 4)[query_id]
        assert list(found) == [document for document in full if document != query_id][:depth]
