import math

import numpy as np
import pytest

from bixse.calibration.reliability import brier, expected_calibration_error, reweight_to_prevalence
from bixse.encoders.head import RelevanceHead, log_odds
from bixse.errors import InputError


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_prior_out_of_range(prior):
    for refuse in (
        lambda: log_odds(prior, "prior"),
        lambda: reweight_to_prevalence([0.0, 1.0], prior),
        lambda: RelevanceHead(20.0, -10.0, prior=0.5).at_prior(prior),
    ):
        with pytest.raises(InputError, match=r"prior: got .*between 0 and 1"):
            refuse()


@pytest.mark.parametrize("z", [[], [0.0, 0.0], [1.0]])
def test_pairs_of_one_kind_cannot_be_weighted(z):
    with pytest.raises(InputError, match="expected relevant and irrelevant ones"):
        reweight_to_prevalence(z, 0.1)


def test_a_head_of_an_unknown_prior_cannot_be_moved():
    with pytest.raises(InputError, match="bixse calibrate"):
        RelevanceHead(20.0, -10.0).at_prior(0.1)


@pytest.mark.parametrize("prior", [0.001, 0.4375, 0.9])
def test_weights_have_mean_one_and_give_the_prior(prior):
    observed = np.array([0.0, 0.25, 1.0, 0.5])
    weights, relevance = reweight_to_prevalence(observed, prior)
    if prior == observed.mean():
        np.testing.assert_allclose((weights, relevance), (np.ones(4), observed))
    assert weights.mean() == pytest.approx(1.0, abs=1e-9)
    assert np.average(relevance, weights=weights) == pytest.approx(prior, abs=1e-9)
    assert ((relevance >= 0) & (relevance <= 1 + 1e-12)).all()


def population(prior, count, seed):
    """Cosines of relevant pairs about 0.7, of irrelevant ones about 0.4, in equal spread: logits are linear in them."""
    generator = np.random.default_rng(seed)
    z = (generator.random(count) < prior).astype(float)
    return 0.4 + 0.3 * z + 0.15 * generator.standard_normal(count), z


def bayes_head(prior):
    """The exact posterior of such a population: the log of the ratio of two normal densities, and the prior's odds."""
    scale = 0.3 / 0.15**2
    return RelevanceHead(scale, -scale * 0.55 + log_odds(prior), prior=prior)


@pytest.mark.parametrize("new", [0.5, 0.1, 0.01])
def test_a_moved_head_is_the_exact_posterior_and_calibrated_in_a_population_of_the_new_prior(new):
    cosines, z = population(new, 200_000, seed=1)
    moved = bayes_head(0.3).at_prior(new).probability(cosines)
    np.testing.assert_allclose(moved, bayes_head(new).probability(cosines), atol=1e-12)
    assert expected_calibration_error(moved, z, bins=20) < 0.004
    assert expected_calibration_error(bayes_head(0.3).probability(cosines), z, bins=20) > 0.02


def test_weighted_pairs_measure_as_a_population_of_that_prior():
    there, z_there = population(0.01, 400_000, seed=2)
    here, z_here = population(0.3, 400_000, seed=3)
    weights, relevance = reweight_to_prevalence(z_here, 0.01)
    head = bayes_head(0.3)
    for candidate in (head, head.at_prior(0.01)):
        expected = brier(candidate.probability(there), z_there)
        assert brier(candidate.probability(here), relevance, weights) == pytest.approx(expected, rel=0.05)
        expected = expected_calibration_error(candidate.probability(there), z_there)
        assert expected_calibration_error(candidate.probability(here), relevance, weights=weights) == pytest.approx(
            expected, abs=0.002
        )
