from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.data.collection import Document
from bixse.mining.candidates import Candidate, fuse, keep_new


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
def test_fusion_equals_exact_fractions(answers, depth):
    scores = {label: {name: -float(place) for place, name in enumerate(found)} for label, found in answers.items()}
    fused = fuse(scores, depth)
    assert [candidate.document_id for candidate in fused] == by_hand(answers, depth)
    assert [candidate.rank for candidate in fused] == list(range(1, len(fused) + 1))
    for candidate in fused:
        places = {label: found.index(candidate.document_id) + 1 for label, found in answers.items()
                  if candidate.document_id in found[:depth]}  # fmt: skip
        assert dict(candidate.found_by) == places


@settings(max_examples=50, deadline=None)
@given(rankings)
def test_the_order_of_the_retrievers_changes_no_rank(answers):
    scores = {label: {name: -float(place) for place, name in enumerate(found)} for label, found in answers.items()}
    turned = dict(reversed(scores.items()))
    assert [c.document_id for c in fuse(scores, 12)] == [c.document_id for c in fuse(turned, 12)]


def test_one_retriever_keeps_its_own_order_and_ties_go_as_in_its_run_file():
    found = fuse({"bm25": {"a": 2.0, "b": 2.0, "c": 3.0}}, depth=10)
    assert [candidate.source for candidate in found] == ["bm25:1", "bm25:2", "bm25:3"]
    assert [candidate.document_id for candidate in found] == ["c", "b", "a"]


def test_nothing_found():
    assert fuse({"bm25": {}, "demo": {}}, 10) == []
    assert fuse({}, 10) == []


CORPUS = {
    "known": Document("copy", "a file"),
    "twin-of-known": Document("", "copy  a\nfile"),
    "first": Document("", "move a file"),
    "second": Document("move", "a  file "),
    "echo": Document("", "how do I copy"),
    "other": Document("", "sleep"),
}


def candidates(*names):
    return [Candidate(name, rank, {"bm25": rank}) for rank, name in enumerate(names, start=1)]


def test_a_text_is_kept_once_at_its_best_rank():
    kept = keep_new(candidates("second", "other", "first"), "copy", CORPUS)
    assert [(c.document_id, c.rank) for c in kept.candidates] == [("second", 1), ("other", 2)]
    assert (kept.known, kept.copies) == (0, 1)


def test_a_document_that_repeats_the_query_is_no_candidate():
    kept = keep_new(candidates("echo", "other"), " how do I\tcopy", CORPUS)
    assert [c.document_id for c in kept.candidates] == ["other"]
    assert kept.copies == 1


def test_a_copy_of_a_known_text_is_known():
    kept = keep_new(candidates("twin-of-known", "known", "other"), "q", CORPUS, {"known"})
    assert [(c.document_id, c.rank) for c in kept.candidates] == [("other", 3)]
    assert (kept.known, kept.copies) == (2, 0)


def test_a_known_document_that_was_left_out_as_empty_is_no_matter():
    assert len(keep_new(candidates("other"), "q", CORPUS, {"empty"}).candidates) == 1
