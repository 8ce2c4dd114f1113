"""`TwoSystems`: the two systems of a comparison, their collection and their measurements."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bixse.errors import InputError
from bixse.ui.background import BackgroundJob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.calibration.calibrate_head import HeldOutCheck, OperatingPoint
    from bixse.data.collection import Collection
    from bixse.encoders.head import RelevanceHead
    from bixse.evaluation.statistics import Floats
    from bixse.relevance import Qrels
    from bixse.results import Difference
    from bixse.search.search_collection import Hit
    from bixse.ui.searcher import Searcher
    from bixse.ui.ui_settings import UiSettings

Work: TypeAlias = Literal["open", "compare"]
"""The work "open" makes both systems ready to search; "compare" evaluates them on all judged queries."""
KEPT = 64
"""Number of cached answers and calibration checks, one per position of a slider."""


class TwoSystems:
    """The systems of `--systems`; heavy imports and files wait for the first page that needs them."""

    def __init__(self, settings: UiSettings) -> None:
        self.settings, self.names = settings, settings.systems
        self.collection: Collection | None = None
        self.searchers: list[Searcher] = []
        self.judged: dict[str, tuple[Floats, Floats, tuple[str, ...]]] = {}
        """Name of a system with a relevance head -> (M,) cosine, relevance and query id of the held-out pairs."""
        self.per_query: list[dict[str, dict[str, float]]] = []
        """Metric -> query id -> value per system, filled by the work "compare"."""
        self.query_of: dict[str, str] = {}
        """Text of a query of the collection -> query id."""
        self._jobs: dict[Work, BackgroundJob] = {}
        self._lock = threading.Lock()
        self.answer = lru_cache(KEPT)(self._answer)  # a cache on the class would keep instances alive
        self.check = lru_cache(KEPT)(self._check)
        self.difference = lru_cache(KEPT)(self._difference)

    def _job(self, work: Work) -> BackgroundJob:
        with self._lock:  # two requests must not start the work twice
            if work not in self._jobs:
                self._jobs[work] = BackgroundJob(work, self._open if work == "open" else self._compare)
            return self._jobs[work]

    def loading(self, work: Work = "open") -> dict[str, Any] | None:
        """Begin work; return None if it is done, else the values of the page that waits for it."""
        job = self._job("open")
        if job.is_done:
            job = self._job(work)
        return None if job.is_done else {"loading": job.status, "error": job.error or None, "names": self.names}

    def wait(self, work: Work = "open") -> None:
        if self._job("open").wait().is_done:
            self._job(work).wait()

    def _open(self, job: BackgroundJob) -> None:
        from bixse.calibration.calibrate_head import pair_cosines
        from bixse.data.collection import load_collection
        from bixse.data.pairs_files import load_graded_pairs
        from bixse.ui.searcher import open_searcher

        settings = self.settings
        if settings.collection is not None:
            job.begin(f"reading {settings.collection}")
            self.collection = load_collection(settings.collection, [settings.split])
            self.query_of = {text: query_id for query_id, text in self.collection.queries.items()}
        searchers = []
        for name in self.names:
            job.begin(f"loading {name}")
            searchers.append(open_searcher(name, self.collection, job.begin))
        if settings.held_out is not None:
            pairs = load_graded_pairs(settings.held_out)
            query_ids = tuple(pairs.query_ids)
            for searcher in searchers:
                if searcher.head is not None:
                    job.begin(f"encoding held-out pairs with {searcher.name}")
                    cosines = pair_cosines(searcher.model, pairs, job.begin)
                    self.judged[searcher.name] = (cosines, pairs.relevance, query_ids)
        self.searchers = searchers
        for side, searcher in enumerate(searchers):
            if searcher.name in self.judged:
                job.begin(f"measuring the probabilities of {searcher.name}")
                with suppress(InputError):  # the page shows it
                    self.check(side, None)

    def _compare(self, job: BackgroundJob) -> None:
        from bixse.evaluation.evaluate import evaluate
        from bixse.evaluation.metrics import METRICS
        from bixse.evaluation.tasks import collection_task

        settings = self.settings
        if settings.collection is None:
            raise InputError("wins: got no --collection; expected its judgements; fix: add --collection DIR")
        task = collection_task(settings.collection, settings.split, min_relevant_grade=settings.min_relevant_grade)
        for name in self.names:
            job.begin(f"evaluating {name}")
            self.per_query.append(evaluate(name, task, progress=job.begin).per_query)
        for metric in METRICS:
            self.difference(metric)

    @property
    def queries(self) -> Mapping[str, str]:
        """Judged queries of the split: id -> text."""
        return {} if self.collection is None else {query: self.collection.queries[query] for query in self.qrels}

    @property
    def qrels(self) -> Qrels:
        """Judgements of the split."""
        return {} if self.collection is None else self.collection.qrels[self.settings.split]

    def _answer(self, side: int, text: str, query_id: str | None, top: int) -> list[Hit]:
        return self.searchers[side].find(text, query_id, top)

    def _difference(self, metric: str) -> Difference:
        """The mean of the second system minus that of the first system, over the judged queries."""
        from bixse.evaluation.statistics import paired_bootstrap

        before, after = (values[metric] for values in self.per_query)
        return paired_bootstrap(after, before)

    def _check(self, side: int, prior: float | None) -> HeldOutCheck:
        """Return the result of `bixse calibrate` on the held-out pairs; raise InputError for too few queries."""
        from bixse.calibration.calibrate_head import ScoredPairs, held_out_check

        searcher = self.searchers[side]
        return held_out_check(searcher.head, ScoredPairs(*self.judged[searcher.name], prior, seed=self.settings.seed))

    def measured(self, searcher: Searcher, head: RelevanceHead, probability: float) -> OperatingPoint | None:
        """Measure a threshold on the held-out pairs, if there are any; raise InputError as `check` does."""
        from bixse.calibration.calibrate_head import ScoredPairs, measure_threshold

        if searcher.name not in self.judged:
            return None
        return measure_threshold(head, ScoredPairs(*self.judged[searcher.name], seed=self.settings.seed), probability)
