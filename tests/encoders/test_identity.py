import json
from types import SimpleNamespace

import pytest
import torch

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.loading.build import model_hashes
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.encoders.relevance_model import RelevanceModel


def test_files_of_a_folder_without_a_model_are_not_hashed(tiny_model_path, tmp_path):
    assert "model/model.safetensors" in model_hashes(tiny_model_path)
    (tmp_path / "large.txt").write_text("of no model")
    assert model_hashes(tmp_path) == {}


def test_the_key_sees_everything_embeddings_depend_on(tiny_model):
    keys = [embeddings_key(tiny_model)]
    assert embeddings_key(tiny_model) == keys[0]
    with use_precision("bfloat16" if resolve_precision(device="cpu") == "float32" else "float32"):
        keys.append(embeddings_key(tiny_model))
    for target, name, value in (
        (tiny_model, "max_seq_length", 16),
        (tiny_model, "default_prompt_name", "any"),
        (tiny_model, "prompts", {"document": "passage: "}),
        (tiny_model, "prompts", {"passage": "text: "}),
        (tiny_model, "prompts", {"any": "line: "}),
        (tiny_model, "truncate_dim", 8),
        (tiny_model[1], "include_prompt", False),
        (tiny_model.tokenizer, "truncation_side", "left"),
        (tiny_model[1], "pooling_mode", "cls"),
        (tiny_model[0].auto_model.config, "is_decoder", True),
    ):
        setattr(target, name, value)
        if name != "default_prompt_name":
            keys.append(embeddings_key(tiny_model))
    next(tiny_model.parameters()).data[0, 0] += 1e-3
    keys.append(embeddings_key(tiny_model))
    keys.append(embeddings_key(tiny_model.bfloat16()))
    assert len(set(keys)) == len(keys)


def test_the_key_sees_the_tokenizer(tiny_model, tmp_path):
    tiny_model.save_pretrained(str(tmp_path))
    assert embeddings_key(RelevanceModel(str(tmp_path), device="cpu")) == embeddings_key(tiny_model)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    words["copy"], words["move"] = words["move"], words["copy"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert embeddings_key(RelevanceModel(str(tmp_path), device="cpu")) != embeddings_key(tiny_model)


def test_the_key_sees_the_vocabulary_of_a_tokenizer_without_a_backend(tiny_model, monkeypatch):
    keys = set()
    for words in ({"copy": 0, "move": 1}, {"move": 0, "copy": 1}):
        tokenizer = SimpleNamespace(get_vocab=lambda words=words: words, model_max_length=32)
        monkeypatch.setattr(type(tiny_model[0]), "tokenizer", tokenizer)
        keys.add(embeddings_key(tiny_model))
    assert len(keys) == 2


def test_the_key_stays_when_the_model_has_read_texts_or_its_query_prompt_changes(tiny_model):
    key = embeddings_key(tiny_model)
    tiny_model.preprocess(["copy a file"], max_length=7)
    tiny_model.prompts = {**tiny_model.prompts, "query": "find "}
    assert embeddings_key(tiny_model) == key


def test_the_key_sees_behind_a_router(router_model):
    router, document = router_model[0], router_model[0].sub_modules["document"]
    keys = [embeddings_key(router_model)]
    for target, name, value in (
        (document[1], "pooling_mode", "cls"),
        (document[0], "max_seq_length", 16),
        (router, "route_mappings", {("query", "text"): "query", ("document", None): "query"}),
    ):
        setattr(target, name, value)
        keys.append(embeddings_key(router_model))
    assert len(set(keys)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quantised_model_has_a_key_of_its_own(tiny_model):
    plain = embeddings_key(tiny_model)
    quantised = [torch.ao.quantization.quantize_dynamic(tiny_model, {torch.nn.Linear}) for _ in range(2)]
    keys = [embeddings_key(model) for model in quantised]
    assert keys[0] == keys[1] != plain
    assert encode_texts(quantised[0], ["copy the file"], "document", "float32").shape == (1, 32)
