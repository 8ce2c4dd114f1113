"""Platt scaling: the slope and intercept that turn logits into probabilities of relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from numpy import float64

_NEWTON_STEPS = 100


def fit_platt(logits: npt.ArrayLike, z: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> tuple[float, float]:
    """Fit slope a >= 0 and intercept c of sigma(a * logit + c) to relevance by binary cross-entropy.

    Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") has soft targets here. A slope of 0
    means that the logits do not rise with relevance. `logits` (finite), `z` (in [0, 1]) and `weights` have shape (N,),
    else InputError is raised. A weight is the number of pairs that a pair stands for; None counts each pair once.
    """
    scores = np.asarray(logits, dtype=np.float64)
    _, observed, counted = checked(np.zeros(scores.shape), z, weights)
    if not np.isfinite(scores).all():
        raise InputError("logits: got NaN or infinity; expected finite numbers; fix: check the model")
    # Platt's targets, with n1 = sum z and n0 = sum (1 - z): the fit stays finite if the logits separate the relevances
    # or these are all 0 or all 1. Graded targets lie between. With many pairs it hardly matters.
    relevant, irrelevant = (counted * observed).sum(), (counted * (1 - observed)).sum()
    top, bottom = (relevant + 1) / (relevant + 2), 1 / (irrelevant + 2)
    targets = bottom + (top - bottom) * observed
    mean = float(np.average(targets, weights=counted))
    constant = (0.0, float(np.log(mean / (1 - mean))))
    spread = float(scores.std())
    if spread <= 1e-12 * max(1.0, float(np.abs(scores).max())):
        return constant
    center = float(scores.mean())
    slope, intercept = _newton((scores - center) / spread, targets, counted / counted.sum(), constant[1])
    if slope <= 0:
        return constant
    return slope / spread, intercept - slope * center / spread


def _newton(
    x: npt.NDArray[float64], targets: npt.NDArray[float64], shares: npt.NDArray[float64], intercept: float
) -> tuple[float, float]:
    """Minimise the mean, by (N,) shares, of softplus(a x + c) - targets (a x + c) by Newton's method from a = 0."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    weights = np.array([0.0, intercept])

    def loss(candidate: npt.NDArray[float64]) -> float:
        logits = design @ candidate
        return float(shares @ (np.logaddexp(0.0, logits) - targets * logits))

    for _ in range(_NEWTON_STEPS):
        probabilities = 0.5 * (1 + np.tanh(0.5 * (design @ weights)))
        gradient = design.T @ (shares * (probabilities - targets))
        if np.abs(gradient).max() < 1e-12:
            break
        curvature = (design * (shares * probabilities * (1 - probabilities))[:, None]).T @ design
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)  # singular at saturated probabilities
        scale = 1.0
        while scale > 1e-9 and loss(weights - scale * step) > loss(weights):
            scale /= 2
        if scale <= 1e-9:
            break
        weights = weights - scale * step
    return float(weights[0]), float(weights[1])


def checked(
    p: npt.ArrayLike, z: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[float64], npt.NDArray[float64], npt.NDArray[float64]]:
    """Return predictions, relevance and weights as float64 vectors; raises InputError for invalid ones."""
    arrays: list[Any] = [np.asarray(p, dtype=np.float64), np.asarray(z, dtype=np.float64)]
    if arrays[0].ndim != 1 or arrays[0].shape != arrays[1].shape or not arrays[0].size:
        raise InputError(
            f"calibration: got predictions {arrays[0].shape} and relevance {arrays[1].shape}; expected two vectors of "
            "one length, at least 1; fix: pass one prediction and one relevance per pair"
        )
    for name, values, fix in (
        ("predictions", arrays[0], "apply the sigmoid to logits first"),
        ("relevance", arrays[1], "map grades to [0, 1] with GradeScale.to_relevance"),
    ):
        wrong = ~((values >= 0) & (values <= 1))
        if wrong.any():
            raise InputError(f"{name}: got {values[wrong][0]}; expected 0 to 1; fix: {fix}")
    counted = np.ones(arrays[0].shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if counted.shape != arrays[0].shape or not (np.isfinite(counted) & (counted >= 0)).all() or not counted.any():
        raise InputError(
            f"weights: got {shorten(counted.tolist())}; expected one per pair, finite, 0 and up, not all 0; fix: "
            "leave them out to count all pairs alike"
        )
    return arrays[0], arrays[1], counted
