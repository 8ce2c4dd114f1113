import math

import pytest
import torch

from bixse.errors import InputError
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.products import mean_target
from helpers.batches import random_batch

NAN = math.nan
GRADED = {"a": {"x": 1.0, "y": 0.25}, "b": {"x": 0.5, "z": 0.75, "elsewhere": 1.0}}


def dense(targets):
    return [part.tolist() for part in targets.dense()]


@pytest.mark.parametrize(
    ("entries", "got"),
    [
        *(([[*position, 1.0]], "an entry outside (2, 3)") for position in [(2, 0), (0, 3), (-1, 0), (0, -1)]),
        ([[0, 1, 1.0], [1, 1, 0.0], [0, 1, 0.5]], "an entry twice"),
        *(([[0, 0, relevance]], "a relevance outside [0, 1]") for relevance in [-0.01, 1.01, 3.0, math.inf]),
    ],
)
def test_invalid_entries_are_refused(entries, got):
    with pytest.raises(InputError) as caught:
        GradedTargets.from_entries(*torch.tensor(entries).T, (2, 3))
    assert caught.value.got == got


@pytest.mark.parametrize(
    ("documents", "graded", "labels", "got"),
    [
        (["x", "x"], GRADED, "known", "a document id twice"),
        (["x"], {"a": {"x": 1.01}}, "known", "a relevance outside [0, 1]"),
        (["x"], GRADED, "paper", "in_batch_labels='paper' alone"),
    ],
)
def test_ids_and_grades_without_one_meaning_are_refused(documents, graded, labels, got):
    with pytest.raises(InputError) as caught:
        GradedTargets.from_ids(["a"], documents, graded, in_batch_labels=labels)
    assert caught.value.got == got


@pytest.mark.parametrize(
    ("queries", "documents", "columns", "known", "paper"),
    [
        ("ab", "xyz", [[0, 1], [2]], [[1.0, 0.25, 0.0], [0.5, 0.0, 0.75]], [[1.0, 0.25, 0.0], [0.0, 0.0, 0.75]]),
        ("bb", "xz", [[0], [1]], [[0.5, 0.75], [0.5, 0.75]], [[0.5, 0.0], [0.0, 0.75]]),
    ],
)
def test_known_takes_every_grade_and_paper_those_of_a_rows_documents(queries, documents, columns, known, paper):
    for labels, expected in (("known", known), ("paper", paper)):
        assert dense(GradedTargets.from_ids(queries, documents, GRADED, columns, labels))[0] == expected


def test_the_tensors_carry_everything_also_a_mask():
    targets = GradedTargets.from_ids(["a", "b"], ["x", "y"], {**GRADED, "b": {"x": NAN}})
    again = GradedTargets(**targets.tensors(), shape=targets.shape)
    assert dense(again) == dense(targets) == [[[1.0, 0.25], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binarised_takes_the_threshold_itself_as_relevant_in_both_dtypes(dtype):
    table = torch.tensor([[0, 0, 0.7], [0, 1, 0.69], [0, 2, NAN], [0, 3, 1.0]], dtype=dtype)
    from_single = torch.tensor([[0, 0, 0.7]], dtype=torch.float32).double()
    hard = GradedTargets.from_entries(*table.T, (1, 5)).binarised(0.7)
    assert dense(hard) == [[[1.0, 0.0, 0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0, 1.0, 1.0]]]
    assert dense(GradedTargets.from_entries(*from_single.T, (1, 1)).binarised(0.7))[0] == [[1.0]]


def test_dense_cut_and_carried_targets_are_the_same(monkeypatch):
    batch = random_batch(7, 5, known=0.3, masked=0.3)
    targets, expected = batch.targets, torch.tensor(batch.relevance(), dtype=torch.float64)
    z, weight = targets.dense(torch.float64)
    torch.testing.assert_close(z, expected.nan_to_num(0.0))
    assert torch.equal(weight.bool(), ~expected.isnan())
    monkeypatch.setattr("bixse.losses.targets.ENTRIES_SAMPLED", 7 * 5 - 1)
    cosines, sampled, counted = targets.sample(batch.queries, batch.documents)
    torch.testing.assert_close(sampled, z[::2].float())
    assert torch.equal(counted.bool(), weight[::2].bool())
    torch.testing.assert_close(cosines, (batch.queries @ batch.documents.T)[::2].float())
    for shape in ((3, None), (3, 2), (7, 2), (7, 5)):
        tiles = list(targets.tiles(*shape))
        assert len(tiles) == math.ceil(7 / shape[0]) * math.ceil(5 / (shape[1] or 5))
        for rows, columns, part in tiles:
            torch.testing.assert_close(part.dense(torch.float64)[0], z[rows, columns])
    again = GradedTargets(**targets.tensors(), shape=targets.shape).to("cpu")
    assert torch.equal(again.dense(torch.float64)[0], z)


def test_the_mean_target_is_that_of_all_entries():
    batch = random_batch(12, 9, known=0.3, masked=0.3)
    expected = float(torch.tensor(batch.relevance()).nanmean())
    assert float(mean_target(batch.targets)) == pytest.approx(expected, rel=1e-6)
