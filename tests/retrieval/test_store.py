from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bixse.data.collection import Document
from bixse.errors import StorageError
from bixse.retrieval.store import EmbeddingStore, embeddings_key

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel

CORPUS = {"d1": Document("", "copy a file"), "d2": Document("move", "a folder")}


def test_nothing_is_stored(tmp_path: Path) -> None:
    assert EmbeddingStore(tmp_path).load("key") is None


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_file_means_encoding_again(tmp_path: Path, content: bytes) -> None:
    store = EmbeddingStore(tmp_path)
    store.save("key", np.ones((2, 3), np.float32), ["d1", "d2"])
    (store.folder / "key.safetensors").write_bytes(content)
    assert store.load("key") is None


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", no_space)
    store = EmbeddingStore(tmp_path)
    with pytest.raises(StorageError, match="No space left"):
        store.save("key", np.ones((2, 3), np.float32), ["d1", "d2"])
    assert list(store.folder.iterdir()) == []


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    embeddings = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1].T  # not contiguous
    EmbeddingStore(tmp_path).save("key", embeddings, ["é", "b", "c", "d"])
    found = EmbeddingStore(tmp_path).load("key")
    assert found is not None
    assert found.tobytes() == np.ascontiguousarray(embeddings).tobytes()


def test_the_key_sees_everything_embeddings_depend_on(tiny_model: RelevanceModel) -> None:
    keys = [embeddings_key(tiny_model, CORPUS)]
    assert embeddings_key(tiny_model, CORPUS) == keys[0]
    keys.append(embeddings_key(tiny_model, {**CORPUS, "d2": Document("move", "a folder!")}))
    keys.append(embeddings_key(tiny_model, {"d1": CORPUS["d1"], "d3": CORPUS["d2"]}))
    keys.append(embeddings_key(tiny_model, dict(reversed(CORPUS.items()))))
    tiny_model.max_seq_length = 16
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model.prompts = {"document": "passage: "}
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model[1].pooling_mode = "cls"
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model[0].auto_model.config.is_decoder = True
    keys.append(embeddings_key(tiny_model, CORPUS))
    next(tiny_model.parameters()).data[0, 0] += 1e-3
    keys.append(embeddings_key(tiny_model, CORPUS))
    assert len(set(keys)) == len(keys)


def test_the_key_is_that_of_a_saved_copy(tiny_model: RelevanceModel, tmp_path: Path) -> None:
    from bixse.encoders.relevance_model import RelevanceModel as Model

    tiny_model.save_pretrained(str(tmp_path / "copy"))
    assert embeddings_key(Model(str(tmp_path / "copy"), device="cpu"), CORPUS) == embeddings_key(tiny_model, CORPUS)
