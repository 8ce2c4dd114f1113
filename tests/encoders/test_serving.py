"""A folder that every server reads the same way: readers of three servers against sentence-transformers itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.serving import NEW_TYPE, POOLING_KEYS, add_older_settings, older_settings
from bixse.errors import ModelError
from bixse.files.files import damage, write_hashes
from helpers.command import call, refused
from helpers.server_readers import (
    RefusedError,
    Served,
    llama_cpp_before_april_2026,
    text_embeddings_inference,
    vllm_before_september_2026,
    vllm_of_2024,
)

TEXTS = ["copy", "copy a file in the tree", "move the folder " * 30]
PROMPTS = {"query": "find ", "document": ""}


@pytest.fixture(params=["mean", "cls", "lasttoken"])
def pooling(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["normalised", "not normalised"])
def parts(request, tiny_model_path, pooling):
    """The modules of an encoder of 32 dimensions that reads 20 of its 64 positions."""
    first = next(iter(SentenceTransformer(str(tiny_model_path), device="cpu").children()))
    first.max_seq_length = 20
    return [first, Pooling(32, pooling), *([Normalize()] if request.param else [])]


def served(model) -> Served:
    """What sentence-transformers does with a model."""
    normalised = any(isinstance(module, Normalize) for module in model.children())
    return Served(model[1].pooling_mode, model.max_seq_length, normalised, model.prompts)


def test_servers_agree_with_sentence_transformers_and_it_loads_the_same_vectors(parts, tmp_path):
    SentenceTransformer(modules=parts, prompts=PROMPTS, device="cpu").save_pretrained(str(tmp_path / "plain"))
    RelevanceModel(modules=parts, prompts=PROMPTS, device="cpu").save(str(tmp_path / "ours"))
    loaded = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    plain = SentenceTransformer(str(tmp_path / "plain"), device="cpu")
    np.testing.assert_array_equal(loaded.encode(TEXTS), plain.encode(TEXTS))
    np.testing.assert_array_equal(loaded.encode_query(TEXTS), plain.encode_query(TEXTS))
    right = served(loaded)
    assert right == served(plain) == (right.pooling, 20, right.normalised, PROMPTS)
    assert text_embeddings_inference(tmp_path / "ours") == right._replace(normalised=True)  # a request decides
    assert vllm_before_september_2026(tmp_path / "ours") == right._replace(prompts={})  # the client writes them
    assert llama_cpp_before_april_2026(tmp_path / "ours") == Served(right.pooling, 64, True, {})
    assert vllm_of_2024(tmp_path / "ours") == right.pooling
    with pytest.raises(RefusedError):
        text_embeddings_inference(tmp_path / "plain")
    assert vllm_before_september_2026(tmp_path / "plain").pooling is None
    assert llama_cpp_before_april_2026(tmp_path / "plain").pooling is None


@pytest.mark.parametrize("pooling", ["max", "weightedmean", ["cls", "mean"]], ids=str)
def test_a_pooling_that_servers_lack_is_refused_by_them(tiny_model, tmp_path, pooling):
    tiny_model[1] = Pooling(32, pooling)
    tiny_model.save(str(tmp_path))
    assert SentenceTransformer(str(tmp_path), device="cpu")[1].pooling_mode == tiny_model[1].pooling_mode
    saved = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    modes = [pooling] if isinstance(pooling, str) else pooling
    assert {key for key, value in saved.items() if value is True} >= {POOLING_KEYS[mode] for mode in modes}
    if isinstance(pooling, str):
        with pytest.raises(RefusedError):
            text_embeddings_inference(tmp_path)
        with pytest.raises(RefusedError):
            llama_cpp_before_april_2026(tmp_path)


def test_the_folder_loads_without_a_word(tiny_model, tmp_path):
    tiny_model.save(str(tmp_path))
    code = f"from sentence_transformers import SentenceTransformer as S; S({str(tmp_path)!r}, device='cpu')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stderr.replace("\r", "\n").splitlines()
    assert [line for line in lines if line and not line.startswith("Loading weights")] == []


def test_every_type_has_an_older_name_of_the_same_class():
    for name in ("Transformer", "Pooling", "Dense", "Normalize"):
        kind = getattr(st_modules, name)
        assert NEW_TYPE.fullmatch(f"{kind.__module__}.{name}")


class TestDoctor:
    @pytest.fixture
    def folder(self, tiny_model_path, tmp_path):
        """A folder as plain sentence-transformers saves it, with hashes."""
        shutil.copytree(tiny_model_path, tmp_path / "model")
        write_hashes(tmp_path / "model")
        return tmp_path / "model"

    def test_names_what_is_missing_and_writes_nothing(self, capsys, folder):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        code, envelope = call(capsys, "doctor", folder)
        assert code == 0
        names = ["1_Pooling/config.json", "sentence_bert_config.json", "modules.json"]
        assert sorted(envelope["metrics"]["lacking"]) == sorted(names)
        assert "--fix" in envelope["warnings"][0]
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    def test_fix_adds_keys_changes_none_and_keeps_the_hashes(self, capsys, folder):
        names = ("1_Pooling/config.json", "sentence_bert_config.json", "modules.json")
        before = {name: json.loads((folder / name).read_bytes()) for name in names}
        vectors = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        code, envelope = call(capsys, "doctor", folder, "--fix")
        assert (code, envelope["warnings"], set(envelope["artifacts"])) == (0, [], set(names))
        assert damage(folder) is None
        for name in names[:2]:
            assert before[name].items() <= json.loads((folder / name).read_bytes()).items()
        for old, new in zip(before["modules.json"], json.loads((folder / "modules.json").read_bytes()), strict=True):
            assert {**old, "type": new["type"]} == new
        np.testing.assert_array_equal(SentenceTransformer(str(folder), device="cpu").encode(TEXTS), vectors)
        build_encoder(folder, device="cpu")
        assert text_embeddings_inference(folder)[:2] == vllm_before_september_2026(folder)[:2] == ("mean", 32)
        assert call(capsys, "doctor", folder, "--fix")[1]["artifacts"] == {}

    def test_a_later_save_of_plain_sentence_transformers_drops_it(self, folder):
        add_older_settings(folder)
        SentenceTransformer(str(folder), device="cpu").save_pretrained(str(folder))
        assert set(older_settings(folder)) == {
            "1_Pooling/config.json", "sentence_bert_config.json", "modules.json",
        }  # fmt: skip

    def test_the_model_of_the_quick_start_is_served_by_all(self):
        from bixse.encoders.loading.build import demo_model_path

        assert older_settings(demo_model_path()) == {}

    def test_no_folder_no_json_and_no_model_are_refused(self, capsys, folder, tmp_path):
        assert "nowhere" in refused(capsys, "doctor", tmp_path / "nowhere")
        refused(capsys, "doctor", "owner/name")
        refused(capsys, "doctor", "--fix")
        (folder / "modules.json").write_text("{")
        with pytest.raises(ModelError):
            older_settings(folder)
        for content in ("{}", "[{}]", '[{"type": "a.Pooling", "path": "../outside"}]'):
            (folder / "modules.json").write_text(content)
            refused(capsys, "doctor", folder)

    def test_a_bare_backbone_has_nothing_to_be_added(self, capsys, tiny_model_path):
        code, envelope = call(capsys, "doctor", tiny_model_path.parent / "backbone", "--fix")
        assert (code, envelope["artifacts"]) == (0, {})
