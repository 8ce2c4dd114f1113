import json
import resource
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import RelevanceHead, Threshold
from bixse.encoders.instructions import INSTRUCTIONS_FILE, check_prompt_borders, prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder, load_relevance_model
from bixse.encoders.relevance_model import RelevanceModel, save_whole, set_instructions
from bixse.errors import InputError, ModelError, StorageError
from helpers.command import odd_modes
from helpers.hub_cache import put_into_hub_cache

TEXTS = ["copy a file", "sleep in a thread", "move a folder"]


def test_a_model_without_a_head_is_refused(tiny_model, tiny_model_path):
    for probabilities in (lambda: tiny_model.relevance("copy", TEXTS), lambda: load_relevance_model(tiny_model_path)):
        with pytest.raises(ModelError, match=r"fix: .*bixse calibrate"):
            probabilities()


@pytest.mark.parametrize(
    ("query", "documents", "got"),
    [("copy", [None], "None"), (None, TEXTS, "None"), ("copy", ["a file", 3], "3"), ("copy", "text", "one string")],
)
def test_values_that_are_no_texts_are_refused(tiny_model, query, documents, got):
    tiny_model.head = RelevanceHead(20.0, -10.0)
    with pytest.raises(InputError) as caught:
        tiny_model.relevance(query, documents)
    assert caught.value.got.startswith(got)


def test_probabilities_are_the_sigmoid_of_the_scaled_cosine(tiny_model):
    tiny_model.head = RelevanceHead(20.0, -15.0, slope=0.5, intercept=1.0)
    vectors = tiny_model.encode(["copy", *TEXTS], normalize_embeddings=True).astype(np.float64)
    logits = 0.5 * (20 * vectors[1:] @ vectors[0] - 15) + 1
    np.testing.assert_allclose(tiny_model.relevance("copy", TEXTS), 1 / (1 + np.exp(-logits)), atol=2e-3)
    assert tiny_model.relevance("copy", []).shape == (0,)
    ends = RelevanceHead(1000.0, 0.0).probability(np.array([-1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(ends, [0.0, 0.5, 1.0])


def test_plain_sentence_transformers_loads_a_folder_with_a_head(tiny_model, tmp_path):
    tiny_model.head = RelevanceHead(20.0, -15.0, 0.5, 1.0, "100 pairs")
    tiny_model.save_pretrained(str(tmp_path))
    again = load_relevance_model(tmp_path, device="cpu")
    np.testing.assert_array_equal(again.relevance("copy", TEXTS), tiny_model.relevance("copy", TEXTS))
    plain = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(plain.encode(TEXTS), tiny_model.encode(TEXTS))


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


def test_a_damaged_table_in_a_model_folder_is_refused(tiny_model, tmp_path):
    set_instructions(tiny_model, TABLE)
    tiny_model.save_pretrained(str(tmp_path))
    (tmp_path / INSTRUCTIONS_FILE).write_text('{"tasks": 3}', encoding="utf-8")
    with pytest.raises(ModelError, match=INSTRUCTIONS_FILE):
        build_encoder(tmp_path, device="cpu")


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


def test_the_table_comes_back_with_the_model_and_the_choice_of_a_task_does_not(tiny_model, tmp_path):
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


def test_the_border_of_a_byte_pair_tokenizer(tiny_model):
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["Query: what is it", "is it what it is"] * 20, vocab_size=320, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="!")
    tiny_model[0].processor = tokenizer
    assert tokenizer.tokenize("Query: what")[-1] == "Ġwhat"  # the space belongs to the text, not to the prompt
    with pytest.raises(ModelError, match=r"got 'Query: ', of which the tokenizer joins the end"):
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
