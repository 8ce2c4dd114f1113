from __future__ import annotations

import json

import numpy as np
import pytest

from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import (
    INSTRUCTIONS_FILE,
    check_prompt_borders,
    prompt_for,
    prompts_hash,
    use_task,
)
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import set_instructions
from bixse.errors import InputError, ModelError

TABLE = Instructions(
    template="{instruction} of\n",
    tasks={"find": {"instructions": ["find the file"]}, "match": {"instructions": ["match text"], "symmetric": True}},
)


def test_a_damaged_table_in_a_model_folder(tiny_model, tmp_path):
    set_instructions(tiny_model, TABLE)
    tiny_model.save_pretrained(str(tmp_path))
    (tmp_path / INSTRUCTIONS_FILE).write_text('{"tasks": 3}', encoding="utf-8")
    with pytest.raises(ModelError, match="no readable table of instructions"):
        build_encoder(tmp_path, device="cpu")


def test_a_task_for_a_model_without_instructions(tiny_model):
    with pytest.raises(InputError, match="got 'find' for a model without task instructions"):
        use_task(tiny_model, "find")


def test_several_tasks_without_default_must_be_chosen_from(tiny_model):
    """No prompt at all would be a silent change of every embedding."""
    set_instructions(tiny_model, TABLE)
    with pytest.raises(InputError, match="got no task; expected one of find, match"):
        encode_texts(tiny_model, ["copy"], "query")
    use_task(tiny_model, "find")
    assert prompt_for(tiny_model, "query") == "find the file of\n"
    assert prompt_for(tiny_model, "document") is None
    use_task(tiny_model, "match")
    assert prompt_for(tiny_model, "query") == prompt_for(tiny_model, "document") == "match text of\n"


def test_the_table_comes_back_with_the_model_and_the_choice_of_a_task_does_not(tiny_model, tmp_path):
    from sentence_transformers import SentenceTransformer

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
    assert np.allclose(encode_texts(loaded, ["copy the file"], "document"), chosen, atol=1e-6)
    plain = SentenceTransformer(str(tmp_path), device="cpu")
    assert plain.prompts["match"] == "match text of\n"
    assert np.allclose(plain.encode("copy", prompt_name="match", normalize_embeddings=True),
                       encode_texts(loaded, ["copy"], "query", "float32"), atol=1e-6)  # fmt: skip
    assert json.loads((tmp_path / INSTRUCTIONS_FILE).read_text())["default"] == "list"


def test_the_border_of_a_byte_pair_tokenizer(tiny_model):
    """In such tokens a space belongs to the word that follows: the count of the prompt's tokens would be one too high
    and the first token of every text would be left out with the prompt."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["Query: what is it", "is it what it is"] * 20, vocab_size=320, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="!")
    tiny_model[0].processor = tokenizer
    assert tokenizer.tokenize("Query: what")[-1] == "Ġwhat"
    with pytest.raises(ModelError, match=r"got 'Query: ', of which the tokenizer joins the end"):
        check_prompt_borders(tiny_model, ["Query:\n", "Query: "])
    check_prompt_borders(tiny_model, ["Query:\n"])


def test_prompts_of_the_base_model_are_kept_and_those_of_an_earlier_table_are_not(tiny_model):
    tiny_model.prompts = {"query": "old", "Clustering": "clustering: "}
    set_instructions(tiny_model, TABLE)
    assert set(tiny_model.prompts) == {"Clustering", "find", "match", "document"}
    set_instructions(tiny_model, Instructions(tasks={"other": {"instructions": ["sort"]}}))
    assert set(tiny_model.prompts) == {"Clustering", "other", "query", "document"}


def test_a_hub_name_brings_head_and_instructions(tiny_model, tmp_path, monkeypatch):
    """The files are looked for where the weights are: here in a cache folder as the hub leaves it."""
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.relevance_model import RelevanceModel

    set_instructions(tiny_model, TABLE)
    tiny_model.head = RelevanceHead(10.0, -5.0)
    snapshot = tmp_path / "models--me--mine" / "snapshots" / ("0" * 40)
    tiny_model.save_pretrained(str(snapshot))
    (tmp_path / "models--me--mine" / "refs").mkdir()
    (tmp_path / "models--me--mine" / "refs" / "main").write_text("0" * 40)
    loaded = RelevanceModel("me/mine", cache_folder=str(tmp_path), device="cpu", local_files_only=True)
    assert loaded.head == tiny_model.head
    assert loaded.instructions == TABLE
