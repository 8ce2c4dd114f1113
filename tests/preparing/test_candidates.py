from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.preparing.mine.candidates import Candidate, fuse, keep_new, text_key


def by_hand(answers, depth):
    """Reciprocal rank fusion in exact fractions, from rankings instead of scores."""
    sums = {}
    for ranking in answers.values():
        for rank, name in enumerate(ranking[:depth], start=1):
            sums[name] = sums.get(name, Fraction(0)) + Fraction(1, 60 + rank)
    descending_ids = sorted(sums, reverse=True)
    return sorted(descending_ids, key=lambda name: -sums[name])[:depth]


rankings = st.dictionaries(
    st.sampled_from(["bm25", "demo", "model"]), st.lists(st.sampled_from("abcdefghijkl"), unique=True), max_size=3
)


@settings(max_examples=200, deadline=None)
@given(rankings, st.integers(1, 12))
def test_fusion_equals_exact_fractions_in_any_order_of_retrievers(answers, depth):
    scores = {label: {name: -float(place) for place, name in enumerate(found)} for label, found in answers.items()}
    fused = fuse(scores, depth)
    assert [candidate.document_id for candidate in fused] == by_hand(answers, depth)
    assert [candidate.rank for candidate in fused] == list(range(1, len(fused) + 1))
    for candidate in fused:
        places = {label: found.index(candidate.document_id) + 1 for label, found in answers.items()
                  if candidate.document_id in found[:depth]}  # fmt: skip
        assert dict(candidate.found_by) == places
    turned = fuse(dict(reversed(scores.items())), depth)
    assert [candidate.document_id for candidate in turned] == [candidate.document_id for candidate in fused]


def test_ties_of_one_retriever_go_as_in_its_run_file():
    found = fuse({"bm25": {"a": 2.0, "b": 2.0, "c": 3.0}}, depth=10)
    assert [(candidate.document_id, candidate.source) for candidate in found] == [
        ("c", "bm25:1"), ("b", "bm25:2"), ("a", "bm25:3"),
    ]  # fmt: skip


CORPUS = {
    "known": "copy a file",
    "twin-of-known": "copy  a\nfile",
    "first": "move a file",
    "second": "move a  file ",
    "echo": "how do I copy",
    "other": "sleep",
}


@pytest.mark.parametrize(
    ("names", "query", "known", "kept", "counts"),
    [
        (["second", "other", "first"], "copy", (), [("second", 1), ("other", 2)], (0, 1)),
        (["echo", "other"], " how do I\tcopy", (), [("other", 2)], (0, 1)),
        (["twin-of-known", "known", "other"], "q", {"known"}, [("other", 3)], (2, 0)),
        (["other"], "q", {"left out as empty"}, [("other", 1)], (0, 0)),
    ],
)
def test_a_text_is_kept_once_at_its_best_rank_unless_it_is_known_or_the_query(names, query, known, kept, counts):
    found = [Candidate(name, rank, {"bm25": rank}) for rank, name in enumerate(names, start=1)]
    new = keep_new(found, query, {name: text_key(text) for name, text in CORPUS.items()}, known)
    assert [(candidate.document_id, candidate.rank) for candidate in new.candidates] == kept
    assert (new.known, new.copies) == counts
