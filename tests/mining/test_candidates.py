from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.mining.candidates import Candidate, Strategy, choose, fuse, keep_new, log_bands, rank_band, text_key

IDS = [f"d{rank}" for rank in range(1, 101)]
CORPUS = {
    "known": "copy a file",
    "twin-of-known": "copy  a\nfile",
    "first": "move a file",
    "second": "move a  file ",
    "echo": "how do I copy",
    "other": "sleep",
}
rankings = st.dictionaries(
    st.sampled_from(["bm25", "demo", "model"]), st.lists(st.sampled_from("abcdefghijkl"), unique=True), max_size=3
)


def fused_by_fractions(answers, depth):
    sums = {}
    for ranking in answers.values():
        for rank, name in enumerate(ranking[:depth], start=1):
            sums[name] = sums.get(name, Fraction(0)) + Fraction(1, 60 + rank)
    return sorted(sorted(sums, reverse=True), key=lambda name: -sums[name])[:depth]


@settings(max_examples=200, deadline=None)
@given(rankings, st.integers(1, 12))
def test_fusion_equals_exact_fractions_in_any_order_of_retrievers(answers, depth):
    scores = {label: {name: -float(rank) for rank, name in enumerate(names)} for label, names in answers.items()}
    fused = fuse(scores, depth)
    assert [candidate.document_id for candidate in fused] == fused_by_fractions(answers, depth)
    assert [candidate.rank for candidate in fused] == list(range(1, len(fused) + 1))
    for candidate in fused:
        ranks = {label: names.index(candidate.document_id) + 1 for label, names in answers.items()
                 if candidate.document_id in names[:depth]}  # fmt: skip
        assert dict(candidate.ranks) == ranks
    assert [c.document_id for c in fuse(dict(reversed(scores.items())), depth)] == [c.document_id for c in fused]


def test_ties_of_a_retriever_have_the_order_of_its_run_file():
    fused = fuse({"bm25": {"a": 2.0, "b": 2.0, "c": 3.0}}, depth=10)
    assert [(c.document_id, c.source) for c in fused] == [("c", "bm25:1"), ("b", "bm25:2"), ("a", "bm25:3")]


@pytest.mark.parametrize(
    ("names", "query", "known", "expected", "counts"),
    [
        (["second", "other", "first"], "copy", (), [("second", 1), ("other", 2)], (0, 1)),
        (["echo", "other"], " how do I\tcopy", (), [("other", 2)], (0, 1)),
        (["twin-of-known", "known", "other"], "q", {"known"}, [("other", 3)], (2, 0)),
        (["other"], "q", {"left out as empty"}, [("other", 1)], (0, 0)),
    ],
)
def test_text_stays_once_at_its_best_rank_unless_known_or_the_query(names, query, known, expected, counts):
    candidates = [Candidate(name, rank, {"bm25": rank}) for rank, name in enumerate(names, start=1)]
    new, left_out = keep_new(candidates, query, {name: text_key(text) for name, text in CORPUS.items()}, known)
    assert [(candidate.document_id, candidate.rank) for candidate in new] == expected
    assert (left_out["known"], left_out["copies"]) == counts


@given(
    st.sampled_from(get_args(Strategy)), st.integers(0, 40), st.integers(1, 12), st.integers(0, 5), st.text(max_size=4)
)
def test_choice_is_rising_and_of_the_requested_length(strategy, available, count, seed, query_id):
    chosen = choose(strategy, IDS[:available], count, seed, query_id)
    assert len(chosen) == min(available, 1 if strategy == "one" else count)
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(range(available))
    if strategy == "top":
        assert chosen == list(range(len(chosen)))


def test_spread_takes_the_top_and_draws_one_position_of_each_band_evenly():
    bands = [range(2, 4), range(4, 9), range(9, 16), range(16, 30), range(30, 55), range(55, 100)]
    assert log_bands(2, 100, 6) == bands  # 3 * (101 / 3) ** (i / 6) = 5.39, 9.69, 17.41, 31.28, 56.20, 101
    choices = [choose("spread", IDS, 8, 0, f"q{number}") for number in range(2800)]
    for chosen in choices[:50]:
        assert chosen[:2] == [0, 1]
        assert all(position in band for position, band in zip(chosen[2:], bands, strict=True))
    drawn = Counter(chosen[4] for chosen in choices)
    assert all(330 <= drawn[position] <= 470 for position in range(9, 16))  # 400 expected, standard deviation 19


def test_strategy_one_draws_each_band_evenly():
    drawn = Counter(choose("one", IDS, 1, 0, f"q{number}")[0] for number in range(2800))
    for low, high in ((0, 1), (1, 3), (3, 6), (6, 13), (13, 26), (26, 51), (51, 100)):
        assert 330 <= sum(drawn[position] for position in range(low, high)) <= 470
    assert len(drawn) == 100


def test_draw_is_the_same_on_every_machine_and_follows_the_document_and_not_its_position():
    assert [choose("one", IDS, 1, seed=0, query_id=name)[0] + 1 for name in ("a", "b", "ü")] == [3, 2, 87]
    assert choose("one", IDS, 1, seed=1, query_id="a") != choose("one", IDS, 1, seed=0, query_id="a")
    turned = IDS[:9] + IDS[9:16][::-1] + IDS[16:]
    before, after = (choose("spread", ids, 8, 0, "q") for ids in (IDS, turned))
    assert [IDS[p] for p in before] == [turned[p] for p in after]


@given(st.integers(0, 20), st.integers(1, 200), st.data())
def test_bands_cover_all_positions_once(first, length, data):
    count = data.draw(st.integers(1, length))
    bands = log_bands(first, first + length, count)
    assert [position for band in bands for position in band] == list(range(first, first + length))
    assert len(bands) == count and all(bands)


def test_rank_bands_of_a_table():
    starts = [rank for rank in range(2, 1100) if rank_band(rank) != rank_band(rank - 1)]
    assert starts == [2, 4, 11, 31, 101, 301, 1001]
    assert (rank_band(1), rank_band(50)) == ("1", "31-100")
