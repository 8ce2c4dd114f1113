from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bixse.encoders.encode import encode_texts
from bixse.encoders.relevance_model import RelevanceModel

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["copy a file", "sleep in a thread", "move"]


def test_a_model_saved_with_truncated_embeddings_gives_the_first_dimensions_at_length_one(
    tiny_model: RelevanceModel, tmp_path: Path
) -> None:
    whole = tiny_model.encode_document(TEXTS)
    tiny_model.truncate_dim = 8
    tiny_model.save_pretrained(str(tmp_path / "model"))
    model = RelevanceModel(str(tmp_path / "model"), device="cpu")
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", bf16=False), expected, atol=1e-6)


@pytest.mark.parametrize("dimensions", [1, 32, 100])
def test_dimensions_up_to_all_of_them(tiny_model: RelevanceModel, dimensions: int) -> None:
    tiny_model.truncate_dim = dimensions
    assert encode_texts(tiny_model, TEXTS, "query").shape == (3, min(dimensions, 32))
