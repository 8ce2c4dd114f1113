"""Rank candidates by a judge's expected grades (a zero-shot ranker), and score the ranking."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import Pair
from bixse.data.run import open_run
from bixse.data.trec import ranked, read_run, write_run
from bixse.errors import IncompleteError, InputError
from bixse.evaluation.metrics import PRIMARY_METRIC, PerQuery, evaluate_run, mean
from bixse.evaluation.statistics import paired_bootstrap
from bixse.evaluation.systems import Bm25System
from bixse.evaluation.tasks import Task, collection_task
from bixse.files.files import file_hash, write_atomically
from bixse.judging.grade import grade
from bixse.judging.grade_settings import BM25, JUDGED, GradeSettings, RankSettings
from bixse.judging.judge import Judge, stored_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.relevance import Ranking
    from bixse.results import Difference

GRADES = "grades"
"""Folder of the grading in the output folder."""


@dataclass(frozen=True)
class JudgeRanking:
    """The metrics of a judge's ranking."""

    metrics: dict[str, float]
    """Metric -> mean over the queries."""
    candidate_metrics: dict[str, float]
    """Metric -> mean for the order of the candidates; empty if they have no order."""
    difference: Difference | None
    """nDCG@10 of the judge's order minus the candidates', over queries; None without an order or a second query."""
    per_query: PerQuery
    run: Ranking
    summary: Mapping[str, Any]
    """Summary of the grading, see `bixse.judging.grade.GradeResult`."""
    warnings: list[str]

    @property
    def complete(self) -> bool:
        """Return True if every candidate has a grade."""
        return bool(self.summary["statuses"].get("graded", 0) == self.summary["pairs"])


def rank(judge: Judge, settings: RankSettings, out: str | Path, **asking: Any) -> JudgeRanking:
    """Grade the candidates of every judged query, score the order of the expected grades, and write both to `out`."""
    # In the BiXSE paper a judge of 32B parameters, used in this way, is the row to reach for encoders.
    # `asking` is for `grade`: prices, budget, progress, strict.
    target = Path(out)
    candidates, depth, min_relevant_grade = settings.candidates, settings.depth, settings.min_relevant_grade
    task = collection_task(settings.collection, settings.split, min_relevant_grade=min_relevant_grade)
    (asked,) = task.query_sets
    given = _candidates(candidates, task, depth)
    texts = _texts(candidates, task, given)
    inputs, paths = dict(task.inputs), ["collection"]
    if candidates not in (BM25, JUDGED):
        inputs["candidates"] = file_hash(Path(candidates))
        paths.append("candidates")
    graded_by = GradeSettings(rubric=settings.rubric, document_characters=settings.document_characters)
    ranked_by = settings.model_dump(include={"collection", "split", "candidates", "depth", "min_relevant_grade"})
    config = {"judge": stored_identity(judge.identity), **graded_by.config(), **ranked_by}
    record = open_run(target, "grade rank", config, inputs, paths)
    record.save("running")
    pairs = [
        Pair(query_id, asked.queries[query_id], document_id, texts[document_id])
        for query_id, found in given.items()
        for document_id in ranked(found)[:depth]
    ]
    result = grade(pairs, judge, target / GRADES, graded_by, **asking)
    if result.summary["not_asked"]:  # a budget ended before the last candidate
        record.save("interrupted")
        raise IncompleteError(
            f"{target}: got {result.summary['not_asked']} of {len(pairs)} candidates not graded ({result.stopped}); "
            "expected all; fix: the same command with a higher limit goes on"
        )
    relevance = {(j.pair.query_id, j.pair.document_id): j.relevance for j in result.judgements if j.repeat == 0}
    run = {query_id: _reordered(query_id, found, depth, relevance) for query_id, found in given.items()}
    per_query = evaluate_run(asked.qrels, run, min_relevant_grade=min_relevant_grade)
    before = evaluate_run(asked.qrels, given, min_relevant_grade=min_relevant_grade) if candidates != JUDGED else {}
    values = per_query[PRIMARY_METRIC]
    difference = paired_bootstrap(values, before[PRIMARY_METRIC]) if before and len(values) > 1 else None
    write_run(target / "run.trec", run, tag="-".join(judge.name.split()) or "judge")
    write_atomically(target / "per_query.json", json.dumps(per_query, indent=1) + "\n")
    warnings = _warnings(len(pairs), result.summary, given, depth, relevance)
    ranking = JudgeRanking(
        mean(per_query), mean(before) if before else {}, difference, per_query, run, result.summary, warnings
    )
    record.results = {"metrics": ranking.metrics, "candidate_metrics": ranking.candidate_metrics}
    record.save("finished")
    return ranking


def _candidates(candidates: str, task: Task, depth: int) -> Ranking:
    (asked,) = task.query_sets
    if candidates == BM25:
        return Bm25System().search(task, depth)[asked.name]
    if candidates == JUDGED:
        return {query_id: dict.fromkeys(judged, 0.0) for query_id, judged in asked.qrels.items()}
    found = read_run(candidates)
    if not set(found) & set(asked.qrels):
        raise InputError(
            f"{candidates}: got no query of the split; expected a run over this collection; fix: name the run of this "
            "collection"
        )
    return {query_id: found.get(query_id, {}) for query_id in asked.qrels}


def _texts(candidates: str, task: Task, given: Ranking) -> dict[str, str]:
    wanted = {document for answers in given.values() for document in answers}
    texts = {name: text for name, text in task.documents() if name in wanted}
    unknown = sorted(wanted - set(texts))
    if unknown:
        raise InputError(
            f"{candidates}: got documents that the corpus lacks, such as {unknown[0]!r}; expected a run over this "
            "collection; fix: name the run of this collection"
        )
    return texts


def _warnings(
    asked: int,
    summary: Mapping[str, Any],
    given: Ranking,
    depth: int,
    relevance: Mapping[tuple[str, str], float | None],
) -> list[str]:
    found = []
    if unusable := asked - summary["statuses"].get("graded", 0):
        found.append(f"{unusable} of {asked} candidates have no grade and stand last")
    grades = [
        [grade for name in ranked(answers)[:depth] if (grade := relevance.get((query_id, name))) is not None]
        for query_id, answers in given.items()
    ]
    several = [some for some in grades if len(some) > 1]
    tied = sum(max(some) == min(some) for some in several)
    if tied:
        most = "the judge puts hardly anything in order: " if 2 * tied > len(several) else ""
        found.append(
            f"{most}for {tied} of {len(several)} queries all candidates have the same grade and keep the order they "
            "came in; fix: a mode that reads probabilities, a finer rubric or another model"
        )
    return found


def _reordered(
    query_id: str, found: Mapping[str, float], depth: int, relevance: Mapping[tuple[str, str], float | None]
) -> dict[str, float]:
    """Return scores in the order: graded candidates, candidates without a grade, candidates beyond the depth."""
    # equal grades, and candidates without a grade, keep the order of the candidates
    order = ranked(found)

    def place(position: int) -> tuple[bool, float, int]:
        value = relevance.get((query_id, order[position]))
        return value is None, -(value or 0.0), position

    places = sorted(range(min(depth, len(order))), key=place) + list(range(depth, len(order)))
    return {order[position]: float(len(places) - rank) for rank, position in enumerate(places)}
