"""The scores of judged pairs: of any sequence, of graded pairs by a model, and of the pool of a collection."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bixse.calibration.calibrate_head import PLAIN_SCALE, SAMPLING, ScoredPairs
from bixse.data.corpus import Document, JudgedCorpus
from bixse.data.graded_pairs import Pairs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.lengths import check_lengths
from bixse.encoders.loading.kinds import is_encoder
from bixse.errors import InputError, shorten
from bixse.relevance import DEPTH
from bixse.search.bm25 import BM25
from bixse.search.search_collection import encode_collection
from bixse.search.tasks import Task

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.encoders.scorers import Scorer
    from bixse.progress import ProgressBars
    from bixse.relevance import Qrels, Ranking

MOST_RELEVANT = 0.5
"""Mean relevance above which pairs are no sample of search results."""
RANDOM = 100
"""Number of random documents per query."""


def checked_scores(
    scores: ArrayLike,
    relevance: ArrayLike,
    queries: Sequence[str] | None = None,
    scored_by: str | None = None,
    where: object = "scores",
    **options: Any,
) -> ScoredPairs:
    """Check the (N,) scores of any model with their relevance in [0, 1]; `where` names the scores in errors.

    `queries` has the query of each score; None counts each score as a query. `options` are further fields of
    `ScoredPairs`.
    """
    values, labels = _numbers(where, scores), _numbers("relevance", relevance)
    ids = [str(number) for number in range(len(values))] if queries is None else list(map(str, queries))
    if not len(values) == len(labels) == len(ids):
        raise InputError(
            f"{where}: got {len(values)} scores, {len(labels)} relevances and {len(ids)} queries; expected one of each "
            "per pair; fix: pass sequences of one length"
        )
    if not ((labels >= 0) & (labels <= 1)).all():
        got = f"{labels.min():g} to {labels.max():g}"
        raise InputError(f"relevance: got {got}; expected numbers in [0, 1]; fix: divide grades by the highest grade")
    spread = float(values.std()) if len(values) else 0.0
    if spread == 0:
        differ = len(values) and np.ptp(values)
        alike = f"the score {values[0]:g} for all {len(values)} rows" if len(values) else "none"
        got = f"{len(values)} scores that differ by {differ:g}" if differ else alike
        raise InputError(f"{where}: got {got}; expected scores that differ; fix: check the export, or rescale them")
    # logits near 1 for scores of any size: BM25 reaches 40, a distance may be in thousands
    new = RelevanceHead(1 / spread, -float(values.mean()) / spread, scored_by=scored_by)
    facts = f"{len(values)} scores of {getattr(where, 'name', where)}"
    return ScoredPairs(values, labels, tuple(ids), new=new, facts=facts, **options)


def _numbers(name: object, given: ArrayLike) -> NDArray[np.float64]:
    """Return a sequence of finite numbers as an array; raise InputError for anything else."""
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if values.ndim != 1 or not np.isfinite(values).all():
        got = type(given).__name__ if values.ndim != 1 else shorten(given)
        raise InputError(
            f"{name}: got {got}; expected a sequence of finite numbers; fix: calibrate(scores, relevance), "
            "calibrate(model, collection) or calibrate(model, pairs)"
        )
    return values


def score_judged(
    scorer: RelevanceModel | Scorer,
    judged: Pairs | Task,
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> ScoredPairs:
    """Score graded pairs, or the pool of a collection's task, with a model of any kind.

    For a collection it samples the documents of each query, since most collections judge relevant ones alone: see
    `draw_pool`. Relevance is the grade divided by the highest grade of the split, and 0 without a judgement. `options`
    are further fields of `ScoredPairs`.
    """
    scale = PLAIN_SCALE if is_encoder(scorer) else 1.0  # a reranker gives logits
    new = RelevanceHead(scale, 0.0, dimensions=getattr(scorer, "truncate_dim", None))
    options = {"head": getattr(scorer, "head", None), "new": new, **options}
    if isinstance(judged, Task):
        return _score_pool(scorer, judged, progress, cache, **options)
    doubts, share = check_lengths(scorer, judged), float(judged.relevance.mean())
    if options.get("prior") is None and share > MOST_RELEVANT:
        doubts = [
            *doubts,
            f"a share of {share:.2f} of the pairs is relevant, and of a corpus far less: the probabilities are none of "
            f"search results; use {SAMPLING}",
        ]
    options = {"facts": f"{len(judged)} pairs", "warnings": tuple(doubts), **options}
    return ScoredPairs(pair_cosines(scorer, judged, progress), judged.relevance, judged.query_ids, **options)


def pair_cosines(
    model: RelevanceModel | Scorer, pairs: Pairs, progress: ProgressBars | None = None
) -> NDArray[np.float64]:
    """Return the (M,) cosines of pairs in [-1, 1]; for a model of another kind its scores."""
    if not is_encoder(model):
        return model.logits(pairs.queries, pairs.documents, progress("score pairs", len(pairs)) if progress else None)
    from bixse.encoders.encode import encode_texts  # not at the top: scores need no torch

    step = progress("encode pairs", 2 * len(pairs)) if progress else None
    queries = encode_texts(model, pairs.queries, "query", progress=step).astype(np.float64)
    documents = encode_texts(model, pairs.documents, "document", progress=step).astype(np.float64)
    cosines: NDArray[np.float64] = np.einsum("md,md->m", queries, documents)
    return cosines


class PooledDocument(NamedTuple):
    """A document of the pool of a query."""

    query_id: str
    document_id: str
    relevance: float
    """Grade / highest grade, in [0, 1]; 0 for a document that is not judged."""
    weight: float
    """Number of documents of the corpus that it stands for."""
    is_result: bool
    """True if the first ranking shows it."""


def draw_pool(
    qrels: Qrels, rankings: Sequence[Ranking], documents: Sequence[str], seed: int = 0, number: int = RANDOM
) -> list[PooledDocument]:
    """Return, per query, the documents of all rankings, the judged ones, and random ones of the rest of the corpus.

    A document of rankings or judgements weighs 1, and one of n random documents N / n, where N documents of the corpus
    are in neither. So for every function f of documents, the weighted sum over the pool has the sum over the corpus as
    its mean: sum of f over hits and judged + (N / n) * sum of f over random ones (Horvitz and Thompson 1952,
    doi:10.1080/01621459.1952.10483446). A document that is not judged counts as irrelevant. The draw depends on seed,
    query id and corpus alone.

    Example:
        >>> pool = draw_pool({"q": {"d1": 2}}, [{"q": {"d2": 0.9}}], ["d1", "d2", "d3", "d4", "d5"], number=2)
        >>> [each[2:] for each in pool]
        [(0.0, 1.0, True), (1.0, 1.0, False), (0.0, 1.5, False), (0.0, 1.5, False)]
    """
    known, highest = set(documents), max(grade for row in qrels.values() for grade in row.values())
    pool = []
    for query, grades in qrels.items():
        relevance = {name: max(grade, 0.0) / highest for name, grade in grades.items()}
        near = [ranking.get(query, {}) for ranking in rankings]
        certain = dict.fromkeys(name for names in (*near, grades) for name in names if name in known)
        drawn = random.Random(f"{seed} {query}").sample(documents, min(len(documents), number + len(certain)))
        rest = [name for name in drawn if name not in certain][:number]
        weight = (len(documents) - len(certain)) / max(len(rest), 1)
        pool += [PooledDocument(query, name, relevance.get(name, 0.0), 1.0, name in near[0]) for name in certain]
        pool += [PooledDocument(query, name, 0.0, weight, False) for name in rest]
    return pool


def _score_pool(
    model: RelevanceModel | Scorer,
    task: Task,
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> ScoredPairs:
    """Draw the pool of the 100 best documents of the model and of BM25, and score it.

    The first ranking is that of the model. For a model that is no encoder it is that of BM25, since such a model ranks
    the hits of another one. `options` are further fields of `ScoredPairs`.
    """
    corpus = {name: Document("", text) for name, text in task.documents() if text}
    queries, qrels = task.query_sets[0].queries, task.query_sets[0].qrels
    texts = {name: document.content for name, document in corpus.items()}
    rankings: list[Ranking] = [BM25(list(texts), list(texts.values())).search(queries, DEPTH)]
    encoded = None
    if is_encoder(model):
        encoded = encode_collection(model, JudgedCorpus(task.name, corpus, queries), list(queries), progress, cache)
        rankings.insert(0, encoded.search(list(queries), DEPTH))
    # a query that is a document of the corpus finds itself first, which says nothing
    rankings = [
        {query: {name: score for name, score in hits.items() if texts[name] != queries[query].strip()}
         for query, hits in ranking.items()}
        for ranking in rankings
    ]  # fmt: skip
    pool = draw_pool(qrels, rankings, list(corpus), seed)
    pairs = Pairs.from_rows(
        {"query_id": query, "query": queries[query], "document_id": name, "document": texts[name], "relevance": z}
        for query, name, z, *_ in pool
    )
    asked = [(each.query_id, each.document_id) for each in pool]
    cosines = pair_cosines(model, pairs, progress) if encoded is None else encoded.cosines(asked)
    sampled = sum(each.weight != 1 for each in pool)
    facts = (
        f"{len(queries):,} queries of split {task.settings['split']!r} of {task.name}: {len(pool) - sampled:,} "
        f"retrieved or judged documents and {sampled:,} random documents, weighted to a corpus of {len(corpus):,}"
    )
    names, _, *figures = zip(*pool, strict=True)
    relevance, weights, is_result = map(np.array, figures)
    return ScoredPairs(
        cosines, relevance, names, seed=seed, weights=weights, is_result=is_result, facts=facts,
        warnings=(*task.joined, *check_lengths(model, pairs)), **options,
    )  # fmt: skip
