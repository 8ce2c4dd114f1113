import re
import sys
import threading
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch.nn.functional import normalize

from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_several, save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.data.task_instructions import Instructions
from bixse.encoders.embedding import embed_features, passes_by_length
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.losses import BiXSELoss
from bixse.training.loop.batches import COUNTS, BatchPlan, DrawnGroup, GradedCollator, GroupDataset
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments


def test_documents_per_query_below_one_is_refused(graded_pairs):
    with pytest.raises(InputError) as caught:
        GroupDataset(graded_pairs, 0)
    assert (caught.value.where, caught.value.got) == ("documents_per_query", "0")


def test_the_most_relevant_document_is_always_drawn_and_the_others_change_with_the_epoch(graded_pairs):
    dataset = GroupDataset(graded_pairs, 2, seed=3)
    drawn = [[graded_pairs.document_ids[row] for row in dataset[epoch, 0].rows] for epoch in range(20)]
    group = graded_pairs.groups()[0]
    best = max(zip(group.relevance, group.document_ids, strict=True))[1]
    assert all(len(ids) == 2 and ids[0] == best for ids in drawn)
    assert len({ids[1] for ids in drawn}) > 1


def test_a_draw_depends_on_seed_epoch_and_group_alone(graded_pairs):
    first, second = (GroupDataset(graded_pairs, 3, seed=7) for _ in range(2))
    second[5, 4], second[0, 1]
    rows = [
        [dataset[epoch, number].rows.tolist() for epoch in range(3) for number in range(len(first))]
        for dataset in (first, second, GroupDataset(graded_pairs, 3, seed=8))
    ]
    assert rows[0] == rows[1] != rows[2]


def drawn(pairs, *chosen):
    """Return groups with some rows of the table, by default all groups with all their rows."""
    if not chosen:
        return [GroupDataset(pairs)[0, number] for number in range(len(pairs.groups()))]
    return [DrawnGroup(number, np.array(rows)) for number, rows in chosen]


def entries(batch):
    """Known entries as sorted [row, column, relevance]."""
    parts = (batch["label"][name].tolist() for name in ("rows", "columns", "relevance"))
    return sorted(map(list, zip(*parts, strict=True)))


FILE, SORT = ("d", "a file"), ("e", "b")
"""Id and text of two documents."""
GRADES = {
    "another row's document": (
        [("a", "copy", *FILE, 1.0), ("b", "move", *SORT, 0.5), ("b", "move", *FILE, 0.25)],
        [(0, [0]), (1, [1])],
        [[0, 0, 1.0], [1, 0, 0.25], [1, 1, 0.5]],
        [[0, 0, 1.0], [1, 1, 0.5]],
    ),
    "another id of the text": (
        [("a", "copy", *FILE, 1.0), ("a", "copy", *SORT, 0.0), ("b", "move", "d2", "a file", 0.5)],
        [(0, [1]), (1, [2])],
        [[0, 0, 0.0], [0, 1, 1.0], [1, 1, 0.5]],
        [[0, 0, 0.0], [1, 1, 0.5]],
    ),
    "another query of the text": (
        [("a", "copy", *FILE, 1.0), ("b", "copy", *SORT, 0.25)],
        [],
        [[0, 0, 1.0], [0, 1, 0.25], [1, 0, 1.0], [1, 1, 0.25]],
        [[0, 0, 1.0], [1, 1, 0.25]],
    ),
    "a text under two ids is one column": (
        [("a", "copy", *FILE, 1.0), ("b", "move", "d2", "a file", 0.5), ("b", "move", *SORT, 0.0)],
        [],
        *[[[0, 0, 1.0], [1, 0, 0.5], [1, 1, 0.0]]] * 2,
    ),
    "grades of the same texts are averaged": (
        [("a", "copy", *FILE, 1.0), ("a", "copy", "d2", "a file", 0.0), ("b", "copy", *FILE, 0.5)],
        [],
        *[[[0, 0, 0.5], [1, 0, 0.5]]] * 2,
    ),
    "also those of a query outside the batch": (
        [("a", "copy", *FILE, 1.0), ("a", "copy", "d2", "a file", 0.0), ("b", "copy", *FILE, 0.5)],
        [(0, [0, 1])],
        *[[[0, 0, 0.5]]] * 2,
    ),
}
"""Rows, the rows of each group in the batch, and the entries that have a grade with known and with paper labels."""


def pairs_of(*rows):
    names = ("query_id", "query", "document_id", "document", "relevance")
    return Pairs.from_rows(dict(zip(names, row, strict=True)) for row in rows)


@pytest.mark.parametrize("case", GRADES)
def test_a_known_grade_fills_its_cell_and_labels_of_the_paper_only_those_of_the_rows_own_documents(tiny_model, case):
    rows, chosen, *expected = GRADES[case]
    pairs = pairs_of(*rows)
    for in_batch_labels, cells in zip(("known", "paper"), expected, strict=True):
        batch = GradedCollator(tiny_model.preprocess, pairs, in_batch_labels)(drawn(pairs, *chosen))
        assert entries(batch) == cells
        assert batch["document_input_ids"].shape[0] == 1 + max(column for _, column, _ in cells)


def test_what_one_task_knows_says_nothing_of_another(tiny_model):
    row = {"query": "copy", "document": "a file"}
    tasks = {"nli": 1.0, "twins": 0.0}
    pairs = Pairs.joined({t: Pairs.from_rows([{**row, "relevance": z}]) for t, z in tasks.items()})
    collate = GradedCollator(tiny_model.preprocess, pairs)
    assert [entries(collate([group])) for group in drawn(pairs)] == [[[0, 0, 1.0]], [[0, 0, 0.0]]]


SIZES = {"a": 37, "b": 10, "c": 64}


def pairs_of_tasks(sizes=SIZES):
    return Pairs.from_rows(
        {"query": f"{task} {n}", "document": f"the {'list ' * (n % 7)}{task} {n}", "relevance": 1.0, "task": task}
        for task, size in sizes.items()
        for n in range(size)
    )


@pytest.mark.parametrize(("size", "number"), [(1, 111), (8, 5 + 2 + 8), (64, 3)])
def test_a_batch_holds_one_task_and_every_query_stands_in_one_batch_of_an_epoch(size, number):
    pairs = pairs_of_tasks()
    groups, plan = pairs.groups(), BatchPlan(pairs, size, seed=1)
    epochs = []
    for epoch in range(2):
        plan.set_epoch(epoch)
        batches = list(plan)
        epochs.append([index for _, index in chain(*batches)])
        assert len(batches) == len(plan) == number
        assert {first for first, _ in chain(*batches)} == {epoch}
        assert all(len({groups[number].task for _, number in batch}) == 1 for batch in batches)
        turns = [groups[batch[0][1]].task for batch in batches]
        assert turns != sorted(turns)
        assert sorted(epochs[-1]) == list(range(sum(SIZES.values())))
    assert epochs[0] != epochs[1]


def test_shares_of_tasks_are_drawn_anew_each_epoch():
    pairs = pairs_of_tasks()
    groups, plan = pairs.groups(), BatchPlan(pairs, 8, shares={"c": 0.25, "a": 0.5})
    drawn = []
    for epoch in range(8):
        plan.set_epoch(epoch)
        numbers = [number for _, number in chain(*plan)]
        assert len(numbers) == len(set(numbers)) == round(37 * 0.5) + 10 + 16
        drawn.append({number for number in numbers if groups[number].task == "c"})
    assert len(plan) == 3 + 2 + 2
    assert len(set().union(*drawn)) > 50


@pytest.mark.parametrize(("shares", "got"), [({"d": 0.5}, "'d'"), ({"a": 0.0}, "0.0"), ({"a": 1.5}, "1.5")])
def test_shares_that_cannot_be_used(shares, got):
    with pytest.raises(InputError, match=f"task_shares: got .*{got}"):
        BatchPlan(pairs_of_tasks(), 8, shares=shares)


def test_less_than_a_tenth_of_what_the_encoder_computes_is_padding():
    model = build_encoder("demo", device="cpu")
    pairs = Pairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE)
    dataset, collate = GroupDataset(pairs, 4), GradedCollator(model.preprocess, pairs)
    tokens = positions = padded = 0
    for batch in islice(BatchPlan(pairs, 16), 6):
        features = collate([dataset[index] for index in batch])
        for mask in (features["query_attention_mask"], features["document_attention_mask"]):
            tokens += int(mask.sum())
            lengths = np.sort(mask.sum(dim=1).numpy())
            ends = np.cumsum(passes_by_length(lengths))
            positions += int((np.diff(ends, prepend=0) * lengths[ends - 1]).sum())
            padded += mask.numel()
    assert 1 - tokens / positions < 0.1
    assert 1 - tokens / padded > 0.3


def test_one_of_several_instructions_is_chosen_by_the_queries_of_the_batch_for_both_sides(tiny_model):
    tasks = {"b": {"instructions": ["match", "sort"], "symmetric": True}}
    pairs, prompts = pairs_of_tasks({"b": 40}), Instructions(template="{instruction} of\n", tasks=tasks)

    def first_words(batch):
        groups = [GroupDataset(pairs)[0, number] for number in batch]
        features = GradedCollator(tiny_model.preprocess, pairs, prompts=prompts)(groups)
        ids = *features["query_input_ids"], *features["document_input_ids"]
        return {tiny_model.tokenizer.decode(text, skip_special_tokens=True).split()[0] for text in ids}

    chosen = [first_words([n, n + 1]) for n in range(0, 40, 2)]
    assert chosen == [first_words([n, n + 1]) for n in range(0, 40, 2)]
    assert {"match"} in chosen and {"sort"} in chosen and {"match", "sort"} not in chosen


def test_a_batch_counts_its_duplicates_and_filled_entries(tiny_model):
    rows = [("a", "x", 1.0), ("a", "y", 0.5), ("b", "x", 0.25), ("b", "z", 0.0)]
    pairs = pairs_of(*((query, query, document, document, z) for query, document, z in rows))
    collate = GradedCollator(tiny_model.preprocess, pairs)
    groups = drawn(pairs, (0, [0, 1]), (1, [3]))  # x is not drawn for q2
    counts = dict(zip(COUNTS, collate(groups)["counts"].tolist(), strict=True))
    assert counts.pop("tokens") > 0
    assert counts == {"queries": 2, "pairs": 3, "duplicate_documents": 0, "filled_entries": 1, "masked_entries": 0}
    counted = collate(drawn(pairs))["counts"].tolist()
    assert dict(zip(COUNTS, counted, strict=True))["duplicate_documents"] == 1


QUERIES = ["how do i copy", "sort"]
DOCUMENTS = ["copy", "move a file", "sort the list of words in a file", "time", "read the text and sort it"]
PAIRS = Pairs.from_rows(
    {"query": query, "document": document, "relevance": number / 10}
    for query in QUERIES
    for number, document in enumerate(DOCUMENTS)
)


def trainer_of(model, folder, data=PAIRS, **changes):
    arguments = GradedTrainingArguments(str(folder), max_steps=1, report_to="none", **changes)
    return GradedTrainer(model, arguments, train_dataset=data, loss=BiXSELoss(model))


def whole_batch(trainer):
    return trainer.data_collator([GroupDataset(PAIRS)[0, number] for number in range(len(PAIRS.groups()))])


def check_equal(trainer, model, passes=2):
    features, _ = trainer.collect_features(send_to_device(whole_batch(trainer), model.device))
    model.eval()
    with torch.no_grad():
        queries, documents = (normalize(embed_features(model, part, passes), dim=-1).cpu().numpy() for part in features)
    for vectors, texts, kind in ((queries, QUERIES, "query"), (documents, DOCUMENTS, "document")):
        np.testing.assert_allclose(vectors, encode_texts(model, texts, kind, precision="float32"), atol=1e-6)


@pytest.mark.parametrize("passes", [2, 32])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_prompt_is_pooled_or_left_out_alike_and_embeddings_are_truncated(
    tiny_model, tmp_path, include_prompt, passes: int
):
    tiny_model.truncate_dim = 8
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
    assert trainer_of(tiny_model, tmp_path, prompts="a ").data_collator.prompts == {"query": "a ", "document": "a "}
    check_equal(trainer, tiny_model)


def test_a_router_takes_the_route_of_each_column_and_every_route_is_shortened_and_restored(router_model, tmp_path):
    query, document = (router_model[0].sub_modules[route][0] for route in ("query", "document"))
    document.max_seq_length = 6
    check_equal(trainer_of(router_model, tmp_path), router_model)
    batch = whole_batch(trainer_of(router_model, tmp_path, train_max_length=4))
    assert (batch["query_input_ids"].shape[1], batch["document_input_ids"].shape[1]) == (4, 4)
    assert (query.max_seq_length, document.max_seq_length) == (32, 6)


def test_a_pair_passes_the_functions_of_the_design_page_and_at_most_30(tiny_model, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    listed = page.partition("a graded pair passes these functions")[2].partition("Objects in memory")[0]
    names = {name for name in re.findall(r"`([^`]+)`", listed) if "/" not in name}
    assert 25 < len(names) <= 30
    passed = set()

    def see(frame, event, _):
        if "bixse" in frame.f_code.co_filename:
            passed.update((frame.f_code.co_name, frame.f_code.co_qualname))

    save_graded_pairs(PAIRS, tmp_path / "pairs.jsonl")
    sys.setprofile(see)
    threading.setprofile(see)  # a thread makes the batches
    try:
        trainer_of(tiny_model, tmp_path, load_several([tmp_path / "pairs.jsonl"])).train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert not names - passed
