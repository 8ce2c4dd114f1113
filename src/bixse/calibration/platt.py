"""Platt scaling: one logistic curve from scores to probabilities, fitted to graded relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bixse.calibration.reliability import checked
from bixse.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats

_NEWTON_STEPS = 100


def fit_platt(logits: npt.ArrayLike, z: npt.ArrayLike) -> tuple[float, float]:
    """Slope a >= 0 and intercept c of sigma(a * logit + c), fitted to relevance by binary cross-entropy.

    Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") with soft targets, by Newton's
    method with step halving in float64. A slope of 0 means that the logits do not rise with relevance. The targets are
    pulled in as Platt does: relevance 1 becomes (n1 + 1) / (n1 + 2) and relevance 0 becomes 1 / (n0 + 2), where n1 =
    sum z and n0 = sum (1 - z), and graded targets lie between. It keeps the answer finite when the logits separate the
    relevances or these are all 0 or 1, and hardly matters with many pairs.

    Both `logits`, finite, and `z` in [0, 1] have shape (N,); raises InputError where they do not.

    Example:
        >>> slope, intercept = fit_platt([-2.0, -1.0, 1.0, 2.0], [0.0, 0.4, 0.6, 1.0])
        >>> slope > 0, abs(intercept) < 1e-9
        (True, True)
    """
    scores = np.asarray(logits, dtype=np.float64)
    _, observed, _ = checked(np.zeros(scores.shape), z)
    if not np.isfinite(scores).all():
        raise InputError("logits: got NaN or infinity; expected finite numbers; fix: check the model")
    top, bottom = (observed.sum() + 1) / (observed.sum() + 2), 1 / ((1 - observed).sum() + 2)
    targets = bottom + (top - bottom) * observed
    mean = float(targets.mean())
    constant = (0.0, float(np.log(mean / (1 - mean))))
    spread = float(scores.std())
    if spread <= 1e-12 * max(1.0, float(np.abs(scores).max())):
        return constant
    center = float(scores.mean())
    slope, intercept = _newton((scores - center) / spread, targets, constant[1])
    if slope <= 0:
        return constant
    return slope / spread, intercept - slope * center / spread


def _newton(x: Floats, targets: Floats, intercept: float) -> tuple[float, float]:
    """Minimise mean softplus(a x + c) - targets (a x + c), which is convex in (a, c), from a = 0."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    weights = np.array([0.0, intercept])

    def loss(candidate: Floats) -> float:
        logits = design @ candidate
        return float(np.mean(np.logaddexp(0.0, logits) - targets * logits))

    for _ in range(_NEWTON_STEPS):
        probabilities = 0.5 * (1 + np.tanh(0.5 * (design @ weights)))
        gradient = design.T @ (probabilities - targets) / len(x)
        if np.abs(gradient).max() < 1e-12:
            break
        curvature = (design * (probabilities * (1 - probabilities))[:, None]).T @ design / len(x)
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)
        scale = 1.0
        while scale > 1e-9 and loss(weights - scale * step) > loss(weights):
            scale /= 2
        if scale <= 1e-9:
            break
        weights = weights - scale * step
    return float(weights[0]), float(weights[1])
