import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from bixse.data.graded_pairs import GradedPairs
from bixse.encoders.embedding import embed_features
from bixse.encoders.encode import encode_texts
from bixse.losses import BiXSELoss
from bixse.training.loop.batches import GroupDataset
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

QUERIES = ["how do i copy", "sort"]
DOCUMENTS = ["copy", "move a file", "sort the list of words in a file", "time", "read the text and sort it"]
PAIRS = GradedPairs.from_rows(
    {"query": query, "document": document, "relevance": number / 10}
    for query in QUERIES
    for number, document in enumerate(DOCUMENTS)
)


def trainer_of(model, folder, **changes):
    arguments = GradedTrainingArguments(str(folder), max_steps=1, report_to="none", **changes)
    return GradedTrainer(model, arguments, train_dataset=PAIRS, loss=BiXSELoss(model))


def whole_batch(trainer):
    return trainer.data_collator([GroupDataset(PAIRS)[0, number] for number in range(len(PAIRS.groups()))])


def check_equal(trainer, model, passes=2):
    features, _ = trainer.collect_features(whole_batch(trainer))
    model.eval()
    with torch.no_grad():
        queries, documents = (normalize(embed_features(model, part, passes), dim=-1).numpy() for part in features)
    for vectors, texts, kind in ((queries, QUERIES, "query"), (documents, DOCUMENTS, "document")):
        np.testing.assert_allclose(vectors, encode_texts(model, texts, kind, precision="float32"), atol=1e-6)


@pytest.mark.parametrize("passes", [2, 32])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_prompt_is_pooled_or_left_out_alike(tiny_model, tmp_path, include_prompt, passes: int):
    tiny_model.prompts = {"query": "find the list of ", "document": "text of a disk "}
    tiny_model[1].include_prompt = include_prompt
    trainer = trainer_of(tiny_model, tmp_path)
    check_equal(trainer, tiny_model, passes)
    features, _ = trainer.collect_features(whole_batch(trainer))
    assert [part["prompt_length"] for part in features] == [5, 5]


@pytest.mark.parametrize(
    ("prompts", "default"), [({"query": "find ", "passage": "text "}, None), ({"any": "sort ", "query": ""}, "any")]
)
def test_prompts_under_every_name_sentence_transformers_knows(tiny_model, tmp_path, prompts, default: str | None):
    tiny_model.prompts, tiny_model.default_prompt_name = prompts, default
    trainer = trainer_of(tiny_model, tmp_path)
    expected = {"passage": "text ", "any": "sort "}["any" if default else "passage"]
    assert trainer.data_collator.prompts["document"] == expected
    check_equal(trainer, tiny_model)


def test_a_router_takes_the_route_of_each_column_and_every_route_is_shortened_and_restored(router_model, tmp_path):
    query, document = (router_model[0].sub_modules[route][0] for route in ("query", "document"))
    document.max_seq_length = 6
    check_equal(trainer_of(router_model, tmp_path), router_model)
    batch = whole_batch(trainer_of(router_model, tmp_path, train_max_length=4))
    assert (batch["query_input_ids"].shape[1], batch["document_input_ids"].shape[1]) == (4, 4)
    assert (query.max_seq_length, document.max_seq_length) == (32, 6)


def test_truncated_embeddings_are_truncated_in_training(tiny_model, tmp_path):
    tiny_model.truncate_dim = 8
    check_equal(trainer_of(tiny_model, tmp_path), tiny_model)
