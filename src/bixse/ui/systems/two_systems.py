"""`TwoSystems`: the two systems of a comparison, their collection and what was measured of them, loaded in a thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from bixse.errors import InputError, thread_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bixse.calibration.calibrate_head import HeldOutCheck, OperatingPoint
    from bixse.data.collection import Collection
    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.head import RelevanceHead
    from bixse.evaluation.statistics import Floats
    from bixse.relevance import Qrels
    from bixse.results import Difference
    from bixse.search.search_collection import Hit
    from bixse.ui.systems.searcher import Searcher
    from bixse.ui.ui_settings import UiSettings

KEPT = 64
"""Answers, and checks of calibrations, that are kept: those of a slider's places."""


class TwoSystems:
    """What `--systems` names; nothing heavy is imported or read before `start`."""

    def __init__(self, settings: UiSettings) -> None:
        self.settings, self.names = settings, settings.systems
        self.collection: Collection | None = None
        self.searchers: list[Searcher] = []
        self.held_out: GradedPairs | None = None
        self.query_ids: tuple[str, ...] = ()
        """Of the held-out pairs."""
        self.cosines: dict[str, Floats] = {}
        """Name of a system with a relevance head -> (M,) cosines of the held-out pairs."""
        self.per_query: list[dict[str, dict[str, float]]] = []
        """Of each system: metric -> query id -> value, once the work "compare" is done."""
        self.query_of: dict[str, str] = {}
        """Text of a query of the collection -> its id."""
        self.error: str | None = None
        self.doing = "waiting"
        self._jobs: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._ready: set[str] = set()
        self.answer = lru_cache(KEPT)(self._answer)
        self.check = lru_cache(KEPT)(self._check)
        self.difference = lru_cache(KEPT)(self._difference)

    def start(self, job: str = "open") -> bool:
        """Whether a piece of work is done; it is begun where it was not.

        "open" makes the systems ready to search, "compare" also evaluates them on all judged queries.
        """
        with self._lock:
            if job not in self._jobs:
                self._jobs[job] = threading.Thread(target=self._do, args=(job,), daemon=True)
                self._jobs[job].start()
        return job in self._ready

    def wait(self, job: str = "open") -> None:
        """Until it is done."""
        self.start(job)
        self._jobs[job].join()

    def _do(self, job: str) -> None:
        if job != "open":
            self.wait()
        try:
            if self.error is None:
                self._open() if job == "open" else self._compare()
                self._ready.add(job)
        except Exception as error:
            self.error = thread_error(error, job)

    def _open(self) -> None:
        from bixse.calibration.calibrate import pair_cosines
        from bixse.data.collection import load_collection
        from bixse.data.pairs_files import load_graded_pairs
        from bixse.ui.systems.searcher import open_searcher

        settings = self.settings
        if settings.collection is not None:
            self.doing = f"reading {settings.collection}"
            self.collection = load_collection(settings.collection, [settings.split])
            self.query_of = {text: query_id for query_id, text in self.collection.queries.items()}
        found = []
        for name in self.names:
            self.doing = f"loading {name}"
            found.append(open_searcher(name, self.collection, self._progress))
        if settings.held_out is not None:
            self.held_out = load_graded_pairs(settings.held_out)
            self.query_ids = tuple(self.held_out.query_ids)
            for searcher in found:
                if searcher.head is not None:
                    self.doing = f"encoding held-out pairs with {searcher.name}"
                    self.cosines[searcher.name] = pair_cosines(searcher.model, self.held_out, self._progress)
        self.searchers = found
        for side, searcher in enumerate(found):
            if searcher.name in self.cosines:
                self.doing = f"measuring the probabilities of {searcher.name}"
                with suppress(InputError):  # said on the page
                    self.check(side, None)

    def _compare(self) -> None:
        from bixse.evaluation.evaluate import evaluate
        from bixse.evaluation.metrics import METRICS
        from bixse.evaluation.tasks import collection_task

        settings = self.settings
        if settings.collection is None:
            raise InputError("wins: got no --collection; expected its judgements; fix: add --collection DIR")
        task = collection_task(settings.collection, settings.split, min_relevant_grade=settings.min_relevant_grade)
        for name in self.names:
            self.doing = f"evaluating {name}"
            self.per_query.append(evaluate(name, task, progress=self._progress).per_query)
        for metric in METRICS:
            self.difference(metric)

    def _progress(self, title: str, total: int) -> Callable[[int], None]:
        done = 0

        def step(count: int, *_: object, **__: object) -> None:
            nonlocal done
            done += count
            self.doing = f"{title}: {done:,} of {total:,}"

        return step

    @property
    def queries(self) -> Mapping[str, str]:
        """Those of the split that are judged: id -> text."""
        if self.collection is None:
            return {}
        return {query_id: self.collection.queries[query_id] for query_id in self.qrels}

    @property
    def qrels(self) -> Qrels:
        """Judgements of the split."""
        return {} if self.collection is None else self.collection.qrels[self.settings.split]

    def _answer(self, side: int, text: str, query_id: str | None, top: int) -> list[Hit]:
        """The best documents by one system."""
        return self.searchers[side].find(text, query_id, top)

    def _difference(self, metric: str) -> Difference:
        """The second system's mean minus the first one's, over the judged queries."""
        from bixse.evaluation.statistics import paired_bootstrap

        before, after = (own[metric] for own in self.per_query)
        return paired_bootstrap(after, before)

    def _check(self, side: int, prior: float | None) -> HeldOutCheck:
        """What `bixse calibrate` finds on the held-out pairs for a system with a relevance head.

        Raises:
            InputError: too few queries, or a half with pairs of one kind.
        """
        from bixse.calibration.calibrate_head import ScoredPairs, held_out_check

        searcher, pairs = self.searchers[side], self.held_out
        assert pairs is not None
        judged = (self.cosines[searcher.name], pairs.relevance, self.query_ids)
        return held_out_check(searcher.head, ScoredPairs(*judged, prior, seed=self.settings.seed))

    def measured(self, searcher: Searcher, head: RelevanceHead, probability: float) -> OperatingPoint | None:
        """Precision and recall of a threshold on the held-out pairs; None where there are none.

        Raises:
            InputError: too few pairs or queries, or pairs of one kind.
        """
        from bixse.calibration.calibrate_head import ScoredPairs, measure_threshold

        if self.held_out is None or searcher.name not in self.cosines:
            return None
        pairs, seed = self.held_out, self.settings.seed
        judged = (self.cosines[searcher.name], pairs.relevance, self.query_ids)
        return measure_threshold(head, ScoredPairs(*judged, seed=seed), probability)
