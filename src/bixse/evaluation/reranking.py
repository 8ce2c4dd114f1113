"""A first stage whose best documents a reranker ranks again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import CrossEncoder

from bixse.encoders.lengths import sampled, warn_of_samples
from bixse.encoders.loading.build import model_hashes
from bixse.encoders.loading.kinds import kind_of
from bixse.encoders.loading.load_scorer import load_scorer
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, shorten
from bixse.evaluation.systems import System
from bixse.progress import progress_bar
from bixse.relevance import ranked

if TYPE_CHECKING:
    from bixse.encoders.scorers import Scorer
    from bixse.relevance import Ranking
    from bixse.search.tasks import CountStep, RunBlocks, Task


class RerankedSystem(System):
    """The `depth` best documents of a first stage in the order of a reranker; the others follow in their order.

    `reranker` is the folder of a model of any kind that scores pairs. Equal scores are a tie, which trec_eval's rule
    orders by document id. Raises InputError for a folder that is no reranker, and for a depth below 1.

    Example:
        ::

            system = RerankedSystem(Bm25System(), "runs/reranker/model", depth=30)
            evaluate(system, "my-collection").metrics
    """

    def __init__(self, first: System, reranker: str | Path, depth: int) -> None:
        self.first, self.depth = first, depth
        self.source = str(reranker)
        self._loaded: Scorer | None = None
        self.label = f"{first.label}, reranked by {self.source}"
        if depth < 1:
            raise InputError(f"--rerank-depth: got {depth}; expected 1 or more; fix: 100 is usual")
        if not Path(self.source).is_dir() or kind_of(self.source) == "encoder":
            raise InputError(
                f"--rerank: got {self.source!r}; expected the folder of a reranker, a late interaction or a sparse "
                "encoder; fix: name a folder that sentence-transformers saved for one of these"
            )

    @cached_property
    def inputs(self) -> Mapping[str, str]:
        files = {f"rerank/{name}": digest for name, digest in model_hashes(self.source).items()}
        return {**self.first.inputs, **files}

    @property
    def name(self) -> str:
        return f"{self.first.name}+{Path(self.source).name}-{self.digest}-{self.depth}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            **self.first.settings,
            "rerank": self.source,
            "rerank_depth": self.depth,
            "precision": self.precision,
        }

    @property
    def precision(self) -> str:
        return resolve_precision(device=None if self._loaded is None else self._loaded.device)

    @property
    def complete(self) -> bool:
        return self.first.complete

    def check(self, instructions: Sequence[str]) -> None:
        self.first.check(instructions)

    def check_answers(self, task: Task, refuse: bool) -> list[str]:
        return self.first.check_answers(task, refuse)

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        if self._loaded is None:
            self._loaded = load_scorer(self.source)
        runs = self.first.search(task, max(depth, self.depth), partial, progress)
        wanted = {name for run in runs.values() for hits in run.values() for name in ranked(hits)[: self.depth]}
        texts = {name: text for name, text in task.documents() if name in wanted}
        unknown = sorted(wanted - texts.keys())
        if unknown:
            raise InputError(
                f"--rerank: got {len(unknown)} documents of {self.first.label} that {task.name} lacks "
                f"({shorten(unknown[0])}); expected documents of the collection; fix: rerank a run of it"
            )
        self.notes = [*self.first.notes, *self._too_long(task, runs, texts)]
        for part in task.query_sets:
            yield part.name, self._rerank(part.queries, runs[part.name], texts, depth, progress)

    def _too_long(self, task: Task, runs: Mapping[str, Ranking], texts: Mapping[str, str]) -> list[str]:
        """Warn of what is longer than the reranker reads: pairs, or for another kind queries and documents."""
        samples = {"documents": sampled(list(texts.values()))}
        if isinstance(self._loaded, CrossEncoder):
            best = [
                (part.queries[query], texts[name])
                for part in task.query_sets
                for query, hits in runs[part.name].items()
                for name in ranked(hits)[: self.depth]
            ]
            samples = {"pairs": sampled(best)}
        return [f"{self.source}: {warning}" for warning in warn_of_samples(self._loaded, samples)]

    def _rerank(
        self, queries: Mapping[str, str], run: Ranking, texts: Mapping[str, str], depth: int, progress: Any
    ) -> Ranking:
        assert self._loaded is not None
        best = {query: ranked(hits) for query, hits in run.items()}
        pairs = [(queries[query], texts[name]) for query, names in best.items() for name in names[: self.depth]]
        bar = None if progress is None else progress_bar(f"rerank {self.first.label}", len(pairs))
        logits = iter(self._loaded.logits([query for query, _ in pairs], [text for _, text in pairs], bar).tolist())
        reranked: dict[str, dict[str, float]] = {}
        for query, names in best.items():
            hits = {name: next(logits) for name in names[: self.depth]}
            lowest = min(hits.values(), default=0.0)
            hits |= {name: lowest - rank for rank, name in enumerate(names[self.depth :], 1)}
            reranked[query] = {name: hits[name] for name in islice(ranked(hits), depth)}
        return reranked

    def release(self) -> None:
        """Unload first stage and reranker, which are loaded again on demand."""
        self.first.release()
        self._loaded = None
