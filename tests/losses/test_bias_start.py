from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import brentq

from bixse.errors import InputError
from bixse.losses.bias_start import check_bias_start, fit_bias, prior_bias


@pytest.mark.parametrize("bias", ["middle", "", None, True, math.nan, math.inf, [0.0]])
def test_another_start_is_refused(bias):
    with pytest.raises(InputError, match="expected 'fit', 'prior' or a number"):
        check_bias_start(bias)


@pytest.mark.parametrize("bias", ["fit", "prior", -8, 0.0, 3.5])
def test_a_start_is_given_back(bias):
    assert check_bias_start(bias) == bias


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_batch_of_one_kind_gives_a_finite_start_that_can_still_learn(value):
    cosines, relevance, weight = torch.zeros(2, 3), torch.full((2, 3), value), torch.ones(2, 3)
    expected = math.copysign(math.log(1e6 - 1), value - 0.5)
    assert fit_bias(cosines, relevance, weight, 20.0) == pytest.approx(expected, rel=1e-3)
    assert prior_bias(relevance, weight) == pytest.approx(expected, rel=1e-3)


def test_nothing_that_counts_starts_at_even_odds():
    nothing = torch.zeros(2, 3)
    assert prior_bias(nothing, nothing) == 0.0
    assert math.isfinite(fit_bias(nothing, nothing, nothing, 20.0))


@pytest.mark.parametrize("scale", [1.0, 20.0, 50.0])
def test_fit_equals_an_independent_root_finder_and_ignores_masked_entries(scale):
    generator = torch.Generator().manual_seed(3)
    cosines = torch.rand(12, 30, generator=generator) * 1.4 - 0.4
    relevance = (torch.rand(12, 30, generator=generator) < 0.1) * torch.rand(12, 30, generator=generator)
    weight = (torch.rand(12, 30, generator=generator) < 0.8).float()
    kept = weight.bool().numpy()
    s, z = scale * cosines.double().numpy()[kept], relevance.double().numpy()[kept]
    expected = brentq(lambda b: (1 / (1 + 2.718281828459045 ** -(s + b))).mean() - z.mean(), -90, 90, xtol=1e-12)
    assert fit_bias(cosines, relevance, weight, scale) == pytest.approx(expected, abs=1e-5)
    changed = torch.where(weight.bool(), cosines, 1.0)
    assert fit_bias(changed, relevance, weight, scale) == fit_bias(cosines, relevance, weight, scale)


def test_prior_is_the_log_odds_of_the_mean_target_that_counts():
    relevance = torch.tensor([[1.0, 0.0, 0.5, 0.9]])
    weight = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert prior_bias(relevance, weight) == pytest.approx(0.0, abs=1e-6)
    assert prior_bias(relevance[:, :2] * 0.2, weight[:, :2]) == pytest.approx(math.log(0.1 / 0.9), rel=1e-6)
