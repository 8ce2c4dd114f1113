"""Where the logit bias starts: it decides whether training harms or helps a model that is already good."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from bixse.errors import InputError
from bixse.losses.engines.gather import all_reduce_sum

BiasStart: TypeAlias = float | Literal["fit", "prior"]
"""A number, "fit" (mean predicted relevance = mean target) or "prior" (log-odds of the mean target)."""

LARGEST_BIAS = 100.0
"""Search range of "fit": the start lies in [-100, 100] (a scale above 100 may need more: give a number then)."""


def fit_bias(cosines: Tensor, relevance: Tensor, weight: Tensor, scale: float) -> float:
    """The bias at which the mean of sigma(scale * cosine + bias) equals the mean relevance, by bisection.

    Of several processes each brings its own rows; the means are over all of them.

    Args:
        cosines: (B, N) similarities under the untrained encoder.
        relevance: (B, N) targets in [0, 1].
        weight: (B, N) 1 for entries that count, 0 for masked ones.
        scale: the logit scale alpha.

    Returns:
        The start of the logit bias, within [-100, 100].

    Example:
        >>> cosines = torch.tensor([[0.8, 0.1], [0.2, 0.6]])
        >>> beta = fit_bias(cosines, torch.eye(2), torch.ones(2, 2), scale=20.0)
        >>> round(float(torch.sigmoid(20.0 * cosines + beta).mean()), 4)
        0.5
    """
    logits = scale * _exact(cosines[weight.bool()])
    wanted = _mean_relevance(relevance, weight)
    low, high = -LARGEST_BIAS, LARGEST_BIAS
    for _ in range(60):
        middle = (low + high) / 2
        if _mean(torch.sigmoid(logits + middle)) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def prior_bias(relevance: Tensor, weight: Tensor) -> float:
    """The log-odds of the mean relevance; ignores that cosines are not centred at 0.

    Example:
        >>> round(prior_bias(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.ones(1, 4)), 4)
        -1.0986
    """
    mean = _mean_relevance(relevance, weight)
    return math.log(mean / (1 - mean))


def check_bias_start(bias: BiasStart) -> BiasStart:
    """The start as given, or an InputError naming the choices."""
    number = isinstance(bias, (int, float)) and not isinstance(bias, bool) and math.isfinite(bias)
    if not number and bias not in ("fit", "prior"):
        raise InputError(f"bias: got {bias!r}; expected 'fit', 'prior' or a number; fix: leave it out for 'fit'")
    return bias


def _mean_relevance(relevance: Tensor, weight: Tensor) -> float:
    """Mean over the entries that count, within [1e-6, 1 - 1e-6]; 0.5 when none counts."""
    return min(max(_mean(_exact(relevance[weight.bool()])), 1e-6), 1 - 1e-6)


def _exact(values: Tensor) -> Tensor:
    """Detached float64; float32 on a device that has no other."""
    return values.detach().to(torch.float32 if values.device.type == "mps" else torch.float64)


def _mean(values: Tensor) -> float:
    """Mean over the values of all processes; 0.5 when there is none."""
    total, number = all_reduce_sum(torch.stack([values.sum(), values.new_tensor(values.numel())])).tolist()
    return total / number if number else 0.5
