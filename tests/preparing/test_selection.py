from __future__ import annotations

from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from bixse.preparing.mine.selection import Strategy, choose, log_bands, rank_band

IDS = [f"d{rank}" for rank in range(1, 101)]


@given(
    st.sampled_from(get_args(Strategy)), st.integers(0, 40), st.integers(1, 12), st.integers(0, 5), st.text(max_size=4)
)
def test_a_choice_is_rising_within_the_candidates_and_as_long_as_asked(strategy, available, count, seed, query_id):
    chosen = choose(strategy, IDS[:available], count, seed, query_id)
    assert len(chosen) == min(available, 1 if strategy == "one" else count)
    assert chosen == sorted(set(chosen))
    assert all(0 <= position < available for position in chosen)
    if strategy in ("top", "hard-negatives"):
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
