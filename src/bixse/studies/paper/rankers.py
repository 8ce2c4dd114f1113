"""Study `rankers`: a judge as zero-shot ranker against encoders, all reordering the same candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.collection import Collection
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import IncompleteError, InputError
from bixse.evaluation.baseline import search_bm25
from bixse.evaluation.dense_search import encode_collection
from bixse.experiments.arms import Arm
from bixse.grading.grade import GradeSettings
from bixse.grading.open_judge import open_judge, reads_rubric
from bixse.grading.rank import rank
from bixse.grading.rubrics import load_rubric
from bixse.studies.engine.measures import scored, trained, untrained
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import above

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.experiments.arms import Measured, Run
    from bixse.relevance import Run as RankedRun
    from bixse.studies.engine.study import Choices
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.engine.study_inputs import StudyInputs
    from bixse.studies.findings.contrasts import Contrast

BM25, UNTRAINED = "bm25", "untrained"
"""Systems that are not trained."""


def _arms(config: StudyConfig, values: Choices, pairs: GradedPairs | None) -> list[Arm]:
    depth = {"depth": values["depth"]}
    found = [Arm({"system": name}, options=depth) for name in (BM25, UNTRAINED)]
    found += [Arm({"system": loss}, train=of_loss(config, loss), options=depth) for loss in values["losses"]]
    for judge in values["judges"]:
        options = {**depth, "judge": judge, "rubric": values["rubric"]}
        found.append(Arm({"system": _short(judge)}, options=options, measure=rank_by_judge))
    return found


def _contrasts(values: Choices) -> list[Contrast]:
    judges = [_short(judge) for judge in values["judges"]]
    pairs = [(judge, name) for judge in judges for name in (BM25, UNTRAINED, *values["losses"])]
    pairs += [(loss, UNTRAINED) for loss in values["losses"]]
    return [above(f"{first} above {second}", {"system": first}, {"system": second}) for first, second in pairs]


def rank_by_encoder(run: Run, inputs: StudyInputs, own: Path) -> Measured:
    """Score the order in which BM25, the untrained encoder or one trained here puts the candidates of BM25."""
    model: RelevanceModel | None = None
    if run.arm.trained:
        model = trained(run, inputs, own, inputs.pairs)
    elif run.arm.labels["system"] == UNTRAINED:
        model = untrained(run, inputs)

    def search(collection: Collection) -> RankedRun:
        queries = list(collection.qrels["test"])
        candidates = search_bm25(collection, queries, run.arm.options["depth"], exclude_self=inputs.exclude_self)
        return candidates if model is None else _reranked(model, collection, candidates)

    return scored(inputs, search, resolve_precision())


def rank_by_judge(run: Run, inputs: StudyInputs, own: Path) -> Measured:
    """Score the order in which a judge puts the candidates that BM25 finds.

    Raises:
        InputError: the judge cannot be used, or it would have to leave out the query itself.
        IncompleteError: the judge did not grade every candidate.
    """
    if inputs.exclude_self:
        raise InputError(
            "rankers: got a judge and `exclude_self`; expected one of them, since a judge ranks all that BM25 finds; "
            "fix: leave the judge out, or take a collection whose queries are no documents"
        )
    options, names = run.arm.options, [run.arm.options["judge"]]
    rubric = load_rubric(options["rubric"])
    judge = open_judge(names, rubric)
    settings = GradeSettings(rubric if reads_rubric(names) else None)
    level = inputs.relevance_level

    def search(collection: Collection) -> RankedRun:
        folder = inputs.tests[collection.name]
        found = rank(judge, folder, "test", own / folder.name, settings, depth=options["depth"], relevance_level=level)
        if found.warnings:
            raise IncompleteError(
                f"{run.arm.label}: got {found.warnings[0]}; expected a grade for each candidate; fix: give the "
                "same command again, or another judge"
            )
        return found.run

    try:
        return scored(inputs, search, resolve_precision())
    finally:
        judge.close()


def _reranked(model: RelevanceModel, collection: Collection, candidates: RankedRun) -> RankedRun:
    """The candidates with an encoder's cosines as scores; only their texts are encoded."""
    wanted = {document for found in candidates.values() for document in found}
    corpus = {name: document for name, document in collection.corpus.items() if name in wanted}
    pairs = [(query, document) for query, found in candidates.items() for document in found]
    encoded = encode_collection(model, Collection(collection.name, corpus, collection.queries), list(candidates))
    run: dict[str, dict[str, float]] = {query: {} for query in candidates}
    for (query, document), score in zip(pairs, encoded.cosines(pairs).tolist(), strict=True):
        run[query][document] = score
    return run


def _short(judge: str) -> str:
    """A judge's name in tables: the last part of its path."""
    return f"judge {judge.rstrip('/').rpartition('/')[2] or judge}"


RANKERS = Study(
    name="rankers",
    title="A judge as ranker against encoders",
    paper="Table of rankers: the 32B judge used directly reaches 65.06 (0-3) and 62.86 (0-1) nDCG@10, the best 3B "
    "encoder 62.06",
    defaults={"judges": [], "rubric": "trec-dl-0-3", "losses": ["bixse", "infonce"], "depth": 20},
    arms=_arms,
    contrasts=_contrasts,
    measure=rank_by_encoder,
    notes=("Every system reorders the same candidates, the first that BM25 finds.",),
)
"""The paper's rows of judges as zero-shot rankers."""
