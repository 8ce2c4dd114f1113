"""`MergeModelsConfig`: what `bixse merge` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from bixse.encoders.loading.precision import resolve_precision
from bixse.settings import Flag, Settings
from bixse.training.config import MergeConfig, Weight

if TYPE_CHECKING:
    from typing import Self


class MergeModelsConfig(Settings):
    """Settings of `bixse merge`: either `weights` gives the share of each model, or `dev` chooses w.

    With `dev`, the first model is the base, tuned is the mean of the others, and the result is
    (1 - w) base + w tuned.

    Example:
        >>> MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5]).documents
        10000
    """

    models: Annotated[tuple[str, ...], Field(min_length=2), Flag(metavar="MODEL", positional=True)]
    """Folders or hub names of two or more models of one architecture; with dev the base model first."""
    weights: tuple[Weight, ...] | None = None
    """Share of each model, with sum 1."""
    dev: tuple[Path, ...] = ()
    """Collection folders on which w is chosen."""
    dev_split: str = "dev"
    """Split of the dev collections."""
    guard: tuple[Path, ...] = ()
    """Collection folders that must not get worse than the base model."""
    guard_split: str = "test"
    """Split of the guard collections."""
    guard_tolerance: float = Field(default=0.01, ge=0)
    """nDCG@10 by which a guard collection may fall below the base model."""
    candidates: Annotated[tuple[Weight, ...], Field(min_length=1)] = MergeConfig.model_fields["weights"].default
    """Values of w that are tried."""
    documents: int | None = Field(default=MergeConfig.model_fields["documents"].default, ge=1)
    """Documents of a collection that are searched, judged ones first; null for all."""
    pairs: Path | None = None
    """Graded pairs to which scale and bias of the merged model are fitted; null leaves it without a relevance head."""
    max_length: int | None = Field(default=None, ge=4)
    """Tokens of a text that are read; null keeps the base model's."""
    allow_shared_queries: bool = False
    """Accept dev or guard queries that stand in the pairs."""
    trust_remote_code: bool = False
    """Run code that comes with the models."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.weights is None) == (not self.dev):
            found = "weights and dev" if self.dev else "neither weights nor dev"
            raise ValueError(f"got {found}; expected one of them; fix: give weights, or dev to choose them on")
        if self.guard and not self.dev:
            raise ValueError("got guard without dev; expected both; fix: give dev, or leave guard out")
        if self.weights is not None:
            from bixse.encoders.interpolation import check_shares  # not at the top: it imports torch

            check_shares(self.weights, len(self.models))
        return self

    def identity(self) -> dict[str, Any]:
        """What makes two merges the same; how w is chosen counts only where it is chosen."""
        chosen = {"candidates", "documents", "guard_tolerance"} if self.dev else set()
        return self.model_dump(mode="json", include={"models", "weights", "max_length", *chosen}) | {
            "precision": resolve_precision()
        }
