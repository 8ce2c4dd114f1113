"""The same (query, document) several times in a batch of sentence-transformers' own trainer."""

from __future__ import annotations

import math

import pytest
import torch

from bixse.losses.catalogue import LOSSES, build_loss

QUERIES = ["copy a file", "copy a file", "sort a list", "copy a file"]
DOCUMENTS = ["copy the file", "copy the file", "sort the list", "move the file"]
LABELS = [0.75, 1.0]


@pytest.fixture
def value(tiny_model):
    """The loss of a batch of flat pairs, with a bias that does not depend on the targets."""

    def of(word, queries, documents, labels, **options) -> float:
        own = {"bias": -3.0} if word in ("bixse", "bixse-binarised") else {}
        loss = build_loss(word, tiny_model, **own, **options)
        features = [tiny_model.preprocess(column) for column in (queries, documents)]
        return loss(features, torch.tensor(labels)).item()

    return of


@pytest.mark.parametrize("in_batch_labels", ["known", "paper"])
@pytest.mark.parametrize("word", LOSSES)
def test_two_labels_of_a_pair_count_as_their_mean_in_any_order(value, word, in_batch_labels):
    there, back, mean = (
        value(word, QUERIES, DOCUMENTS, [*twice, *LABELS], in_batch_labels=in_batch_labels)
        for twice in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.5])
    )
    assert there == back == mean
    assert math.isfinite(mean)


def test_a_label_given_more_often_weighs_more(value):
    thrice, mean = ([1.0, 1.0, 0.0], [2 / 3] * 3)
    columns = (["copy a file"] * 3, ["copy the file"] * 3)
    assert value("bixse", *columns, thrice) == pytest.approx(value("bixse", *columns, mean), rel=1e-6)


def test_documents_that_are_equal_after_truncation_are_one(tiny_model, value):
    tiny_model.max_seq_length = 6
    long = [f"copy the file in the {end}" for end in ("folder", "path")]
    (first, second) = tiny_model.preprocess(long)["input_ids"].tolist()
    assert first == second
    columns = (["copy a file"] * 2, long)
    assert value("bixse", *columns, [1.0, 0.0]) == value("bixse", *columns, [0.0, 1.0])
    assert value("bixse", *columns, [1.0, 0.0]) == value("bixse", *columns, [0.5, 0.5])


def test_a_masked_label_masks_the_pair(value):
    columns = (["copy a file", "copy a file", "sort a list"], ["copy the file", "copy the file", "sort the list"])
    masked = value("bixse", *columns, [math.nan, math.nan, 1.0])
    assert value("bixse", *columns, [math.nan, 1.0, 1.0]) == value("bixse", *columns, [0.0, math.nan, 1.0]) == masked


def test_as_the_graded_trainer_takes_them(tiny_model, value):
    from bixse.data.graded_pairs import GradedPairs
    from bixse.training.loop.batches import GradedCollator, GroupDataset

    rows = [
        {"query_id": "q", "query": "copy a file", "document_id": name, "document": "copy the file", "relevance": grade}
        for name, grade in (("a", 1.0), ("b", 0.25))
    ]
    pairs = GradedPairs.from_rows(rows)
    batch = GradedCollator(tiny_model.preprocess, pairs)([GroupDataset(pairs)[0, 0]])
    features = [
        {name.removeprefix(f"{kind}_"): v for name, v in batch.items() if name.startswith(kind)}
        for kind in ("query", "document")
    ]
    ours = build_loss("bixse", tiny_model, bias=-3.0)(features, batch["label"]).item()
    stock = value("bixse", ["copy a file"] * 2, ["copy the file"] * 2, [1.0, 0.25])
    assert stock == pytest.approx(ours, rel=1e-6)
