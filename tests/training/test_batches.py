import numpy as np
import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError
from bixse.training.loop.batches import DrawnGroup, GradedCollator, GroupDataset


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


def rows_of(dataset, indices):
    return [dataset[index].rows.tolist() for index in indices]


def test_a_draw_depends_on_seed_epoch_and_group_alone(graded_pairs):
    first, second = (GroupDataset(graded_pairs, 3, seed=7) for _ in range(2))
    second[5, 4], second[0, 1]
    indices = [(epoch, number) for epoch in range(3) for number in range(len(first))]
    assert rows_of(first, indices) == rows_of(second, indices) != rows_of(GroupDataset(graded_pairs, 3, 8), indices)


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
KNOWN = {
    "another row's document": (
        [("a", "copy", *FILE, 1.0), ("b", "move", *SORT, 0.5), ("b", "move", *FILE, 0.25)],
        [(0, [0]), (1, [1])],
        [[0, 0, 1.0], [1, 0, 0.25], [1, 1, 0.5]],
    ),
    "another id of the text": (
        [("a", "copy", *FILE, 1.0), ("a", "copy", *SORT, 0.0), ("b", "move", "d2", "a file", 0.5)],
        [(0, [1]), (1, [2])],
        [[0, 0, 0.0], [0, 1, 1.0], [1, 1, 0.5]],
    ),
    "another query of the text": (
        [("a", "copy", *FILE, 1.0), ("b", "copy", *SORT, 0.25)],
        [],
        [[0, 0, 1.0], [0, 1, 0.25], [1, 0, 1.0], [1, 1, 0.25]],
    ),
}
"""Rows, the rows of each group in the batch, and the entries that are then known."""


def pairs_of(*rows):
    names = ("query_id", "query", "document_id", "document", "relevance")
    return GradedPairs.from_rows(dict(zip(names, row, strict=True)) for row in rows)


@pytest.mark.parametrize("case", KNOWN)
def test_a_known_grade_fills_its_cell(tiny_model, case):
    rows, chosen, expected = KNOWN[case]
    pairs = pairs_of(*rows)
    assert entries(GradedCollator(tiny_model.preprocess, pairs)(drawn(pairs, *chosen))) == expected


def test_labels_of_the_paper_leave_the_cell_of_another_rows_document_empty(tiny_model):
    rows, chosen, _ = KNOWN["another row's document"]
    pairs = pairs_of(*rows)
    batch = GradedCollator(tiny_model.preprocess, pairs, "paper")(drawn(pairs, *chosen))
    assert entries(batch) == [[0, 0, 1.0], [1, 1, 0.5]]


@pytest.mark.parametrize("in_batch_labels", ["known", "paper"])
def test_a_text_under_two_ids_is_one_column_and_never_its_own_negative(tiny_model, in_batch_labels):
    pairs = pairs_of(
        ("a", "copy", "d1", "a file", 1.0), ("b", "move", "d2", "a file", 0.5), ("b", "move", "e", "b", 0.0)
    )
    batch = GradedCollator(tiny_model.preprocess, pairs, in_batch_labels)(drawn(pairs))
    assert batch["document_input_ids"].shape[0] == 2
    assert entries(batch) == [[0, 0, 1.0], [1, 0, 0.5], [1, 1, 0.0]]


def test_what_one_task_knows_says_nothing_of_another(tiny_model):
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
