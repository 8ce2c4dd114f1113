import numpy as np
import pytest
import scipy.stats

from bixse.errors import InputError
from bixse.evaluation.statistics import (
    bootstrap_mean,
    holm,
    paired_bootstrap,
    query_draws,
    randomisation_test,
)
from bixse.report.table import format_verdict


def systems(seed, queries=60, shift=0.05):
    generator = np.random.default_rng(seed)
    base = generator.random(queries)
    other = np.clip(base + shift + 0.15 * generator.normal(size=queries), 0, 1)
    ids = [f"q{number}" for number in range(queries)]
    return dict(zip(ids, other, strict=True)), dict(zip(ids, base, strict=True))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_agrees_with_scipy(confidence):
    a, b = systems(0)
    ours = paired_bootstrap(a, b, samples=20_000, confidence=confidence)
    differences = np.array([a[q] - b[q] for q in a])
    oracle = scipy.stats.bootstrap(
        (differences,), np.mean, n_resamples=20_000, confidence_level=confidence, method="percentile", rng=99
    ).confidence_interval
    spread = 0.12 * differences.std() / np.sqrt(len(differences))
    assert ours.mean == pytest.approx(differences.mean(), abs=1e-15)
    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), abs=spread)
    assert (ours.queries, ours.confidence) == (60, confidence)


@pytest.mark.parametrize(("queries", "few"), [(5, True), (29, True), (30, False)])
def test_few_queries_have_students_t_and_say_so(queries, few):
    a, b = systems(0, queries=queries)
    ours = paired_bootstrap(a, b)
    oracle = scipy.stats.ttest_rel(list(a.values()), list(b.values()))
    interval = oracle.confidence_interval(0.95)
    assert ours.few == few
    assert ((ours.low, ours.high, ours.p_value) == pytest.approx((*interval, oracle.pvalue))) == few
    assert ("few" in format_verdict(ours)) == few


def test_few_queries_of_several_tasks_have_welchs_interval():
    generator = np.random.default_rng(4)
    first, second = generator.normal(size=7), generator.normal(0.5, 3, size=11)
    found = bootstrap_mean([first, second, np.array([2.0])], [1.0, -1.0, 0.5])
    oracle = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((oracle.low + 1, oracle.high + 1))


def test_the_interval_of_few_queries_covers_the_truth():
    # three of five queries do not differ; resampled intervals would cover .81
    generator = np.random.default_rng(0)
    ids, covered = [f"q{number}" for number in range(10)], 0
    for _ in range(1000):
        differences = np.where(generator.random(10) < 0.6, 0.0, generator.normal(0.05, 0.25, 10))
        found = paired_bootstrap(dict(zip(ids, differences, strict=True)), dict.fromkeys(ids, 0.0), samples=200)
        covered += found.low <= 0.02 <= found.high
    assert covered / 1000 > 0.9


def test_small_randomisation_test_is_exact_and_a_drawn_one_agrees():
    for seed in range(4):
        a, b = systems(seed, queries=11, shift=0.03 * seed)
        exact = scipy.stats.permutation_test(
            (list(a.values()), list(b.values())), lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples", n_resamples=np.inf, vectorized=True,
        ).pvalue  # fmt: skip
        assert randomisation_test(a, b) == pytest.approx(exact, abs=1e-12)
        drawn = randomisation_test(a, b, samples=2000, seed=seed)
        assert drawn == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 2000) + 1e-3)


def test_blocks_of_many_queries_cover_all_samples():
    blocks = list(query_draws(1_000_000, samples=10, seed=0))
    assert [block.shape for block in blocks] == [(4, 1_000_000), (4, 1_000_000), (2, 1_000_000)]
    assert all((block.sum(axis=1) == 1_000_000).all() for block in blocks)


def test_same_seed_same_numbers_whatever_the_order():
    a, b = systems(1)
    backwards = dict(reversed(a.items()))
    assert paired_bootstrap(a, b, samples=500) == paired_bootstrap(backwards, b, samples=500)
    assert paired_bootstrap(a, a, samples=500).p_value == randomisation_test(a, a, samples=500) == 1.0
    assert paired_bootstrap(a, b, samples=500) != paired_bootstrap(a, b, samples=500, seed=1)
    assert randomisation_test(a, b, samples=500) == randomisation_test(backwards, b, samples=500)


def test_p_value_and_verdict_say_the_same():
    seen = set()
    for seed in range(30):
        a, b = systems(seed, shift=0.02 * (seed % 5 - 2))
        difference = paired_bootstrap(a, b, samples=2000)
        seen.add(difference.verdict)
        if abs(difference.p_value - 0.05) > 0.003:
            assert (difference.verdict != "no difference") == (difference.p_value < 0.05)
    assert seen == {"better", "no difference", "worse"}


AB, B = {"q1": 1.0, "q2": 1.0}, {"q1": 1.0, "q2": 0.0}


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ({"q1": 1.0, "q2": 1.0}, {"q1": 1.0}, {}, "such as 'q2'"),
        ({"q1": 1.0}, {"q1": 0.0}, {}, "at least 2"),
        ({"q1": 1.0, "q2": float("nan")}, {"q1": 1.0, "q2": 0.0}, {}, "query 'q2'"),
        (AB, B, {"samples": 0}, "samples: got 0"),
        *((AB, B, {"confidence": value}, "confidence: got") for value in (0.0, 1.0, 95, float("nan"))),
    ],
)
def test_unusable_input_is_refused(a, b, options, message):
    for test in (paired_bootstrap, randomisation_test)[: 1 if "confidence" in options else 2]:
        with pytest.raises(InputError, match=message):
            test(a, b, **options)


def test_holm():
    assert holm([]) == []
    # by hand: 0.008 * 5, 0.012 * 4, 0.03 * 3, 0.041 * 2 and 0.2 in rising order, none below the one before
    assert holm([0.03, 0.008, 0.041, 0.012, 0.2]) == pytest.approx([0.09, 0.04, 0.09, 0.048, 0.2])
