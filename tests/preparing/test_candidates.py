from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.preparing.candidates import Candidate, Strategy, choose, fuse, keep_new, log_bands, rank_band, text_key


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


IDS = [f"d{rank}" for rank in range(1, 101)]


@given(
    st.sampled_from(get_args(Strategy)), st.integers(0, 40), st.integers(1, 12), st.integers(0, 5), st.text(max_size=4)
)
def test_a_choice_is_rising_within_the_candidates_and_as_long_as_asked(strategy, available, count, seed, query_id):
    chosen = choose(strategy, IDS[:available], count, seed, query_id)
    assert len(chosen) == min(available, 1 if strategy == "one" else count)
    assert chosen == sorted(set(chosen))
    assert all(0 <= position < available for position in chosen)
    if strategy == "top":
        assert chosen == list(range(len(chosen)))


def test_spread_takes_the_top_and_one_of_each_band():
    bands = [range(2, 4), range(4, 9), range(9, 16), range(16, 30), range(30, 55), range(55, 100)]
    assert log_bands(2, 100, 6) == bands  # 3 * (101 / 3) ** (i / 6) = 5.39, 9.69, 17.41, 31.28, 56.20, 101
    for number in range(50):
        chosen = choose("spread", IDS, 8, 0, f"q{number}")
        assert chosen[:2] == [0, 1]
        assert all(position in band for position, band in zip(chosen[2:], bands, strict=True))


def test_every_place_of_a_band_is_drawn_as_often():
    drawn = Counter(choose("spread", IDS, 8, 0, f"q{number}")[4] for number in range(2800))
    assert set(drawn) == set(range(9, 16))
    assert all(330 <= count <= 470 for count in drawn.values())  # 400 expected, standard deviation 19


def test_one_draws_each_band_as_often():
    drawn = Counter(choose("one", IDS, 1, 0, f"q{number}")[0] for number in range(2800))
    for low, high in ((0, 1), (1, 3), (3, 6), (6, 13), (13, 26), (26, 51), (51, 100)):
        assert 330 <= sum(drawn[position] for position in range(low, high)) <= 470
    assert len(drawn) == 100


def test_a_draw_follows_the_document_not_its_place():
    turned = IDS[:9] + IDS[9:16][::-1] + IDS[16:]
    before, after = (choose("spread", ids, 8, 0, "q") for ids in (IDS, turned))
    assert [IDS[p] for p in before] == [turned[p] for p in after]


def test_the_choice_is_the_same_on_every_machine():
    assert [choose("one", IDS, 1, seed=0, query_id=name)[0] + 1 for name in ("a", "b", "ü")] == [3, 2, 87]
    assert choose("one", IDS, 1, seed=1, query_id="a") != choose("one", IDS, 1, seed=0, query_id="a")


@given(st.integers(0, 20), st.integers(1, 200), st.data())
def test_bands_cover_all_places_once(first, length, data):
    count = data.draw(st.integers(1, length))
    bands = log_bands(first, first + length, count)
    assert [place for band in bands for place in band] == list(range(first, first + length))
    assert len(bands) == count
    assert all(len(band) >= 1 for band in bands)


def test_bands_of_ranks_for_a_table():
    starts = [rank for rank in range(2, 1100) if rank_band(rank) != rank_band(rank - 1)]
    assert starts == [2, 4, 11, 31, 101, 301, 1001]
    assert rank_band(1) == "1"
    assert rank_band(50) == "31-100"
