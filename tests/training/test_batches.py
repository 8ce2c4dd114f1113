from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError
from bixse.training.loop.batches import BatchPlan, DrawnGroup, GradedCollator, GroupDataset


def test_documents_per_query_below_one_is_refused(graded_pairs):
    with pytest.raises(InputError, match="got 0; expected at least 1"):
        GroupDataset(graded_pairs, 0)


def test_the_most_relevant_document_is_always_drawn_and_the_others_change_with_the_epoch(graded_pairs):
    dataset = GroupDataset(graded_pairs, 2, seed=3)
    drawn = [[graded_pairs.document_ids[row] for row in dataset[epoch, 0].rows] for epoch in range(20)]
    group = graded_pairs.groups()[0]
    best = max(zip(group.relevance, group.document_ids, strict=True))[1]
    assert all(len(ids) == 2 and ids[0] == best for ids in drawn)
    assert len({ids[1] for ids in drawn}) > 1


def same(one, other):
    return one.number == other.number and one.rows.tolist() == other.rows.tolist()


def test_a_draw_depends_on_seed_epoch_and_group_alone(graded_pairs):
    first, second = (GroupDataset(graded_pairs, 3, seed=7) for _ in range(2))
    second[5, 4], second[0, 1]
    assert all(same(first[epoch, n], second[epoch, n]) for epoch in range(3) for n in range(len(first)))
    assert not all(same(first[0, n], GroupDataset(graded_pairs, 3, seed=8)[0, n]) for n in range(len(first)))


@pytest.mark.parametrize("batch_size", [1, 7, 30, 64])
def test_every_group_comes_once_an_epoch(graded_pairs, batch_size):
    sampler = BatchPlan(graded_pairs, batch_size, seed=1)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(number for _, number in chain(*batches)) == list(range(30))
    sampler.set_epoch(1)
    assert list(sampler) != batches
    assert {epoch for epoch, _ in chain(*sampler)} == {1}


def drawn(pairs, *chosen):
    """Groups with the rows of the table that stand in a batch; without any: all groups with all their rows."""
    if not chosen:
        return [GroupDataset(pairs)[0, number] for number in range(len(pairs.groups()))]
    return [DrawnGroup(number, np.array(rows)) for number, rows in chosen]


def entries(batch):
    """Known entries as sorted [row, column, relevance]."""
    parts = (batch["label"][name].tolist() for name in ("rows", "columns", "relevance"))
    return sorted(map(list, zip(*parts, strict=True)))


def shared_pairs():
    """Two queries that both judge document d; query b also judges e."""
    rows = [("a", "d", 1.0), ("b", "e", 0.5), ("b", "d", 0.25)]
    return GradedPairs.from_rows(
        {"query_id": q, "query": f"how do i {q}", "document_id": d, "document": f"the {d}", "relevance": z}
        for q, d, z in rows
    )


@pytest.mark.parametrize(
    ("in_batch_labels", "expected"),
    [("known", [[0, 0, 1.0], [1, 0, 0.25], [1, 1, 0.5]]), ("paper", [[0, 0, 1.0], [1, 1, 0.5]])],
)
def test_a_known_grade_of_another_rows_document_fills_its_cell_unless_paper_is_asked_for(
    tiny_model, in_batch_labels, expected
):
    pairs = shared_pairs()
    batch = GradedCollator(tiny_model.preprocess, pairs, in_batch_labels)(drawn(pairs, (0, [0]), (1, [1])))
    assert entries(batch) == expected


def pairs_of(*rows):
    """Rows of query id, query, document id, document, relevance."""
    names = ("query_id", "query", "document_id", "document", "relevance")
    return GradedPairs.from_rows(dict(zip(names, row, strict=True)) for row in rows)


@pytest.mark.parametrize("in_batch_labels", ["known", "paper"])
def test_a_text_under_two_ids_is_one_column_and_never_its_own_negative(tiny_model, in_batch_labels):
    pairs = pairs_of(
        ("a", "copy", "d1", "a file", 1.0), ("b", "move", "d2", "a file", 0.5), ("b", "move", "e", "b", 0.0)
    )
    batch = GradedCollator(tiny_model.preprocess, pairs, in_batch_labels)(drawn(pairs))
    assert batch["document_input_ids"].shape[0] == 2
    assert entries(batch) == [[0, 0, 1.0], [1, 0, 0.5], [1, 1, 0.0]]


def test_a_grade_known_under_one_id_of_a_text_holds_under_all(tiny_model):
    pairs = pairs_of(
        ("a", "copy", "d1", "a file", 1.0), ("a", "copy", "e", "b", 0.0), ("b", "move", "d2", "a file", 0.5)
    )
    batch = GradedCollator(tiny_model.preprocess, pairs)(drawn(pairs, (0, [1]), (1, [2])))
    assert entries(batch) == [[0, 0, 0.0], [0, 1, 1.0], [1, 1, 0.5]]


def test_two_queries_of_one_text_share_what_is_known(tiny_model):
    pairs = pairs_of(("a", "copy", "d", "a file", 1.0), ("b", "copy", "e", "b", 0.25))
    batch = GradedCollator(tiny_model.preprocess, pairs)(drawn(pairs))
    assert entries(batch) == [[0, 0, 1.0], [0, 1, 0.25], [1, 0, 1.0], [1, 1, 0.25]]


def test_what_one_task_knows_says_nothing_of_another(tiny_model):
    """The same two texts: a premise entails the other, and is no duplicate of it."""
    row = {"query": "copy", "document": "a file"}
    tasks = {"nli": 1.0, "twins": 0.0}
    pairs = GradedPairs.joined({t: GradedPairs.from_rows([{**row, "relevance": z}]) for t, z in tasks.items()})
    collate = GradedCollator(tiny_model.preprocess, pairs)
    assert [entries(collate([group])) for group in drawn(pairs)] == [[[0, 0, 1.0]], [[0, 0, 0.0]]]


@pytest.mark.parametrize("in_batch_labels", ["known", "paper"])
def test_grades_of_the_same_texts_that_differ_are_averaged(tiny_model, in_batch_labels):
    rows = [("a", "copy", "d1", "a file", 1.0), ("a", "copy", "d2", "a file", 0.0), ("b", "copy", "d1", "a file", 0.5)]
    pairs = pairs_of(*rows)
    collate = GradedCollator(tiny_model.preprocess, pairs, in_batch_labels)
    assert entries(collate(drawn(pairs))) == [[0, 0, 0.5], [1, 0, 0.5]]
    assert entries(collate(drawn(pairs)[:1])) == [[0, 0, 0.5]]
