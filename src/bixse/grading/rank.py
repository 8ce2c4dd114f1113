"""A judge as a zero-shot ranker: candidates put in the order of its expected grades, and scored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection_files import files_of_split, load_collection
from bixse.data.graded_pairs import Pair
from bixse.data.io.files import file_hash, write_atomically
from bixse.data.run_record import open_run
from bixse.data.trec import ranked, read_run, write_run
from bixse.errors import IncompleteError, InputError
from bixse.evaluation.baseline import METRICS, search_bm25
from bixse.evaluation.metrics import evaluate_run, mean
from bixse.evaluation.significance import paired_bootstrap
from bixse.grading.grade import grade
from bixse.grading.judge import stored_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bixse.data.collection import Collection
    from bixse.evaluation.metrics import PerQuery
    from bixse.grading.ask import Budget
    from bixse.grading.cost import Prices
    from bixse.grading.grade import GradeSettings
    from bixse.grading.judge import Judge
    from bixse.progress import Step
    from bixse.relevance import Qrels, Run
    from bixse.results import Difference

BM25, JUDGED = "bm25", "judged"
"""Words for candidates: the documents BM25 finds, or those that have a judgement."""
GRADES = "grades"
"""Folder of the grading inside the output folder."""


@dataclass(frozen=True)
class JudgeRanking:
    """What the judge's order reached."""

    metrics: dict[str, float]
    """Metric -> mean over the queries, for the judge's order."""
    candidate_metrics: dict[str, float]
    """The same for the order the candidates came in; empty for candidates without one."""
    difference: Difference | None
    """nDCG@10 of the judge's order minus the candidates', over queries; None without an order or a second query."""
    verdict: str | None
    """"better", "no difference" or "worse" than the order the candidates came in."""
    per_query: PerQuery
    """Metric -> query id -> value, for the judge's order."""
    run: Run
    """The judge's order as a run."""
    summary: Mapping[str, Any]
    """Of the grading, see `bixse.grading.grade.GradeResult`."""
    warnings: list[str] = field(default_factory=list)
    """What the user should know."""

    @property
    def complete(self) -> bool:
        """Every candidate has a grade."""
        return bool(self.summary["statuses"].get("graded", 0) == self.summary["pairs"])


def rank(
    judge: Judge,
    collection: str | Path,
    split: str,
    out: str | Path,
    settings: GradeSettings,
    candidates: str | Path = BM25,
    depth: int = 100,
    relevance_level: float = 1.0,
    prices: Prices | None = None,
    budget: Budget | None = None,
    progress: Callable[[str, int], Step] | None = None,
    strict: bool = False,
) -> JudgeRanking:
    """Let a judge grade the candidates of every judged query, and score the order of its expected grades.

    Equal grades, and candidates whose answer has no grade, keep the order of the candidates, those without a grade
    after all others; documents beyond `depth` come last. In the BiXSE paper a judge of 32B parameters used in this way
    is the row to reach for encoders.

    Args:
        judge: see `bixse.grading.judge`; not closed here.
        collection: folder in the BEIR layout.
        split: qrels file to score against; its queries are ranked.
        out: folder for run.trec, per_query.json, run.json and the folder `grades`.
        settings: rubric.
        candidates: "bm25", "judged" (the documents that have a judgement, as where a pool is ranked) or a TREC run.
        depth: candidates per query.
        relevance_level: grade from which a document counts as relevant for recall and MRR.
        prices: see `grade`.
        budget: see `grade`; a ranking that a limit cut short is not scored.
        progress: see `grade`.
        strict: see `grade`.

    Raises:
        InputError: collection, split or candidates cannot be used.
        IncompleteError: the budget ended before the last candidate.
    """
    if depth < 1:
        raise InputError(f"--depth: got {depth}; expected 1 or more; fix: use 100")
    folder, target = Path(collection), Path(out)
    data = load_collection(folder, [split])
    qrels = data.qrels[split]
    given = _candidates(candidates, data, qrels, depth)
    inputs = {name: file_hash(folder / name) for name in files_of_split(split)}
    paths = ["collection"]
    if candidates not in (BM25, JUDGED):
        inputs["candidates"] = file_hash(Path(candidates))
        paths.append("candidates")
    config = {
        "judge": stored_identity(judge.identity),
        **settings.config(),
        "collection": folder,
        "split": split,
        "candidates": str(candidates),
        "depth": depth,
        "relevance_level": relevance_level,
    }
    record = open_run(target, "grade rank", config, inputs, paths)
    record.save("running")
    pairs = [
        Pair(query_id, data.queries[query_id], document_id, data.corpus[document_id].content)
        for query_id, found in given.items()
        for document_id in ranked(found)[:depth]
    ]
    result = grade(pairs, judge, target / GRADES, settings, None, prices, budget, progress=progress, strict=strict)
    if result.summary["not_asked"]:
        record.save("interrupted")
        raise IncompleteError(
            f"{target}: got {result.summary['not_asked']} of {len(pairs)} candidates not graded ({result.stopped}); "
            "expected all; fix: the same command with a higher limit goes on"
        )
    relevance = {(j.pair.query_id, j.pair.document_id): j.relevance for j in result.judgements if j.repeat == 0}
    run = {query_id: _reordered(query_id, found, depth, relevance) for query_id, found in given.items()}
    per_query = evaluate_run(qrels, run, METRICS, relevance_level)
    before = evaluate_run(qrels, given, METRICS, relevance_level) if candidates != JUDGED else {}
    ndcg = METRICS[0]
    difference = paired_bootstrap(per_query[ndcg], before[ndcg]) if before and len(per_query[ndcg]) > 1 else None
    write_run(target / "run.trec", run, tag="-".join(judge.name.split()) or "judge")
    write_atomically(target / "per_query.json", json.dumps(per_query, indent=1) + "\n")
    ranking = JudgeRanking(
        metrics=mean(per_query),
        candidate_metrics=mean(before) if before else {},
        difference=difference,
        verdict=None if difference is None else difference.verdict,
        per_query=per_query,
        run=run,
        summary=result.summary,
        warnings=_warnings(len(pairs), result.summary, given, depth, relevance),
    )
    record.results = {"metrics": ranking.metrics, "candidate_metrics": ranking.candidate_metrics}
    record.save("finished")
    return ranking


def _candidates(candidates: str | Path, data: Collection, qrels: Qrels, depth: int) -> Run:
    """The candidates of every judged query, as a run."""
    if candidates == BM25:
        return search_bm25(data, list(qrels), depth)
    if candidates == JUDGED:
        return {query_id: dict.fromkeys(judged, 0.0) for query_id, judged in qrels.items()}
    found = read_run(candidates)
    unknown = sorted({document for answers in found.values() for document in answers} - set(data.corpus))
    if unknown or not set(found) & set(qrels):
        what = f"documents that the corpus lacks, such as {unknown[0]!r}" if unknown else "no query of the split"
        raise InputError(
            f"{candidates}: got {what}; expected a run over this collection; fix: name the run of this collection"
        )
    return {query_id: found.get(query_id, {}) for query_id in qrels}


def _warnings(
    asked: int,
    summary: Mapping[str, Any],
    given: Run,
    depth: int,
    relevance: Mapping[tuple[str, str], float | None],
) -> list[str]:
    """Candidates without a grade, and queries whose grades put nothing in order."""
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
    """Scores that put graded candidates first by relevance, then those without a grade, then those beyond the depth."""
    order = ranked(found)

    def place(position: int) -> tuple[bool, float, int]:
        value = relevance.get((query_id, order[position]))
        return value is None, -(value or 0.0), position

    places = sorted(range(min(depth, len(order))), key=place) + list(range(depth, len(order)))
    return {order[position]: float(len(places) - rank) for rank, position in enumerate(places)}
