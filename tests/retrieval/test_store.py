from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bixse.data.collection import Document
from bixse.encoders.loading.precision import resolve_precision, use_precision
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
    with use_precision("bfloat16" if resolve_precision(device="cpu") == "float32" else "float32"):
        keys.append(embeddings_key(tiny_model, CORPUS))
    for prompts in ({"document": "passage: "}, {"passage": "text: "}, {"any": "line: "}):
        tiny_model.prompts, tiny_model.default_prompt_name = prompts, "any"
        keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model.truncate_dim = 8
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model[1].include_prompt = False
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model.tokenizer.truncation_side = "left"
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model[1].pooling_mode = "cls"
    keys.append(embeddings_key(tiny_model, CORPUS))
    tiny_model[0].auto_model.config.is_decoder = True
    keys.append(embeddings_key(tiny_model, CORPUS))
    next(tiny_model.parameters()).data[0, 0] += 1e-3
    keys.append(embeddings_key(tiny_model, CORPUS))
    assert len(set(keys)) == len(keys)


def swap_words(folder: Path, one: str, other: str) -> None:
    """Let two words of a saved model's vocabulary take each other's place."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    words[one], words[other] = words[other], words[one]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_the_key_sees_the_tokenizer(tiny_model: RelevanceModel, tmp_path: Path) -> None:
    from bixse.encoders.relevance_model import RelevanceModel as Model

    tiny_model.save_pretrained(str(tmp_path / "swapped"))
    swap_words(tmp_path / "swapped", "copy", "move")
    swapped = Model(str(tmp_path / "swapped"), device="cpu")
    assert (swapped.encode("copy") == tiny_model.encode("move")).all()
    assert embeddings_key(swapped, CORPUS) != embeddings_key(tiny_model, CORPUS)


def test_the_key_sees_the_vocabulary_of_a_tokenizer_without_a_backend(
    tiny_model: RelevanceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Words:
        def __init__(self, *words: str) -> None:
            self.words = words
            self.model_max_length = 32

        def get_vocab(self) -> dict[str, int]:
            return {word: number for number, word in enumerate(self.words)}

    keys = set()
    for words in (("copy", "move"), ("move", "copy"), ("copy", "sort")):
        monkeypatch.setattr(type(tiny_model[0]), "tokenizer", Words(*words))
        keys.add(embeddings_key(tiny_model, CORPUS))
    assert len(keys) == 3


def test_the_key_stays_when_the_model_has_read_texts_or_its_query_prompt_changes(tiny_model: RelevanceModel) -> None:
    key = embeddings_key(tiny_model, CORPUS)
    tiny_model.preprocess(["copy a file"], max_length=7)
    tiny_model.prompts = {**tiny_model.prompts, "query": "find "}
    assert embeddings_key(tiny_model, CORPUS) == key


def test_the_key_sees_the_weights_type(tiny_model: RelevanceModel) -> None:
    tiny_model.bfloat16()
    key = embeddings_key(tiny_model, CORPUS)
    assert embeddings_key(tiny_model.float(), CORPUS) != key


def test_the_key_sees_behind_a_router(tiny_model_path: Path) -> None:
    from sentence_transformers.base.modules import Router

    from bixse.encoders.relevance_model import RelevanceModel as Model

    query, document = (list(Model(str(tiny_model_path), device="cpu").children()) for _ in range(2))
    routes = {("query", "text"): "query", ("document", None): "document"}
    router = Router({"query": query, "document": document}, route_mappings=routes)
    model = Model(modules=[router], device="cpu")
    keys = [embeddings_key(model, CORPUS)]
    document[1].pooling_mode = "cls"
    keys.append(embeddings_key(model, CORPUS))
    document[0].max_seq_length = 16
    keys.append(embeddings_key(model, CORPUS))
    router.route_mappings = {("query", "text"): "query", ("document", None): "query"}
    keys.append(embeddings_key(model, CORPUS))
    assert len(set(keys)) == 4


def test_the_key_is_that_of_a_saved_copy(tiny_model: RelevanceModel, tmp_path: Path) -> None:
    from bixse.encoders.relevance_model import RelevanceModel as Model

    tiny_model.save_pretrained(str(tmp_path / "copy"))
    assert embeddings_key(Model(str(tmp_path / "copy"), device="cpu"), CORPUS) == embeddings_key(tiny_model, CORPUS)
