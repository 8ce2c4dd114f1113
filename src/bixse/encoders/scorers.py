"""Models that score pairs of texts: reranker, late interaction and sparse encoder, each with a relevance head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import fullname
from torch import Tensor, nn

from bixse.encoders.head import RelevanceHead, load_heads, save_heads
from bixse.encoders.loading.backbones import BidirectionalTransformer
from bixse.encoders.loading.precision import autocast
from bixse.encoders.relevance_model import check_texts
from bixse.errors import ModelError, NotFiniteError
from bixse.files.files import drop_hashes, storage_errors, usual_modes
from bixse.relevance import best_first

if TYPE_CHECKING:
    TextPairs = list[tuple[str, str]]

PAIRS_AT_ONCE = 1024
"""Pairs that are scored together, and between two reports of progress."""
DOCUMENTS_AT_ONCE = 256
"""Documents whose embeddings are in memory together: at 256 tokens of 384 numbers they take 100 MB."""


class Scorer(BaseModel):
    """The part of a model that scores N pairs of texts, and maps scores to probabilities by its relevance head.

    A class puts it before its model of sentence-transformers, whose plain class loads a saved folder with the same
    scores. The head maps the score, instead of an encoder's cosine; it is None if the folder holds none.
    """

    kind: ClassVar[str]
    """The kind, as `kind_of` names it."""

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        # as in a `RelevanceModel`: this class is given by name
        self._module_classes = {fullname(BidirectionalTransformer): BidirectionalTransformer, **self._module_classes}
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

    def score_parts(self, pairs: TextPairs) -> Iterator[tuple[TextPairs, NDArray[np.float32]]]:
        """Yield distinct pairs, a part at a time and in any order, with their scores."""
        raise NotImplementedError

    def logits(
        self, queries: Sequence[str], documents: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Return (N,) scores of N pairs, the input of the head; raises NotFiniteError for NaN or infinity."""
        pairs = list(zip(queries, documents, strict=True))
        scores: dict[tuple[str, str], float] = {}
        # once per distinct pair: rounding differs between batches, so equal texts would no longer tie
        for part, values in self.score_parts(list(dict.fromkeys(pairs))):
            scores |= zip(part, values.tolist(), strict=True)
            if progress is not None:
                progress(len(part))
        if not np.isfinite(list(scores.values())).all():
            raise NotFiniteError(
                f"{self.kind}: got NaN or infinity as the score of a pair; expected finite numbers; fix: train or "
                "fetch the model again"
            )
        return np.array([scores[pair] for pair in pairs], dtype=np.float64)

    def relevance(self, query: str, documents: Sequence[str]) -> NDArray[np.float64]:
        """Return (N,) probabilities, in [0, 1], that N documents are relevant for a query."""
        check_texts(query, documents)
        if self.head is None:
            raise ModelError(
                f"relevance: got a model without a relevance head ({self.kind}); expected one trained or calibrated by "
                "bixse; fix: run `bixse calibrate MODEL --collection DIR`"
            )
        return self.head.probability(self.logits([query] * len(documents), documents))

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save the model with its head; raises StorageError."""
        drop_hashes(Path(path))  # they belong to the older files
        with storage_errors(Path(path)), usual_modes(Path(path)):
            super().save(path, *args, **kwargs)
        save_heads(self.heads, Path(path))


class Reranker(Scorer, CrossEncoder):
    """A CrossEncoder with a relevance head: it reads query and document together, and its score is a logit."""

    kind = "reranker"

    def score_parts(self, pairs: TextPairs) -> Iterator[tuple[TextPairs, NDArray[np.float32]]]:
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            part = pairs[start : start + PAIRS_AT_ONCE]
            with autocast(self.device):
                scores = self.predict(part, show_progress_bar=False, activation_fn=nn.Identity())
            yield part, scores


class EmbeddingScorer(Scorer):
    """A scorer that embeds query and document each by itself, and compares the two by the model's similarity."""

    def score_parts(self, pairs: TextPairs) -> Iterator[tuple[TextPairs, NDArray[np.float32]]]:
        """Yield parts of pairs with their scores: each distinct text is embedded once, documents in blocks."""
        model: Any = self
        queries_of: dict[str, list[str]] = {}
        for query, document in pairs:
            queries_of.setdefault(document, []).append(query)
        queries = self._embed(model.encode_query, list(dict.fromkeys(query for query, _ in pairs)))
        by_length = sorted(queries_of, key=len)  # blocks of similar lengths have little padding
        for first in range(0, len(by_length), DOCUMENTS_AT_ONCE):
            documents = self._embed(model.encode_document, by_length[first : first + DOCUMENTS_AT_ONCE])
            rows = [(query, document) for document in documents for query in queries_of[document]]
            for start in range(0, len(rows), PAIRS_AT_ONCE):
                part = rows[start : start + PAIRS_AT_ONCE]
                sides = [queries[query] for query, _ in part], [documents[document] for _, document in part]
                yield part, model.similarity_pairwise(*sides).float().cpu().numpy()

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """Rank documents as `CrossEncoder.rank` does; scores are probabilities of relevance, or those of the model."""
        check_texts(query, documents)
        scores = self.logits([query] * len(documents), documents)
        scores = scores if self.head is None else self.head.probability(scores)
        return best_first(scores.tolist(), documents, top_k, return_documents)

    def _embed(self, encode: Callable[..., Any], texts: list[str]) -> dict[str, Tensor]:
        with autocast(self.device):
            return dict(zip(texts, encode(texts, show_progress_bar=False), strict=True))


class LateInteractionEncoder(EmbeddingScorer, MultiVectorEncoder):
    """A MultiVectorEncoder with a relevance head.

    The score is the mean over the query's tokens of the highest cosine with a token of the document.
    """

    kind = "late-interaction"


class SparseScorer(EmbeddingScorer, SparseEncoder):
    """A SparseEncoder with a relevance head; the score is the dot product."""

    kind = "sparse"


SCORERS: Mapping[str, type[Scorer]] = {cls.kind: cls for cls in (Reranker, LateInteractionEncoder, SparseScorer)}
