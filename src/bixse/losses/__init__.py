"""Losses on graded (query, document) pairs; usable alone with sentence-transformers' own trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bixse.losses.base import GradedLoss as GradedLoss
    from bixse.losses.bixse import BiXSELoss as BiXSELoss
    from bixse.losses.catalogue import LOSSES as LOSSES
    from bixse.losses.catalogue import build_loss as build_loss
    from bixse.losses.engines.graded_bce import graded_bce as graded_bce
    from bixse.losses.infonce import InfoNCELoss as InfoNCELoss
    from bixse.losses.lambda_loss import LambdaLoss as LambdaLoss
    from bixse.losses.margin_mse import MarginMSELoss as MarginMSELoss
    from bixse.losses.pairwise_bce import PairwiseBCELoss as PairwiseBCELoss
    from bixse.losses.soft_infonce import SoftInfoNCELoss as SoftInfoNCELoss
    from bixse.losses.targets import GradedTargets as GradedTargets

_HOMES = {
    "LOSSES": "catalogue",
    "BiXSELoss": "bixse",
    "GradedLoss": "base",
    "GradedTargets": "targets",
    "InfoNCELoss": "infonce",
    "LambdaLoss": "lambda_loss",
    "MarginMSELoss": "margin_mse",
    "PairwiseBCELoss": "pairwise_bce",
    "SoftInfoNCELoss": "soft_infonce",
    "build_loss": "catalogue",
    "graded_bce": "engines.graded_bce",
}

__all__ = [
    "LOSSES",
    "BiXSELoss",
    "GradedLoss",
    "GradedTargets",
    "InfoNCELoss",
    "LambdaLoss",
    "MarginMSELoss",
    "PairwiseBCELoss",
    "SoftInfoNCELoss",
    "build_loss",
    "graded_bce",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
