"""Study `rankers`: a judge as zero-shot ranker against encoders, all reordering the same candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.errors import IncompleteError, InputError
from bixse.studies.engine.cells import HEADLINE, Cell, CellResult, cell_config, drop_unbegun, untrained
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import above

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.data.collection import Collection
    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.relevance import Run
    from bixse.studies.engine.inputs import StudyInputs
    from bixse.studies.engine.study import Values
    from bixse.studies.engine.study_config import StudyConfig
    from bixse.studies.findings.contrasts import Contrast

BM25, UNTRAINED = "bm25", "untrained"
"""Systems that are not trained."""


def _cells(config: StudyConfig, values: Values, pairs: GradedPairs | None) -> list[Cell]:
    depth = {"depth": values["depth"]}
    found = [Cell({"system": name}, kind="rank", pairs={**depth, "system": name}) for name in (BM25, UNTRAINED)]
    found += [
        Cell({"system": loss}, kind="rank", train=of_loss(config, loss), pairs={**depth, "system": loss})
        for loss in values["losses"]
    ]
    for judge in values["judges"]:
        settings = {**depth, "system": "judge", "judge": judge, "rubric": values["rubric"]}
        found.append(Cell({"system": _short(judge)}, kind="rank", pairs=settings))
    return found


def _contrasts(values: Values) -> list[Contrast]:
    judges = [_short(judge) for judge in values["judges"]]
    pairs = [(judge, name) for judge in judges for name in (BM25, UNTRAINED, *values["losses"])]
    pairs += [(loss, UNTRAINED) for loss in values["losses"]]
    return [above(f"{first} above {second}", {"system": first}, {"system": second}) for first, second in pairs]


def has_seeds(cell: Cell) -> bool:
    """Whether a cell depends on a training seed."""
    return cell.kind == "train" or bool(cell.train)


def rank_cell(cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs, own: Path) -> CellResult:
    """Score one system's order of the candidates that BM25 finds, over all test collections.

    Args:
        cell: its `pairs` hold `system` and `depth`, and for a judge `judge` and `rubric`.
        settings: settings of training that all cells share.
        inputs: where everything is.
        own: the cell's folder.
    """
    from bixse.data.collection_files import load_collection
    from bixse.evaluation.baseline import METRICS, search_bm25
    from bixse.evaluation.metrics import evaluate_run, mean

    depth, system = cell.pairs["depth"], cell.pairs["system"]
    if system == "judge" and inputs.exclude_self:
        raise InputError(
            "rankers: got a judge and `exclude_self`; expected one of them, since a judge ranks all that BM25 finds; "
            "fix: leave the judge out, or take a collection whose queries are no documents"
        )
    model = _model(cell, settings, inputs, own) if system not in (BM25, "judge") else None
    means: list[dict[str, float]] = []
    per_query: dict[str, float] = {}
    for name, folder in inputs.tests.items():
        collection = load_collection(folder, ["test"])
        qrels = collection.qrels["test"]
        if system == "judge":
            run: Run = _judged(cell, folder, inputs, own / name)
        else:
            run = search_bm25(collection, list(qrels), depth, exclude_self=inputs.exclude_self)
            if model is not None:
                run = _reranked(model, collection, run)
        figures = evaluate_run(qrels, run, METRICS, inputs.relevance_level)
        means.append(mean(figures))
        per_query |= {f"{name}/{query}": value for query, value in figures[HEADLINE].items()}
    metrics = {metric: sum(found[metric] for found in means) / len(means) for metric in METRICS}
    return CellResult(cell.labels, cell.seed, "finished", metrics=metrics, per_query=per_query)


def _model(cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs, own: Path) -> RelevanceModel:
    if cell.pairs["system"] == UNTRAINED:
        return untrained(inputs, settings)
    from bixse.encoders.loading.build import build_encoder
    from bixse.training.recipe import MODEL_FOLDER, train

    drop_unbegun(own / "run")
    train(cell_config(cell, settings, inputs, inputs.pairs), own / "run", progress=False)
    return build_encoder(own / "run" / MODEL_FOLDER)


def _reranked(model: RelevanceModel, collection: Collection, candidates: Run) -> Run:
    """The candidates with an encoder's cosines as scores; only their texts are encoded."""
    from bixse.data.collection import Collection as Table
    from bixse.evaluation.dense_search import encode_collection

    wanted = {document for found in candidates.values() for document in found}
    corpus = {name: document for name, document in collection.corpus.items() if name in wanted}
    pairs = [(query, document) for query, found in candidates.items() for document in found]
    encoded = encode_collection(model, Table(collection.name, corpus, collection.queries), list(candidates))
    run: dict[str, dict[str, float]] = {query: {} for query in candidates}
    for (query, document), score in zip(pairs, encoded.cosines(pairs).tolist(), strict=True):
        run[query][document] = score
    return run


def _judged(cell: Cell, folder: Path, inputs: StudyInputs, out: Path) -> Run:
    from bixse.grading.grade import GradeSettings
    from bixse.grading.open_judge import open_judge, reads_rubric
    from bixse.grading.rank import rank
    from bixse.grading.rubrics import load_rubric

    names = [cell.pairs["judge"]]
    rubric = load_rubric(cell.pairs["rubric"])
    judge = open_judge(names, rubric)
    try:
        settings = GradeSettings(rubric if reads_rubric(names) else None)
        found = rank(
            judge, folder, "test", out, settings, depth=cell.pairs["depth"], relevance_level=inputs.relevance_level
        )
    finally:
        judge.close()
    if found.warnings:
        raise IncompleteError(
            f"{cell.labels['system']}: got {found.warnings[0]}; expected a grade for each candidate; fix: give the "
            "same command again, or another judge"
        )
    return found.run


def _short(judge: str) -> str:
    """A judge's name in tables: the last part of its path."""
    return f"judge {judge.rstrip('/').rpartition('/')[2] or judge}"


STUDY = Study(
    name="rankers",
    title="A judge as ranker against encoders",
    paper="Table of rankers: the 32B judge used directly reaches 65.06 (0-3) and 62.86 (0-1) nDCG@10, the best 3B "
    "encoder 62.06",
    defaults={"judges": [], "rubric": "trec-dl-0-3", "losses": ["bixse", "infonce"], "depth": 20},
    cells=_cells,
    contrasts=_contrasts,
    notes=("Every system reorders the same candidates, the first that BM25 finds.",),
)
"""The paper's rows of judges as zero-shot rankers."""
