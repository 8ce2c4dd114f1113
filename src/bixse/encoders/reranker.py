"""The CrossEncoder that also gives probabilities of relevance, and the logits of many pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentence_transformers import CrossEncoder
from torch import nn

from bixse.encoders.head import RelevanceHead, load_heads, save_heads
from bixse.encoders.loading.precision import autocast
from bixse.encoders.relevance_model import check_texts
from bixse.errors import ModelError, NotFiniteError
from bixse.files.files import drop_hashes, storage_errors, usual_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

PAIRS_AT_ONCE = 1024
"""Pairs that are sorted by length together, and between two reports of progress."""


class Reranker(CrossEncoder):
    """A CrossEncoder with a relevance head; saved folders load in plain CrossEncoder too, with the same scores.

    The head maps the logit, in the place of an encoder's cosine, to a probability. It is None where the folder holds
    none.
    """

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self.heads: dict[int | None, RelevanceHead] = load_heads(Path(model_name_or_path or ""))
        """The relevance head under the key None, as in a `RelevanceModel`."""

    @property
    def head(self) -> RelevanceHead | None:
        """The relevance head, or None."""
        return self.heads.get(None)

    @head.setter
    def head(self, head: RelevanceHead | None) -> None:
        self.heads = {} if head is None else {None: head}

    def logits(
        self, queries: Sequence[str], documents: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Return (N,) logits of N pairs; raises NotFiniteError for NaN or infinity."""
        pairs = list(zip(queries, documents, strict=True))
        # once per distinct pair: in two batches, rounding would break the tie of equal texts
        rows = list(dict.fromkeys(pairs))
        scores: dict[tuple[str, str], float] = {}
        with autocast(self.device):
            for start in range(0, len(rows), PAIRS_AT_ONCE):
                part = rows[start : start + PAIRS_AT_ONCE]
                values = self.predict(part, show_progress_bar=False, activation_fn=nn.Identity())
                scores |= zip(part, values.tolist(), strict=True)
                if progress is not None:
                    progress(len(part))
        if not np.isfinite(list(scores.values())).all():
            raise NotFiniteError(
                "reranker: got NaN or infinity as the logit of a pair; expected finite numbers; fix: train or fetch "
                "the model again"
            )
        return np.array([scores[pair] for pair in pairs], dtype=np.float64)

    def relevance(self, query: str, documents: Sequence[str]) -> NDArray[np.float64]:
        """Return (N,) probabilities, in [0, 1], that N documents are relevant for a query."""
        check_texts(query, documents)
        if self.head is None:
            raise ModelError(
                "relevance: got a reranker without a relevance head; expected one trained or calibrated by bixse; fix: "
                "run `bixse calibrate MODEL --pairs FILE`"
            )
        return self.head.probability(self.logits([query] * len(documents), documents))

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save the model with its head; raises StorageError."""
        drop_hashes(Path(path))  # they belong to the older files
        with storage_errors(Path(path)), usual_modes(Path(path)):
            super().save(path, *args, **kwargs)
        if self.heads:
            save_heads(self.heads, Path(path))
