from __future__ import annotations

import json

import numpy as np
import pytest

from bixse.data.instructions import Instructions
from bixse.encoders.build import build_encoder
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import (
    INSTRUCTIONS_FILE,
    check_prompt_borders,
    prompts_hash,
    set_instructions,
    use_task,
)
from bixse.encoders.prompts import prompt_for
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
                       encode_texts(loaded, ["copy"], "query"), atol=1e-6)  # fmt: skip
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
    tiny_model.prompts = {"query": "Query: "}
    with pytest.raises(ModelError, match=r"prompt 'query': got 'Query: ', of which the tokenizer joins the end"):
        check_prompt_borders(tiny_model)
    tiny_model.prompts = {"query": "Query:\n"}
    check_prompt_borders(tiny_model)


def test_white_space_before_a_text_joins_nothing_in_word_pieces(tiny_model):
    tiny_model.prompts = {"query": "list "}
    check_prompt_borders(tiny_model)
