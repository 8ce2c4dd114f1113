"""The lexical baseline that every dense retriever is compared with: BM25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import Stemmer

from bixse.errors import InputError

BM25_NAME = "bm25"
"""Name of this baseline in place of a model."""
K1, B = 0.9, 0.4
"""Defaults of Anserini, as in the BM25 column of BEIR (Thakur et al. 2021, arXiv:2104.08663); Lucene's own are 1.2 and
0.75."""
STEMMER: str | None = "english"
TOKEN_PATTERN = r"(?u)\b\w+\b"  # keeps one-letter words such as C and R; the default of bm25s drops them


class BM25:
    """The BM25 ranking over stemmed words, by the library bm25s (Lù 2024, arXiv:2407.03618).

    The weight of a term is Lucene's: idf = log(1 + (N - df + 0.5) / (df + 0.5)), never negative, so a document scores 0
    exactly when it shares no term with the query. Texts are lower-cased and stemmed, without English stop words.

    Example:
        >>> index = BM25(["d1", "d2"], ["copying files", "sorting lists"])
        >>> list(index.search({"q1": "copy a file", "q2": "weather"}, top_k=10).items())
        [('q1', {'d1': 0.7296...}), ('q2', {})]
    """

    def __init__(self, document_ids: Sequence[str], texts: Sequence[str]) -> None:
        self.document_ids = np.array(document_ids, dtype=object)
        self._stem = None if STEMMER is None else Stemmer.Stemmer(STEMMER)
        # the order of equal scores in trec_eval: document id descending
        descending = sorted(range(len(document_ids)), key=lambda index: document_ids[index], reverse=True)
        self._tie_rank = np.empty(len(document_ids), dtype=np.int64)
        self._tie_rank[descending] = np.arange(len(document_ids))
        tokens = self._tokenize(texts)
        self._index: Any = None
        if any(tokens):
            import bm25s

            self._index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
            self._index.index(tokens, show_progress=False)

    def search(self, queries: Mapping[str, str], top_k: int) -> dict[str, dict[str, float]]:
        """Return the `top_k` best documents per query (id -> text) that share a term with it, best first.

        Equal scores are ordered by document id descending.
        """
        if top_k < 1:
            raise InputError(f"top_k: got {top_k}; expected at least 1; fix: ask for at least one document")
        results: dict[str, dict[str, float]] = {}
        for (query_id, _), tokens in zip(queries.items(), self._tokenize(list(queries.values())), strict=True):
            if self._index is None or not tokens:
                results[query_id] = {}
                continue
            scores = self._index.get_scores(tokens)
            candidates = np.flatnonzero(scores > 0)
            if len(candidates) > top_k:  # the tie rule is for all documents tied at the cut
                cut = np.partition(scores[candidates], -top_k)[-top_k]
                candidates = candidates[scores[candidates] >= cut]
            best = candidates[np.lexsort((self._tie_rank[candidates], -scores[candidates]))][:top_k]
            results[query_id] = dict(zip(self.document_ids[best].tolist(), scores[best].tolist(), strict=True))
        return results

    def _tokenize(self, texts: Sequence[str]) -> list[list[str]]:
        import bm25s  # the import takes nearly two seconds, for numba and SciPy

        options = {"token_pattern": TOKEN_PATTERN, "stopwords": STEMMER, "stemmer": self._stem}
        tokens: list[list[str]] = bm25s.tokenize(list(texts), return_ids=False, show_progress=False, **options)
        return tokens
