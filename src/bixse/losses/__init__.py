"""Losses on graded (query, document) pairs; usable alone with sentence-transformers' own trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bixse.losses.base import GradedLoss as GradedLoss
    from bixse.losses.bixse import BiXSELoss as BiXSELoss
    from bixse.losses.graded_bce import graded_bce as graded_bce
    from bixse.losses.infonce import InfoNCELoss as InfoNCELoss
    from bixse.losses.infonce import SoftInfoNCELoss as SoftInfoNCELoss
    from bixse.losses.targets import GradedTargets as GradedTargets

LOSSES = {"bixse": "BiXSELoss", "infonce": "InfoNCELoss", "soft-infonce": "SoftInfoNCELoss"}
"""The catalogue: word in a config or on the command line -> class."""

_HOMES = {
    "BiXSELoss": "bixse",
    "GradedLoss": "base",
    "GradedTargets": "targets",
    "InfoNCELoss": "infonce",
    "SoftInfoNCELoss": "infonce",
    "graded_bce": "graded_bce",
}

__all__ = ["LOSSES", "BiXSELoss", "GradedLoss", "GradedTargets", "InfoNCELoss", "SoftInfoNCELoss", "graded_bce"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
