"""Importance weights that give judged pairs another prevalence of relevant ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bixse.encoders.head import log_odds
from bixse.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats


def reweight_to_prevalence(z: npt.ArrayLike, prior: float) -> tuple[Floats, Floats]:
    """Weights that give judged pairs another mean relevance, and the relevance each pair then has.

    A pair of relevance z stands for a share z of relevant and 1 - z of irrelevant ones. The former count
    prior / mean(z) times, the latter (1 - prior) / (1 - mean(z)) times: importance weights under a shift of the prior
    alone (Saerens, Latinne and Decaestecker 2002, doi:10.1162/089976602753284446). For z of 0 and 1 the relevance stays
    as it is.

    Args:
        z: relevance in [0, 1], shape (N,), not all 0 and not all 1.
        prior: the mean relevance wanted, between 0 and 1.

    Returns:
        Weights (N,), whose mean is 1, and relevance (N,), whose weighted mean is the prior.

    Raises:
        InputError: a prior out of range, or only relevant or only irrelevant pairs.

    Example:
        >>> weights, relevance = reweight_to_prevalence([1.0, 0.0], prior=0.1)
        >>> weights.tolist(), relevance.tolist()
        ([0.2, 1.8], [1.0, 0.0])
    """
    log_odds(prior, "prior")
    observed = np.asarray(z, dtype=np.float64)
    share = float(observed.mean()) if observed.size else 0.0
    if not 0 < share < 1:
        raise InputError(
            f"prior: got pairs whose mean relevance is {share:g}; expected relevant and irrelevant ones to weight; "
            "fix: add the kind that is missing"
        )
    relevant, irrelevant = observed * (prior / share), (1 - observed) * ((1 - prior) / (1 - share))
    weights = relevant + irrelevant
    return weights, relevant / weights
