"""Study `rankers`: a judge as zero-shot ranker against encoders. All reorder the same candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bixse.errors import IncompleteError, InputError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.systems import Bm25System, EncoderSystem
from bixse.judging.open_judge import JudgeConfig, RankConfig
from bixse.judging.rank import JudgeSystem
from bixse.lab.experiments import Arm
from bixse.lab.studies.measures import measured, test_task, trained, untrained
from bixse.lab.studies.study import Study, above, of_loss

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.data.graded_pairs import GradedPairs
    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task
    from bixse.lab.experiments import ArmRun, Measured
    from bixse.lab.lab_config import StudyConfig
    from bixse.lab.studies.study import Choices, Contrast
    from bixse.lab.studies.study_inputs import StudyInputs

BM25, UNTRAINED = "bm25", "untrained"
"""The systems without training."""


def _arms(config: StudyConfig, values: Choices, pairs: GradedPairs | None) -> list[Arm]:
    depth = {"depth": values["depth"]}
    arms = [Arm({"system": name}, options=depth) for name in (BM25, UNTRAINED)]
    arms += [Arm({"system": loss}, train=of_loss(config, loss), options=depth) for loss in values["losses"]]
    for judge in values["judges"]:
        options = {**depth, "judge": judge, "rubric": values["rubric"]}
        arms.append(Arm({"system": _short(judge)}, options=options, measure=rank_by_judge))
    return arms


def _contrasts(values: Choices) -> list[Contrast]:
    judges = [_short(judge) for judge in values["judges"]]
    pairs = [(judge, name) for judge in judges for name in (BM25, UNTRAINED, *values["losses"])]
    pairs += [(loss, UNTRAINED) for loss in values["losses"]]
    return [above(f"{first} above {second}", {"system": first}, {"system": second}) for first, second in pairs]


def rank_by_encoder(run: ArmRun, inputs: StudyInputs, run_folder: Path) -> Measured:
    """Score BM25, the untrained encoder, or an encoder trained here, as ranker of BM25's candidates."""
    ranker: System = Bm25System()
    if run.arm.trained:
        ranker = EncoderSystem(trained(run, inputs, run_folder, inputs.pairs), cache="none")
    elif run.arm.labels["system"] == UNTRAINED:
        ranker = EncoderSystem(untrained(run, inputs), cache="none")
    depth = run.arm.options["depth"]
    evaluations = {
        name: evaluate(ranker, _of_candidates(inputs, folder, depth)) for name, folder in inputs.tests.items()
    }
    return measured(evaluations)


def rank_by_judge(run: ArmRun, inputs: StudyInputs, run_folder: Path) -> Measured:
    """Score a judge as ranker of BM25's candidates. The judge must grade every candidate."""
    if inputs.exclude_self:
        raise InputError(
            "rankers: got a judge and `exclude_self`; expected one of them, since a judge ranks all that BM25 finds; "
            "fix: leave the judge out, or take a collection whose queries are no documents"
        )
    options = run.arm.options
    settings = {"judge": {"names": options["judge"]}, "rubric": options["rubric"]}
    judge = JudgeConfig.model_validate(settings).open()
    evaluations = {}
    try:
        for name, folder in inputs.tests.items():
            of = {"collection": folder, "depth": options["depth"], "min_relevant_grade": inputs.min_relevant_grade}
            system = JudgeSystem(RankConfig.model_validate(settings | of), judge, run_folder / name)
            evaluations[name] = evaluate(system, test_task(inputs, folder), run_folder / name)
            if warnings := system.warnings():
                raise IncompleteError(
                    f"{run.arm.label}: got {warnings[0]}; expected a grade for each candidate; fix: give "
                    "the same command again, or another judge"
                )
    finally:
        judge.close()
    return measured(evaluations)


def _of_candidates(inputs: StudyInputs, folder: Path, depth: int) -> Task:
    """Return the test queries with the first `depth` documents of BM25 as candidates."""
    task = test_task(inputs, folder)
    (queries,) = task.query_sets
    candidates = {query: list(answers) for query, answers in Bm25System().search(task, depth)[queries.name].items()}
    return replace(task, query_sets=(replace(queries, candidates=candidates),))


def _short(judge: str) -> str:
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
