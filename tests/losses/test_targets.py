from __future__ import annotations

import math

import pytest
import torch

from bixse.errors import InputError
from bixse.losses.targets import GradedTargets

NAN = math.nan
GRADED = {"a": {"x": 1.0, "y": 0.25}, "b": {"x": 0.5, "z": 0.75, "elsewhere": 1.0}}


class TestRefused:
    @pytest.mark.parametrize("entry", [(2, 0), (0, 3), (-1, 0), (0, -1)])
    def test_a_cell_outside_the_batch(self, entry):
        with pytest.raises(InputError, match=r"got an entry outside \(2, 3\)"):
            GradedTargets.from_entries(*torch.tensor([[*entry, 1.0]]).T, (2, 3))

    def test_a_cell_given_twice(self):
        with pytest.raises(InputError, match="got an entry twice"):
            GradedTargets.from_entries(*torch.tensor([[0, 1, 1.0], [1, 1, 0.0], [0, 1, 0.5]]).T, (2, 2))

    @pytest.mark.parametrize("relevance", [-0.01, 1.01, 3.0, math.inf])
    def test_a_relevance_off_the_scale(self, relevance):
        with pytest.raises(InputError, match=r"outside \[0, 1\]"):
            GradedTargets.from_entries(*torch.tensor([[0, 0, relevance]]).T, (1, 1))
        with pytest.raises(InputError, match=r"outside \[0, 1\]"):
            GradedTargets.from_ids(["a"], ["x"], {"a": {"x": relevance}})

    def test_a_document_as_two_columns(self):
        with pytest.raises(InputError, match="document id twice"):
            GradedTargets.from_ids(["a"], ["x", "x"], GRADED)

    def test_paper_without_own_columns(self):
        with pytest.raises(InputError, match="without own columns"):
            GradedTargets.from_ids(["a"], ["x"], GRADED, in_batch_labels="paper")


def dense(targets):
    return [part.tolist() for part in targets.dense()]


class TestFromIds:
    def test_known_fills_the_same_document_judged_for_another_query(self):
        targets = GradedTargets.from_ids(["a", "b"], ["x", "y", "z"], GRADED, own=[[0, 1], [2]])
        assert dense(targets)[0] == [[1.0, 0.25, 0.0], [0.5, 0.0, 0.75]]

    def test_paper_keeps_a_rows_own_documents_alone(self):
        targets = GradedTargets.from_ids(
            ["a", "b"], ["x", "y", "z"], GRADED, own=[[0, 1], [2]], in_batch_labels="paper"
        )
        assert dense(targets)[0] == [[1.0, 0.25, 0.0], [0.0, 0.0, 0.75]]

    def test_two_rows_of_one_query_know_each_others_documents_only_when_known(self):
        ids, own = ["b", "b"], [[0], [1]]
        known = GradedTargets.from_ids(ids, ["x", "z"], GRADED, own=own)
        paper = GradedTargets.from_ids(ids, ["x", "z"], GRADED, own=own, in_batch_labels="paper")
        assert dense(known)[0] == [[0.5, 0.75], [0.5, 0.75]]
        assert dense(paper)[0] == [[0.5, 0.0], [0.0, 0.75]]

    def test_nan_masks_its_cell(self):
        targets = GradedTargets.from_ids(["a"], ["x", "y"], {"a": {"x": NAN, "y": 0.5}})
        assert dense(targets) == [[[0.0, 0.5]], [[0.0, 1.0]]]


def test_the_tensors_carry_everything():
    targets = GradedTargets.from_ids(["a", "b"], ["x", "y"], {**GRADED, "b": {"x": NAN}})
    again = GradedTargets.from_tensors(targets.tensors(), targets.shape)
    assert dense(again) == dense(targets) == [[[1.0, 0.25], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]]]


def test_every_third_query():
    table = torch.tensor([[row, row % 2, (row + 1) / 8] for row in range(7)])
    kept = GradedTargets.from_entries(*table.T, (7, 2)).every(3)
    assert dense(kept)[0] == [[0.125, 0.0], [0.0, 0.5], [0.875, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binarised_takes_the_threshold_itself_as_relevant_in_both_precisions(dtype):
    table = torch.tensor([[0, 0, 0.7], [0, 1, 0.69], [0, 2, NAN], [0, 3, 1.0]], dtype=dtype)
    from_single = torch.tensor([[0, 0, 0.7]], dtype=torch.float32).double()
    hard = GradedTargets.from_entries(*table.T, (1, 5)).binarised(0.7)
    assert dense(hard) == [[[1.0, 0.0, 0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0, 1.0, 1.0]]]
    assert dense(GradedTargets.from_entries(*from_single.T, (1, 1)).binarised(0.7))[0] == [[1.0]]


@pytest.mark.parametrize("entries_at_once", [2**22, 12])
@pytest.mark.parametrize("margin", [0.0, 0.2, 2.0])
def test_entries_above_the_best_relevant_document_are_masked(random_batch, margin, entries_at_once):
    batch = random_batch(7, 12, known=0.3)
    queries, documents = batch.queries.detach(), batch.documents.detach()
    found = batch.targets.without_false_negatives(queries, documents, margin, entries_at_once)
    cosines, known = (queries @ documents.T).tolist(), batch.known_entries()
    expected = dict(known)
    for i, row in enumerate(cosines):
        relevant = [row[j] for (k, j), z in known.items() if k == i and z >= 0.5]
        for j, cosine in enumerate(row):
            if relevant and (i, j) not in known and cosine > max(relevant) + margin:
                expected[i, j] = math.nan
    got = dict(
        zip(zip(found.rows.tolist(), found.columns.tolist(), strict=True), found.relevance.tolist(), strict=True)
    )
    assert {key: str(value) for key, value in got.items()} == {key: str(value) for key, value in expected.items()}
    assert (len(expected) == len(known)) == (margin == 2.0)
