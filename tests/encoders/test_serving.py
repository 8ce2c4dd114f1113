"""A folder that every server reads the same way: readers of three servers against sentence-transformers itself."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from bixse.encoders.loading.build import build_encoder, demo_model_path
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.serving import NEW_TYPE, POOLING_KEYS, older_settings
from bixse.errors import ModelError
from bixse.files.files import damage, write_hashes
from helpers import server_readers as servers
from helpers.command import call, refused

TEXTS = ["copy", "copy a file in the tree", "move the folder " * 30]
PROMPTS = {"query": "find ", "document": ""}


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("last", [[Normalize()], []], ids=["normalised", "not normalised"])
def test_servers_agree_with_sentence_transformers_and_it_loads_the_same_vectors(tiny_model, tmp_path, pooling, last):
    tiny_model[0].max_seq_length = 20  # of its 64 positions
    parts = [tiny_model[0], Pooling(32, pooling), *last]
    SentenceTransformer(modules=parts, prompts=PROMPTS, device="cpu").save_pretrained(str(tmp_path / "plain"))
    RelevanceModel(modules=parts, prompts=PROMPTS, device="cpu").save(str(tmp_path / "ours"))
    loaded, plain = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("ours", "plain"))
    np.testing.assert_array_equal(loaded.encode(TEXTS), plain.encode(TEXTS))
    np.testing.assert_array_equal(loaded.encode_query(TEXTS), plain.encode_query(TEXTS))
    assert (loaded[1].pooling_mode, loaded.max_seq_length, loaded.prompts) == (pooling, 20, PROMPTS)
    right = servers.Served(pooling, 20, len(parts) == 3, PROMPTS)
    assert servers.text_embeddings_inference(tmp_path / "ours") == right._replace(normalised=True)  # a request decides
    assert servers.vllm_before_september_2026(tmp_path / "ours") == right._replace(prompts={})  # the client writes them
    assert servers.llama_cpp_before_april_2026(tmp_path / "ours") == servers.Served(pooling, 64, True, {})
    assert servers.vllm_of_2024(tmp_path / "ours") == pooling
    with pytest.raises(servers.RefusedError):
        servers.text_embeddings_inference(tmp_path / "plain")
    assert servers.vllm_before_september_2026(tmp_path / "plain").pooling is None
    assert servers.llama_cpp_before_april_2026(tmp_path / "plain").pooling is None


@pytest.mark.parametrize("pooling", ["max", "weightedmean", ["cls", "mean"]], ids=str)
def test_a_pooling_that_servers_lack_has_a_key_of_its_own(tiny_model, tmp_path, pooling):
    tiny_model[1] = Pooling(32, pooling)
    tiny_model.save(str(tmp_path))
    assert SentenceTransformer(str(tmp_path), device="cpu")[1].pooling_mode == tiny_model[1].pooling_mode
    saved = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    modes = [pooling] if isinstance(pooling, str) else pooling
    assert {key for key, value in saved.items() if value is True} >= {POOLING_KEYS[mode] for mode in modes}


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


NAMES = {"1_Pooling/config.json", "sentence_bert_config.json", "modules.json"}


class TestDoctor:
    @pytest.fixture
    def folder(self, tiny_model_path, tmp_path):
        """A folder as plain sentence-transformers saves it, with hashes."""
        shutil.copytree(tiny_model_path, tmp_path / "model")
        write_hashes(tmp_path / "model")
        return tmp_path / "model"

    def test_fix_adds_missing_keys_changes_none_and_keeps_the_hashes(self, capsys, folder):
        before = {name: json.loads((folder / name).read_bytes()) for name in NAMES}
        vectors = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        code, envelope = call(capsys, "doctor", folder)
        assert (code, set(envelope["metrics"]["lacking"])) == (0, NAMES)
        assert "--fix" in envelope["warnings"][0]
        assert before == {name: json.loads((folder / name).read_bytes()) for name in NAMES}
        code, envelope = call(capsys, "doctor", folder, "--fix")
        assert (code, envelope["warnings"], set(envelope["artifacts"])) == (0, [], NAMES)
        assert damage(folder) is None
        modules = before.pop("modules.json")
        for name, content in before.items():
            assert content.items() <= json.loads((folder / name).read_bytes()).items()
        for old, new in zip(modules, json.loads((folder / "modules.json").read_bytes()), strict=True):
            assert {**old, "type": new["type"]} == new
        np.testing.assert_array_equal(build_encoder(folder, device="cpu").encode(TEXTS), vectors)
        readers = servers.text_embeddings_inference, servers.vllm_before_september_2026
        assert [read(folder)[:2] for read in readers] == [("mean", 32)] * 2
        assert call(capsys, "doctor", folder, "--fix")[1]["artifacts"] == {}

    def test_the_demo_model_and_a_bare_backbone_lack_nothing(self, capsys, tiny_model_path):
        assert older_settings(demo_model_path()) == {}
        code, envelope = call(capsys, "doctor", tiny_model_path.parent / "backbone", "--fix")
        assert (code, envelope["artifacts"]) == (0, {})

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
