import numpy as np
import pytest

from bixse.encoders.encode import encode_texts
from bixse.search import store as store_module
from bixse.search.store import EmbeddingStore

TEXTS = ["copy a file", "move a folder", "sort", "copy a file", ""]


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_replaced(tiny_model, encoded, content):
    store = EmbeddingStore(tiny_model)
    embeddings = store.encode(TEXTS)
    store.path.write_bytes(content)
    for _ in range(2):
        np.testing.assert_array_equal(store.encode(TEXTS), embeddings)
    assert len(encoded) == 2 * 4


def test_texts_are_encoded_if_the_folder_cannot_be_written(tiny_model, tmp_path):
    (tmp_path / "file").write_text("no folder")
    store = EmbeddingStore(tiny_model, tmp_path / "file" / "cache")
    np.testing.assert_array_equal(store.encode(TEXTS), encode_texts(tiny_model, TEXTS, "document"))
    assert str(tmp_path) in store.failure


def test_each_text_is_encoded_once_and_only_new_ones_later(tiny_model, encoded):
    steps = []
    first = EmbeddingStore(tiny_model).encode(TEXTS, steps.append)
    np.testing.assert_array_equal(first, encode_texts(tiny_model, TEXTS, "document"))
    assert sum(steps) == len(TEXTS)
    del encoded[:]
    again = EmbeddingStore(tiny_model).encode(["list", *reversed(TEXTS)])
    assert encoded == [("document", "list")]
    np.testing.assert_array_equal(again[1:], first[::-1])
    tiny_model.truncate_dim = 8  # the stored embeddings are cut
    cut = EmbeddingStore(tiny_model).encode(TEXTS)
    assert encoded == [("document", "list")]
    np.testing.assert_allclose(cut, encode_texts(tiny_model, TEXTS, "document"), atol=1e-6)
    del encoded[1:]
    tiny_model.truncate_dim = None
    tiny_model.max_seq_length = 4  # another model
    EmbeddingStore(tiny_model).encode(TEXTS)
    assert encoded[1:] == [("document", text) for text in sorted(set(TEXTS), key=len)]


def test_a_killed_process_loses_only_the_texts_that_it_was_encoding(tiny_model, encoded, monkeypatch):
    monkeypatch.setattr(store_module, "SAVED_TOGETHER", {"cpu": 2})

    def stop(count):
        if len(encoded) == 4:
            raise KeyboardInterrupt

    texts = ["copy", "copy a", "copy a file", "copy a file to", "copy a file to a folder"]
    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tiny_model).encode(texts, stop)
    del encoded[:]
    embeddings = EmbeddingStore(tiny_model).encode(texts)
    assert encoded == [("document", text) for text in texts[2:]]
    np.testing.assert_allclose(embeddings, encode_texts(tiny_model, texts, "document"), atol=1e-6)
