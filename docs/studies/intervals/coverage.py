"""Coverage of 95 % intervals of a mean difference, by number of queries, for populations of differences.

    python docs/studies/intervals/coverage.py > coverage.md

Each figure is the share of 4,000 samples whose interval holds the true mean, among the samples that have an interval
(not all differences are equal): of bixse, of Student's t, and of the percentile bootstrap (500 resamples).
"""

import numpy as np
from scipy.special import stdtrit

from bixse.evaluation.statistics import difference_of
from bixse.results import QUERIES_FROM

QUERIES = (5, 10, 20, 30, QUERIES_FROM, 45, 50, 100, 300)
SAMPLES, RESAMPLES = 4000, 500
draw = np.random.default_rng(0)


def some(share, gains, others):
    """Return a population in which a share of the queries gains, and the function of the others."""
    return lambda size: np.where(draw.random(size) < share, gains(size), others(size))


def gain(size):
    return draw.uniform(0.2, 1, size)


def noise(size):
    return draw.normal(0, 0.02, size)


POPULATIONS = {
    "normal": (lambda size: draw.normal(0.05, 0.2, size), 0.05),
    "60 % are 0, the others normal": (some(0.4, lambda size: draw.normal(0.05, 0.3, size), np.zeros), 0.02),
    "90 % are 0, the others normal": (some(0.1, lambda size: draw.normal(0.05, 0.3, size), np.zeros), 0.005),
    "steps of nDCG, 60 % are 0": (
        lambda size: draw.choice([0, 0.369, -0.369, 1, -1, 0.131], size, p=[0.6, 0.15, 0.1, 0.06, 0.02, 0.07]),
        0.06762,
    ),
    "one in five gains .2 to 1, the others about 0": (some(0.2, gain, noise), 0.12),
    "one in five gains .2 to 1, the others 0": (some(0.2, gain, np.zeros), 0.12),
    "one in ten gains .2 to 1, the others about 0": (some(0.1, gain, noise), 0.06),
    "one in ten gains .2 to 1, the others 0": (some(0.1, gain, np.zeros), 0.06),
    "one in ten gains, the others lose .05": (some(0.1, gain, lambda size: draw.normal(-0.05, 0.1, size)), 0.015),
    "beta(.3, 2)": (lambda size: draw.beta(0.3, 2, size), 0.3 / 2.3),
    "lognormal, sigma 1 (unbounded)": (lambda size: draw.lognormal(0, 1, size), np.exp(0.5)),
}


def coverage(values, truth):
    """Return the three shares for samples of shape (S, Q)."""
    size = values.shape[1]
    values = values[np.ptp(values, axis=1) > 0]
    means, third = values.mean(axis=1), ((values - values.mean(axis=1, keepdims=True)) ** 3).mean(axis=1)
    errors = values.std(axis=1, ddof=1) / np.sqrt(size)
    skewness = third / size**2 / errors**3
    rows = zip(means, errors, skewness, strict=True)
    ours = [difference_of(mean, error, size - 1, skew, QUERIES_FROM) for mean, error, skew in rows]
    held = [found.low <= truth <= found.high for found in ours]
    of_t = np.abs(means - truth) <= stdtrit(size - 1, 0.975) * errors
    draws = draw.multinomial(size, np.full(size, 1 / size), RESAMPLES) / size
    low, high = np.quantile(values @ draws.T, [0.025, 0.975], axis=1)
    return np.mean(held), of_t.mean(), ((low <= truth) & (truth <= high)).mean()


def figure(share):
    return f"{share:.2f}".removeprefix("0") if share < 0.995 else "1.0"


print("| differences |", " | ".join(map(str, QUERIES)), "|")
print("|---|" + "---|" * len(QUERIES))
for name, (population, truth) in POPULATIONS.items():
    cells = [" ".join(map(figure, coverage(population((SAMPLES, size)), truth))) for size in QUERIES]
    print(f"| {name} |", " | ".join(cells), "|", flush=True)
