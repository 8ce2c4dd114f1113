import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import RelevanceHead
from bixse.encoders.instructions import INSTRUCTIONS_FILE, check_prompt_borders, prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel, set_instructions
from bixse.errors import InputError, ModelError
from helpers.hub_cache import put_into_hub_cache

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
