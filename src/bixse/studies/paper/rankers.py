"""Study `rankers`: a judge as zero-shot ranker against encoders, all reordering the same candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bixse.errors import IncompleteError, InputError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.systems import Bm25System, EncoderSystem
from bixse.studies.engine.cells import Cell, CellResult, cell_config, drop_unbegun, measured, test_task, untrained
from bixse.studies.engine.study import Study, of_loss
from bixse.studies.findings.contrasts import above

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task
    from bixse.grading.rank import JudgeRanking
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
    depth, system = cell.pairs["depth"], cell.pairs["system"]
    if system == "judge":
        if inputs.exclude_self:
            raise InputError(
                "rankers: got a judge and `exclude_self`; expected one of them, since a judge ranks all that BM25 "
                "finds; fix: leave the judge out, or take a collection whose queries are no documents"
            )
        return measured(
            cell, {name: _judged(cell, folder, inputs, own / name) for name, folder in inputs.tests.items()}
        )
    ranker: System = Bm25System()
    if system != BM25:
        ranker = EncoderSystem(_model(cell, settings, inputs, own), cache="none")
    found = {name: evaluate(ranker, _of_candidates(inputs, folder, depth)) for name, folder in inputs.tests.items()}
    return measured(cell, found)


def _of_candidates(inputs: StudyInputs, folder: Path, depth: int) -> Task:
    """The test queries with the first documents that BM25 finds as candidates."""
    task = test_task(inputs, folder)
    (queries,) = task.query_sets
    candidates = {query: list(answers) for query, answers in Bm25System().search(task, depth)[queries.name].items()}
    return replace(task, query_sets=(replace(queries, candidates=candidates),))


def _model(cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs, own: Path) -> RelevanceModel:
    if cell.pairs["system"] == UNTRAINED:
        return untrained(inputs, settings)
    from bixse.encoders.loading.build import build_encoder
    from bixse.training.recipe import MODEL_FOLDER, train

    drop_unbegun(own / "run")
    train(cell_config(cell, settings, inputs, inputs.pairs), own / "run", progress=False)
    return build_encoder(own / "run" / MODEL_FOLDER)


def _judged(cell: Cell, folder: Path, inputs: StudyInputs, out: Path) -> JudgeRanking:
    from bixse.grading.grade_settings import RankSettings
    from bixse.grading.open_judge import open_judge, reads_rubric
    from bixse.grading.rank import rank
    from bixse.grading.rubrics import load_rubric

    names = [cell.pairs["judge"]]
    rubric = load_rubric(cell.pairs["rubric"])
    judge = open_judge(names, rubric)
    try:
        settings = RankSettings(
            collection=folder,
            rubric=rubric if reads_rubric(names) else None,
            depth=cell.pairs["depth"],
            min_relevant_grade=inputs.min_relevant_grade,
        )
        found = rank(judge, settings, out)
    finally:
        judge.close()
    if found.warnings:
        raise IncompleteError(
            f"{cell.labels['system']}: got {found.warnings[0]}; expected a grade for each candidate; fix: give the "
            "same command again, or another judge"
        )
    return found


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
