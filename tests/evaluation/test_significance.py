import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from bixse.errors import InputError
from bixse.evaluation.intervals import jackknife_estimate, mean_estimate, query_draws, wilson_interval
from bixse.evaluation.statistics import SKEWED_SHARE, holm, mean_difference, paired_difference, randomisation_test
from bixse.rendering.wording import format_verdict
from bixse.results import QUERIES_FROM


def systems(seed, queries=60, shift=0.05):
    generator = np.random.default_rng(seed)
    base = generator.random(queries)
    other = np.clip(base + shift + 0.15 * generator.normal(size=queries), 0, 1)
    ids = [f"q{number}" for number in range(queries)]
    return dict(zip(ids, other, strict=True)), dict(zip(ids, base, strict=True))


def of(differences):
    ids = [f"q{number:03}" for number in range(len(differences))]
    return dict(zip(ids, np.asarray(differences, dtype=float) + 0.0, strict=True)), dict.fromkeys(ids, 0.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_symmetric_differences_have_students_t(confidence):
    half = np.random.default_rng(0).normal(0.05, 0.2, 30)
    differences = np.concatenate([half, 0.1 - half])  # skewness 0
    ours, oracle = paired_difference(*of(differences), confidence), scipy.stats.ttest_1samp(differences, 0.0)
    assert (ours.low, ours.high) == pytest.approx(tuple(oracle.confidence_interval(confidence)))
    assert (ours.p_value, ours.queries, ours.confidence) == (pytest.approx(oracle.pvalue), 60, confidence)


def test_skewed_differences_reach_further_on_the_long_side_by_halls_formula():
    differences = np.random.default_rng(1).beta(0.3, 2, 50)
    ours, n = paired_difference(*of(differences)), len(differences)
    s, t = differences.std(ddof=1), scipy.stats.t.ppf(0.975, n - 1)
    gamma = n * ((differences - differences.mean()) ** 3).mean() / n / s**3
    hall = [  # inverse of T + gamma T^2 / (3 sqrt n) + gamma^2 T^3 / (27 n) + gamma / (6 sqrt n), by a root finder
        scipy.optimize.brentq(
            lambda x, q=q: x + gamma * x**2 / 3 / n**0.5 + gamma**2 * x**3 / 27 / n + gamma / 6 / n**0.5 - q, -50, 50
        )
        for q in (t, -t)
    ]
    low, high = ((1 - SKEWED_SHARE) * q + SKEWED_SHARE * x for q, x in zip((t, -t), hall, strict=True))
    mean, error = differences.mean(), s / n**0.5
    assert ours.low == pytest.approx(min(mean - t * error, mean - low * error))
    assert ours.high == pytest.approx(max(mean + t * error, mean - high * error))
    assert ours.high - mean > 1.1 * t * error


def test_several_tasks_have_welchs_interval():
    generator = np.random.default_rng(4)
    halves = generator.normal(size=25), generator.normal(0.5, 3, size=30)
    first, second = (np.concatenate([half, -half]) for half in halves)
    found = mean_difference([first, second], [1.0, -1.0])
    oracle = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high))


@pytest.mark.parametrize(("small", "worth"), [([0.4, 0.4], 7), ([0.4], 3), ([0.3, 0.4, 0.5], 11)])
def test_a_small_collection_that_carries_half_of_the_mean_gives_no_verdict(small, worth):
    large = np.random.default_rng(0).normal(0, 0.02, 60)
    found = mean_difference([large, np.array(small)], [0.5, 0.5])
    assert (found.verdict, found.low, found.worth) == ("cannot tell", None, worth)
    assert f"{worth} equally weighted queries" in found.few
    many = [np.random.default_rng(seed).normal(0.1, 0.02, 60) for seed in range(13)]
    found, without = (mean_difference(sets, [1 / len(sets)] * len(sets)) for sets in ([*many, np.array(small)], many))
    assert found.high - found.low > 1.2 * (without.high - without.low), "a query without scatter is not certain"


def test_one_query_is_named_in_the_singular():
    assert paired_difference({"q": 1.0}, {"q": 0.5}).few == f"1 query; at least {QUERIES_FROM}"


@pytest.mark.parametrize("queries", [2, 7, QUERIES_FROM - 1])
def test_few_queries_have_an_estimate_and_no_interval_nor_verdict(queries):
    found = paired_difference(*systems(0, queries=queries))
    assert (found.low, found.high, found.p_value, found.verdict) == (None, None, None, "cannot tell")
    assert found.few == f"{queries} queries; at least {QUERIES_FROM}" and found.few in format_verdict(found)


@pytest.mark.parametrize("queries", [3, 80])
def test_equal_differences_have_no_interval(queries):
    """A metric that another order of summation changes by an ulp is equal, and 0 is no difference."""
    sums = 0.1 * 3 + np.zeros(queries), 0.3 + np.zeros(queries)
    assert sums[0][0] != sums[1][0]
    zero, same = (
        paired_difference(*(dict(enumerate(side)) for side in pair)) for pair in (sums, (sums[0], sums[0] / 2))
    )
    assert (zero.mean, zero.low, zero.high, zero.verdict, zero.few) == (0.0, None, None, "no difference", "")
    assert (same.low, same.high, same.verdict) == (None, None, "cannot tell")
    assert same.mean == pytest.approx(0.15) and str(queries) in same.few


@pytest.mark.parametrize("population", ["sixty of a hundred are 0", "one in five gains", "one in ten gains"])
def test_the_stated_interval_covers_92_to_98_percent(population):
    generator, covered, runs = np.random.default_rng(0), 0, 1000
    for _ in range(runs):
        gains, rest = generator.uniform(0.2, 1, QUERIES_FROM), generator.random(QUERIES_FROM)
        noise = generator.normal(0, 0.02, QUERIES_FROM)
        differences, truth = {
            "sixty of a hundred are 0": (np.where(rest < 0.6, 0.0, 0.05 + 12 * noise), 0.02),
            "one in five gains": (np.where(rest < 0.2, gains, noise), 0.12),
            "one in ten gains": (np.where(rest < 0.1, gains, noise), 0.06),
        }[population]
        found = paired_difference(*of(differences))
        covered += found.low <= truth <= found.high
    assert 0.92 - 0.015 < covered / runs < 0.98 + 0.01  # two standard errors of 1,000 runs


def test_the_mean_over_pairs_of_queries_is_a_ratio():
    sizes = np.random.default_rng(0).integers(1, 6, 50)
    query_ids = [f"q{number}" for number, size in enumerate(sizes) for _ in range(size)]
    values = np.random.default_rng(1).random(len(query_ids)) ** 3
    found, error = mean_estimate(values, query_ids), 0.0
    sums = np.array([values[np.array(query_ids) == f"q{number}"].sum() for number in range(50)])
    left_out = (values.sum() - sums) / (len(values) - sizes)  # the jackknife is another estimate of its scatter
    error = np.sqrt(49 / 50 * ((left_out - left_out.mean()) ** 2).sum())
    assert found.value == values.mean()
    assert found.high - found.low == pytest.approx(2 * 2.01 * error, rel=0.1)
    assert mean_estimate(np.ones(60), [f"q{n}" for n in range(60)]).low is None


def test_the_jackknife_of_a_mean_is_its_interval():
    values = np.random.default_rng(2).random(45)
    found, mean = jackknife_estimate(values.mean(), (values.sum() - values) / 44), paired_difference(*of(values))
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high))
    assert jackknife_estimate(0.4, np.array([0.3, np.nan] * 20)).low is None
    assert jackknife_estimate(0.4, values, "6 queries; at least 20").few == "6 queries; at least 20"


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
    assert paired_difference(a, b) == paired_difference(backwards, b)
    assert paired_difference(a, a).p_value == randomisation_test(a, a, samples=500) == 1.0
    assert randomisation_test(a, b, samples=500) == randomisation_test(backwards, b, samples=500)


@pytest.mark.parametrize("power", [1, 3])
def test_the_p_value_inverts_the_interval(power):
    seen = set()
    for seed in range(40):
        a, b = systems(seed, shift=0.02 * (seed % 5 - 2))
        differences = {query: np.sign(a[query] - b[query]) * abs(a[query] - b[query]) ** power for query in a}
        difference = paired_difference(differences, dict.fromkeys(a, 0.0))
        seen.add(difference.verdict)
        if 1e-9 < difference.p_value < 0.9:
            at_p = paired_difference(differences, dict.fromkeys(a, 0.0), confidence=1 - difference.p_value)
            assert min(abs(at_p.low), abs(at_p.high)) == pytest.approx(0.0, abs=1e-6)
    assert seen == {"better", "no difference", "worse"}


AB, B = {"q1": 1.0, "q2": 1.0}, {"q1": 1.0, "q2": 0.0}


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ({"q1": 1.0, "q2": 1.0}, {"q1": 1.0}, {}, "such as 'q2'"),
        ({}, {}, {}, "got none"),
        ({"q1": 1.0, "q2": float("nan")}, {"q1": 1.0, "q2": 0.0}, {}, "query 'q2'"),
        (AB, B, {"samples": 0}, "samples: got 0"),
        *((AB, B, {"confidence": value}, "confidence: got") for value in (0.0, 1.0, 95, float("nan"))),
    ],
)
def test_unusable_input_is_refused(a, b, options, message):
    tests = (paired_difference, randomisation_test)
    for test in tests[:1] if "confidence" in options else tests[1:] if "samples" in options else tests:
        with pytest.raises(InputError, match=message):
            test(a, b, **options)


def test_holm():
    assert holm([]) == []
    # by hand: 0.008 * 5, 0.012 * 4, 0.03 * 3, 0.041 * 2 and 0.2 in rising order, none below the one before
    assert holm([0.03, 0.008, 0.041, 0.012, 0.2]) == pytest.approx([0.09, 0.04, 0.09, 0.048, 0.2])


@pytest.mark.parametrize("seed", range(50))
def test_holm_and_wilson_equal_those_of_statsmodels(seed):
    generator = np.random.default_rng(seed)
    p_values = np.round(generator.random(generator.integers(1, 12)), 1) ** 3  # with ties, 0 and 1
    assert holm(p_values.tolist()) == multipletests(p_values, method="holm")[1].tolist()
    for total in (1, 10, 300 * generator.random()):
        for count in (0, total, total * generator.random()):
            assert wilson_interval(count, total) == proportion_confint(count, total, method="wilson")
