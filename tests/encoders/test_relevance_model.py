import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import RelevanceHead, Threshold, save_heads
from bixse.encoders.instructions import INSTRUCTIONS_FILE, prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder, demo_model_path, model_hashes
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.encoders.serving import NEW_TYPE, POOLING_KEYS, older_settings
from bixse.encoders.weights import check_prompt_borders, set_instructions
from bixse.errors import InputError, ModelError, StorageError
from bixse.files.files import damage, write_hashes
from helpers import server_readers as servers
from helpers.command import call, odd_modes, refused
from helpers.hub_cache import put_into_hub_cache
from helpers.rerankers import scorer_of

TEXTS = ["copy a file", "sleep in a thread", "move a folder"]


def test_a_model_in_memory_becomes_what_its_saved_folder_would_be(tiny_model_path, tmp_path):
    model = SentenceTransformer(str(tiny_model_path), prompts={"query": "find: "}, device="cpu", truncate_dim=4)
    model.max_seq_length = 7
    model.save_pretrained(str(tmp_path))
    hashes = model_hashes(model)
    forward, model.forward = model.forward, None  # a trainer leaves a wrapped one
    copied, loaded = build_encoder(model, device="cpu"), build_encoder(tmp_path, device="cpu")
    model.forward = forward
    for kind in ("query", "document"):
        assert np.array_equal(*(encode_texts(each, TEXTS, kind) for each in (copied, loaded)))
    assert model_hashes(copied) == hashes == model_hashes(loaded) and copied.get_embedding_dimension() == 4
    copied.head = RelevanceHead(20.0, -10.0)
    again = build_encoder(copied, device="cpu")
    with torch.no_grad():
        next(copied.parameters()).mul_(2)
    assert again.head == RelevanceHead(20.0, -10.0, dimensions=4)
    assert model_hashes(copied) != hashes == model_hashes(again)
    model.prompts["query"] = "search: "
    assert model_hashes(model) != hashes and copied.prompts["query"] == "find: "


def test_rank_is_that_of_a_cross_encoder(tiny_model):
    for head in (None, RelevanceHead(20.0, -10.0)):
        tiny_model.head = head
        ranked = tiny_model.rank("copy", TEXTS, return_documents=True)
        cosines = (encode_texts(tiny_model, ["copy"], "query") @ encode_texts(tiny_model, TEXTS, "document").T)[0]
        assert [entry["corpus_id"] for entry in ranked] == np.argsort(-cosines).tolist()
        assert [entry["text"] for entry in ranked] == [TEXTS[entry["corpus_id"]] for entry in ranked]
        expected = cosines if head is None else tiny_model.relevance("copy", TEXTS)
        assert [entry["score"] for entry in ranked] == pytest.approx(sorted(expected, reverse=True))
        assert len(tiny_model.rank("copy", TEXTS, top_k=1)) == 1
    with pytest.raises(InputError):
        tiny_model.rank(["copy"], TEXTS)


def test_a_model_without_a_head_is_refused(tiny_model, tiny_model_path):
    for probabilities in (lambda: tiny_model.relevance("copy", TEXTS), lambda: load_relevance_model(tiny_model_path)):
        with pytest.raises(ModelError, match=r"fix: .*bixse calibrate"):
            probabilities()


@pytest.mark.parametrize(
    ("query", "documents", "got"),
    [
        ("copy", [None], "None"), (None, TEXTS, "None"), ("copy", ["a file", 3], "3"), ("copy", "text", "'text'"),
        (["copy"], TEXTS, "['copy']"), (7, TEXTS, "7"), ("copy", None, "None"), ("copy", 7, "7"),
        ("copy", b"a", "a blob"), ("copy", {"a": 1}, "{'a': 1}"), ("copy", {"a"}, "{'a'}"), ("copy", iter(TEXTS), "<"),
        ("copy", [["a"]], "['a']"), ("copy", ["\ud800"], "'\\ud800'"), ("\ud800", TEXTS, "'\\ud800'"),
    ],
)  # fmt: skip
def test_values_that_are_no_texts_are_refused(tiny_model, tiny_model_path, query, documents, got):
    scorer = scorer_of(tiny_model_path, "late-interaction")
    for model in (tiny_model, scorer):
        model.head = RelevanceHead(20.0, -10.0)
        with pytest.raises(InputError) as caught:
            model.relevance(query, documents)
        assert caught.value.got.startswith(got)
        if isinstance(documents, dict):
            assert "list(documents.values())" in caught.value.fix
        if isinstance(query, list):
            assert caught.value.expected == "one text"


def test_probabilities_are_the_sigmoid_of_the_scaled_cosine(tiny_model):
    tiny_model.head = RelevanceHead(20.0, -15.0, slope=0.5, intercept=1.0)
    vectors = tiny_model.encode(["copy", *TEXTS], normalize_embeddings=True).astype(np.float64)
    logits = 0.5 * (20 * vectors[1:] @ vectors[0] - 15) + 1
    np.testing.assert_allclose(tiny_model.relevance("copy", TEXTS), 1 / (1 + np.exp(-logits)), atol=2e-3)
    assert tiny_model.relevance("copy", []).shape == (0,)
    ends = RelevanceHead(1000.0, 0.0).probability(np.array([-1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(ends, [0.0, 0.5, 1.0])


def test_files_of_a_model_have_the_mode_of_a_new_file_or_keep_theirs(tiny_model, tmp_path):
    tiny_model.head = RelevanceHead(10.0, -5.0)
    tiny_model.save_pretrained(str(tmp_path / "model"))
    save_whole(tiny_model, tmp_path / "whole")
    assert odd_modes(tmp_path) == {}
    (tmp_path / "model" / "model.safetensors").chmod(0o640)
    tiny_model.save_pretrained(str(tmp_path / "model"))
    assert odd_modes(tmp_path) == {"model/model.safetensors": "0o640"}


def test_a_head_is_read_as_it_was_saved_and_of_an_older_version_without_priors(tmp_path):
    threshold = Threshold(0.9, 0.62, 0.91, 0.85, 0.95, 0.4, 120, 60, 0.5)
    head = RelevanceHead(20.0, -15.0, 0.5, 1.0, "100 pairs", 0.03, 0.01, (threshold,))
    head.save(tmp_path)
    assert RelevanceHead.load(tmp_path) == head
    assert head.at_prior(0.5).thresholds == ()
    with pytest.raises(InputError, match=r"precision: got 0\.5"):
        head.threshold_for(0.5)
    old = {"logit_scale": 20.0, "logit_bias": -15.0, "slope": 0.5, "intercept": 1.0, "calibrated_on": "100 pairs"}
    (tmp_path / "relevance_head.json").write_text(json.dumps(old))
    assert RelevanceHead.load(tmp_path) == RelevanceHead(20.0, -15.0, 0.5, 1.0, "100 pairs")


def changed_weights(model):
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)


@pytest.mark.parametrize("dense", [False, True])
def test_a_head_stays_with_its_weights_and_goes_when_others_are_saved_over_them(
    tiny_model, tmp_path, caplog, capsys, dense
):
    head, folder = RelevanceHead(10.0, -5.0), tmp_path / "model"
    if dense:
        width = tiny_model.get_embedding_dimension()
        tiny_model.append(st_modules.Dense(width, width))
    tiny_model.head = head
    save_whole(tiny_model, folder)
    plain = SentenceTransformer(str(folder), device="cpu")
    plain.save_pretrained(str(folder))  # the same weights
    (folder / "SHA256SUMS").unlink()
    shutil.copytree(folder, folder / "checkpoint-1")
    moved = shutil.move(folder, tmp_path / "moved")
    assert load_relevance_model(moved).head == head
    changed_weights(plain[-1] if dense else plain)
    plain.save_pretrained(str(moved))
    with pytest.raises(ModelError) as caught:
        load_relevance_model(moved)
    assert "head" in caught.value.got and "relevance_head.json" in caplog.text
    assert ("2_Dense" in caplog.text) == dense
    assert RelevanceHead.load(moved) is None and RelevanceHead.load(moved / "checkpoint-1") == head
    new = RelevanceHead(8.0, -4.0, calibrated_on="the new weights")
    new.save(moved)
    assert load_relevance_model(moved).head == new


def test_weights_in_parts_keep_their_head_and_a_model_without_one_drops_that_of_the_folder(tiny_model, tmp_path):
    tiny_model.head = RelevanceHead(10.0, -5.0)
    tiny_model.save_pretrained(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    tiny_model[0].auto_model.save_pretrained(str(tmp_path), max_shard_size="20KB")
    assert RelevanceHead.load(tmp_path) is None, "bixse did not write these parts"
    save_heads(tiny_model.heads, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 and RelevanceHead.load(tmp_path) == tiny_model.head
    tiny_model.head = None
    changed_weights(tiny_model)
    tiny_model.save_pretrained(str(tmp_path))
    assert not (tmp_path / "relevance_head.json").exists()


BROKEN = [(key, value) for key in ("logit_scale", "logit_bias", "slope", "intercept")
          for value in (None, "1", [1], float("nan"), float("inf"))]  # fmt: skip
BROKEN += [("slope", -1), ("prior", 2.0), ("prior", "x"), ("trained_prior", float("nan")), ("thresholds", 5)]
BROKEN += [("thresholds", [{"precision": 0.9}]), ("thresholds", [[0.9, 0.5]])]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_a_damaged_head_is_refused(tmp_path, key, value):
    RelevanceHead(20.0, -10.0).save(tmp_path)
    path = tmp_path / "relevance_head.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))
    with pytest.raises(ModelError, match=rf"relevance_head\.json: got no readable relevance head \({key}") as caught:
        RelevanceHead.load(tmp_path)
    assert "https://" not in str(caught.value)


@pytest.mark.parametrize("saved_by", ["save", "save_pretrained", "save_whole"])
def test_a_full_disk_is_a_storage_error(tiny_model, tmp_path, saved_by):
    # safetensors raises an error of its own; the limit on a file's size stands for a full disk
    save = {"save_whole": lambda folder: save_whole(tiny_model, Path(folder))}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StorageError, match=rf"{tmp_path}.*File too large .*fix:"):
            save.get(saved_by, getattr(tiny_model, saved_by, None))(str(tmp_path / "model"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "model" / "model.safetensors").exists()


TABLE = Instructions(
    template="{instruction} of\n",
    tasks={"find": {"instructions": ["find the file"]}, "match": {"instructions": ["match text"], "symmetric": True}},
)


def test_several_tasks_without_default_must_be_chosen_from(tiny_model):
    with pytest.raises(InputError, match="got 'find' for a model without task instructions"):
        use_task(tiny_model, "find")
    set_instructions(tiny_model, TABLE)
    with pytest.raises(InputError, match="got no task; expected one of find, match"):
        encode_texts(tiny_model, ["copy"], "query")
    use_task(tiny_model, "find")
    assert prompt_for(tiny_model, "query") == "find the file of\n"
    assert prompt_for(tiny_model, "document") is None
    use_task(tiny_model, "match")
    assert prompt_for(tiny_model, "query") == prompt_for(tiny_model, "document") == "match text of\n"


def test_the_table_comes_back_unless_it_is_damaged_and_the_choice_of_a_task_does_not(tiny_model, tmp_path):
    set_instructions(tiny_model, TABLE.model_copy(update={"default": "list"}))
    use_task(tiny_model, "match")
    chosen = encode_texts(tiny_model, ["copy the file"], "document")
    tiny_model.save_pretrained(str(tmp_path))
    loaded = build_encoder(tmp_path, device="cpu")
    assert loaded.instructions == tiny_model.instructions
    assert prompt_for(loaded, "query") == "list of\n"
    assert prompt_for(loaded, "document") is None
    assert prompts_hash(loaded) != prompts_hash(tiny_model)
    use_task(loaded, "match")
    np.testing.assert_allclose(encode_texts(loaded, ["copy the file"], "document"), chosen, atol=1e-6)
    plain = SentenceTransformer(str(tmp_path), device="cpu")
    assert plain.prompts["match"] == "match text of\n"
    by_name = plain.encode(["copy"], prompt_name="match", normalize_embeddings=True)
    np.testing.assert_allclose(encode_texts(loaded, ["copy"], "query", "float32"), by_name, atol=1e-6)
    assert json.loads((tmp_path / INSTRUCTIONS_FILE).read_text())["default"] == "list"
    (tmp_path / INSTRUCTIONS_FILE).write_text('{"tasks": 3}', encoding="utf-8")
    with pytest.raises(ModelError, match=INSTRUCTIONS_FILE):
        build_encoder(tmp_path, device="cpu")


def test_the_border_of_a_byte_pair_tokenizer(tiny_model):
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["Query: what is it", "is it what it is"] * 20, vocab_size=320, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="!")
    tiny_model[0].processor = tokenizer
    assert tokenizer.tokenize("Query: what")[-1] == "Ġwhat"  # the space belongs to the text, not to the prompt
    with pytest.raises(ModelError, match="got 'Query: ', whose end the tokenizer joins"):
        check_prompt_borders(tiny_model, ["Query:\n", "Query: "])
    check_prompt_borders(tiny_model, ["Query:\n"])


def test_prompts_of_the_base_model_are_kept_and_those_of_an_earlier_table_are_not(tiny_model):
    tiny_model.prompts = {"query": "old", "Clustering": "clustering: "}
    set_instructions(tiny_model, TABLE)
    assert set(tiny_model.prompts) == {"Clustering", "find", "match", "document"}
    set_instructions(tiny_model, Instructions(tasks={"other": {"instructions": ["sort"]}}))
    assert set(tiny_model.prompts) == {"Clustering", "other", "query", "document"}


def test_a_hub_name_brings_head_and_instructions(tiny_model, tmp_path):
    set_instructions(tiny_model, TABLE)
    tiny_model.head = RelevanceHead(10.0, -5.0)
    tiny_model.save_pretrained(str(tmp_path / "model"))
    put_into_hub_cache(tmp_path / "model", tmp_path, "me--mine")
    loaded = RelevanceModel("me/mine", cache_folder=str(tmp_path), device="cpu", local_files_only=True)
    assert loaded.head == tiny_model.head
    assert loaded.instructions == TABLE


LONG_TEXTS = ["copy", "copy a file in the tree", "move the folder " * 30]
PROMPTS = {"query": "find ", "document": ""}


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("last", [[Normalize()], []], ids=["normalised", "not normalised"])
def test_servers_agree_with_sentence_transformers_and_it_loads_the_same_vectors(tiny_model, tmp_path, pooling, last):
    tiny_model[0].max_seq_length = 20  # of its 64 positions
    parts = [tiny_model[0], Pooling(32, pooling), *last]
    SentenceTransformer(modules=parts, prompts=PROMPTS, device="cpu").save_pretrained(str(tmp_path / "plain"))
    ours = RelevanceModel(modules=parts, prompts=PROMPTS, device="cpu")
    ours.head = RelevanceHead(20.0, -15.0, 0.5, 1.0, "100 pairs")
    ours.save(str(tmp_path / "ours"))
    again = load_relevance_model(tmp_path / "ours", device="cpu")
    np.testing.assert_array_equal(again.relevance("copy", TEXTS), ours.relevance("copy", TEXTS))
    loaded, plain = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("ours", "plain"))
    np.testing.assert_array_equal(loaded.encode(LONG_TEXTS), plain.encode(LONG_TEXTS))
    np.testing.assert_array_equal(loaded.encode_query(LONG_TEXTS), plain.encode_query(LONG_TEXTS))
    assert (loaded[1].pooling_mode, loaded.max_seq_length, loaded.prompts) == (pooling, 20, PROMPTS)
    right = servers.Served(pooling, 20, len(parts) == 3, PROMPTS)
    assert servers.text_embeddings_inference(tmp_path / "ours") == right._replace(normalised=True)  # a request decides
    assert servers.vllm_before_september_2026(tmp_path / "ours") == right._replace(prompts={})  # the client writes them
    saved = json.loads((tmp_path / "ours" / "1_Pooling" / "config.json").read_text())
    older = [(key, mode == pooling) for mode, key in POOLING_KEYS.items()]
    assert list(saved.items())[: len(older)] == older, "llama.cpp needs every key, vLLM of 2024 took the first true one"
    with pytest.raises(servers.RefusedError):
        servers.text_embeddings_inference(tmp_path / "plain")
    assert servers.vllm_before_september_2026(tmp_path / "plain").pooling is None


@pytest.mark.parametrize("pooling", ["max", "weightedmean", ["cls", "mean"]], ids=str)
def test_a_pooling_that_servers_lack_has_a_key_of_its_own(tiny_model, tmp_path, pooling):
    tiny_model[1] = Pooling(32, pooling)
    tiny_model.save(str(tmp_path))
    assert SentenceTransformer(str(tmp_path), device="cpu")[1].pooling_mode == tiny_model[1].pooling_mode
    saved = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    modes = [pooling] if isinstance(pooling, str) else pooling
    assert {key for key, value in saved.items() if value is True} >= {POOLING_KEYS[mode] for mode in modes}


@pytest.mark.slow
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
    def folder(self, model):
        """A folder as plain sentence-transformers saves it, with hashes."""
        write_hashes(model)
        return model

    def test_fix_adds_missing_keys_changes_none_and_keeps_the_hashes(self, capsys, folder):
        before = {name: json.loads((folder / name).read_bytes()) for name in NAMES}
        vectors = SentenceTransformer(str(folder), device="cpu").encode(LONG_TEXTS)
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
        np.testing.assert_array_equal(build_encoder(folder, device="cpu").encode(LONG_TEXTS), vectors)
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
