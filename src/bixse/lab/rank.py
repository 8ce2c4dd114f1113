"""A judge as a system that puts candidates in the order of its expected grades (a zero-shot ranker)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import Pair
from bixse.data.joined import Unjoined, check_joined
from bixse.errors import IncompleteError
from bixse.evaluation.open_system import RunFileSystem
from bixse.evaluation.systems import Bm25System, System
from bixse.files.files import read_text
from bixse.files.parquet import read_table
from bixse.files.run_folder import RUN_FILE
from bixse.judging.grade import JUDGEMENTS_NAME, grade_into
from bixse.judging.judge import AnyJudge, stored_identity
from bixse.judging.judgements import GradeSummary
from bixse.judging.open_judge import BM25, JUDGED, GradeConfig, RankConfig
from bixse.relevance import ranked

if TYPE_CHECKING:
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.search.tasks import Task

GRADES = "grades"
"""Folder of the grading in the output folder."""


class JudgeSystem(System):
    """A judge that ranks the candidates of each query by their expected grades, and keeps the grades in a folder.

    In the BiXSE paper a judge of 32B parameters, used in this way, is the row to reach for encoders.
    """

    def __init__(self, config: RankConfig, judge: AnyJudge, out: Path, progress: ProgressBars | None = None) -> None:
        self.label, self.config, self.judge, self.progress = judge.name, config, judge, progress
        self.folder = out / GRADES
        self._grading = GradeConfig(judge=config.judge, rubric=config.rubric, prices=config.prices)
        self._file = None if config.candidates in (BM25, JUDGED) else RunFileSystem(config.candidates)

    @property
    def settings(self) -> dict[str, Any]:
        candidates = self.config.candidates if self._file is None else "a run"
        asked = {"judge": stored_identity(self.judge.identity), **self._grading.recorded()}
        return {"model": self.label, **asked, "candidates": candidates, "depth": self.config.depth}

    @property
    def inputs(self) -> dict[str, str]:
        return {} if self._file is None else self._file.inputs

    @property
    def precision(self) -> str | None:
        return self.judge.identity.get("dtype")

    @property
    def complete(self) -> bool:
        return not self.summary.statuses.get("failed")

    @property
    def summary(self) -> GradeSummary:
        """The summary of the last grading."""
        return GradeSummary(**json.loads(read_text(self.folder / RUN_FILE))["results"]["summary"])

    def answers(
        self, task: Task, depth: int, partial: Path | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[str, Ranking]]:
        (asked,) = task.query_sets
        if self.config.candidates == JUDGED:
            candidates: Ranking = {query_id: dict.fromkeys(judged, 0.0) for query_id, judged in asked.qrels.items()}
        elif self._file is None:
            candidates = Bm25System().search(task, self.config.depth)[asked.name]
        else:
            candidates = self._file.search(task, max(depth, self.config.depth))[asked.name]
        wanted = {document for answers in candidates.values() for document in answers}
        texts = {name: text for name, text in task.documents() if name in wanted}
        lost = Unjoined.of("documents of the run that the corpus lacks", sorted(wanted), texts)
        check_joined(self.config.candidates, [lost], "name the run of this collection", every=True)
        pairs = [
            Pair(query_id, asked.queries[query_id], document_id, texts[document_id])
            for query_id, answers in candidates.items()
            for document_id in ranked(answers)[: self.config.depth]
        ]
        summary = grade_into(self._grading, self.judge, self.folder, pairs, self.progress).summary
        if summary.not_asked:  # a budget ended before the last candidate
            raise IncompleteError(
                f"{self.folder}: got {summary.not_asked} of {len(pairs)} candidates not graded ({summary.stopped}); "
                "expected all; fix: the same command with a higher limit continues"
            )
        relevance = {(row["query_id"], row["document_id"]): row["relevance"] for row in self._rows()}
        yield asked.name, {query: self._reordered(query, answers, relevance) for query, answers in candidates.items()}

    def check_answers(self, task: Task, refuse: bool) -> list[str]:
        return [] if self._file is None else self._file.check_answers(task, refuse=False)  # `answers` refuses documents

    def warnings(self) -> list[str]:
        """Return doubts about the order: candidates without a grade, and queries whose grades are all the same."""
        rows, grades, warnings = self._rows(), defaultdict[str, list[float]](list), []
        for row in rows:
            if row["relevance"] is not None:
                grades[row["query_id"]].append(row["relevance"])
        if unusable := sum(row["relevance"] is None for row in rows):
            warnings.append(f"{unusable} of {len(rows)} candidates have no grade and are ranked last")
        several = [some for some in grades.values() if len(some) > 1]
        if tied := sum(max(some) == min(some) for some in several):
            most = "the judge gives most queries no order: " if 2 * tied > len(several) else ""
            warnings.append(
                f"{most}for {tied} of {len(several)} queries all candidates have the same grade and keep their first "
                "order; fix: a mode that reads probabilities, a finer rubric or another model"
            )
        return warnings

    def _rows(self) -> list[dict[str, Any]]:
        columns = ["query_id", "document_id", "relevance"]
        rows: list[dict[str, Any]] = read_table(self.folder / JUDGEMENTS_NAME, columns).to_pylist()
        return rows

    def _reordered(
        self, query_id: str, answers: Mapping[str, float], relevance: Mapping[tuple[str, str], float | None]
    ) -> dict[str, float]:
        """Return scores in the order: graded candidates, candidates without a grade, candidates beyond the depth."""
        order = ranked(answers)

        def without_grade_last(name: str) -> tuple[bool, float]:
            value = relevance.get((query_id, name))
            return value is None, -(value or 0.0)

        # the sort is stable: equal grades, and candidates without a grade, keep the order of the candidates
        names = sorted(order[: self.config.depth], key=without_grade_last) + order[self.config.depth :]
        return {name: float(len(names) - position) for position, name in enumerate(names)}
