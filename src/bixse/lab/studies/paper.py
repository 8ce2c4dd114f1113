"""The studies of the paper: their arms, claims and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.converting.transforms import transformed
from bixse.errors import IncompleteError, InputError, check_known
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.systems import Bm25System, EncoderSystem, System
from bixse.judging.open_judge import JudgeConfig, RankConfig
from bixse.lab.experiments import Arm, ArmLabels, ArmRun, Measured
from bixse.lab.lab_config import StudyConfig, merged
from bixse.lab.rank import JudgeSystem
from bixse.lab.studies.measures import measured, score_bm25, score_untrained, test_task, trained, untrained
from bixse.lab.studies.study import Choices, Contrast, Study, above, arms_by, bixse_above_others, of_loss
from bixse.training.config import TrainConfig

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.lab.studies.study_inputs import StudyInputs


KEEPS_GRADES = "bixse"
"""The loss that keeps grades in `cutoff`. The other losses take every remaining pair as a positive."""


def _losses_arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    arms = [Arm({"loss": loss}, train=of_loss(config, loss)) for loss in values["losses"]]
    return [*arms, Arm({"loss": "untrained"}, measure=score_untrained), Arm({"loss": "bm25"}, measure=score_bm25)]


def _losses_contrasts(values: Choices) -> list[Contrast]:
    others = {"untrained": "the untrained encoder"} | {loss: loss for loss in values["losses"] if loss != "bixse"}
    claims = [above(f"bixse above {name}", {"loss": "bixse"}, {"loss": other}) for other, name in others.items()]
    return claims if "bixse" in values["losses"] else []


def _noise_contrasts(values: Choices) -> list[Contrast]:
    """Compare the cost of noise, averaged over p, between each loss and BiXSE."""
    shares = [share for share in values["noise"] if share > 0]
    if "bixse" not in values["losses"] or 0 not in values["noise"] or not shares:
        return []
    claims = []
    for other in [loss for loss in values["losses"] if loss != "bixse"]:
        terms: list[tuple[ArmLabels, float]] = []
        for loss, sign in (("bixse", 1.0), (other, -1.0)):
            terms += [({"loss": loss, "noise": share}, sign / len(shares)) for share in shares]
            terms.append(({"loss": loss, "noise": 0}, -sign))
        claims.append(Contrast(f"noise costs bixse less than {other}, mean over p > 0", tuple(terms)))
        claims += bixse_above_others(["bixse", other], "noise", [max(shares)], "at p = {}")
    return claims


def _cutoff_arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    size = {}
    if pairs is not None:
        sizes = {cutoff: len(transformed(pairs, cutoff=cutoff)) for cutoff in values["cutoffs"]}
        size = {"size": min(sizes.values())}  # a higher cutoff must not lose by fewer pairs
        if not size["size"]:
            empty = min(cutoff for cutoff, count in sizes.items() if not count)
            raise InputError(
                f"cutoffs: got {empty}, which no training pair reaches (the highest has relevance "
                f"{float(pairs.relevance.max())}); expected values that some pairs reach; fix: lower it"
            )

    def settings(loss: str, cutoff: float) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"cutoff": cutoff, **size, **({} if loss == KEEPS_GRADES else {"binarise": cutoff})}

    return arms_by("cutoff", values["cutoffs"], config, values, settings)


def _cutoff_contrasts(values: Choices) -> list[Contrast]:
    losses, cutoffs = values["losses"], sorted(values["cutoffs"])
    if KEEPS_GRADES not in losses or len(cutoffs) < 2:
        return []
    low, high = cutoffs[0], cutoffs[-1]
    claims = []
    for other in [loss for loss in losses if loss != KEEPS_GRADES]:
        claims += bixse_above_others([KEEPS_GRADES, other], "cutoff", cutoffs, "at cutoff {}")
        ends = {"loss": other, "cutoff": high}, {"loss": other, "cutoff": low}
        claims.append(above(f"{other} needs a cutoff: {high} above {low}", *ends))
    ends = {"loss": KEEPS_GRADES, "cutoff": low}, {"loss": KEEPS_GRADES, "cutoff": high}
    return [*claims, above(f"bixse makes use of weak pairs: {low} above {high}", *ends)]


def _batch_size_contrasts(values: Choices) -> list[Contrast]:
    losses, sizes = values["losses"], sorted(values["batch_sizes"])
    low, high = sizes[0], sizes[-1]
    gains = [
        above(f"{loss} gains from batch {low} to {high}", *({"loss": loss, "batch_size": size} for size in (high, low)))
        for loss in losses
        if low < high
    ]
    return gains + bixse_above_others(losses, "batch_size", sizes, "at batch {}")


def _bias_rate_arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    arms = []
    for start, multiplier in itertools.product(values["starts"], values["multipliers"]):
        train = {"loss_options": {"bias": start}, "optimizer": {"bias_lr_multiplier": multiplier}}
        labels = {"start": start, "multiplier": multiplier}
        arms.append(Arm(labels, train=merged(of_loss(config, "bixse"), train)))
    return arms


def _bias_rate_contrasts(values: Choices) -> list[Contrast]:
    (slow, *faster), (first, *others) = sorted(values["multipliers"]), values["starts"]

    def arm(start: str, multiplier: float) -> ArmLabels:
        return {"start": start, "multiplier": multiplier}

    rates = [
        above(f"bias {fast} times as fast above {slow} times, start {start}", arm(start, fast), arm(start, slow))
        for start in values["starts"]
        for fast in faster
    ]
    starts = [
        above(f"start {first} above {other} at {rate} times", arm(first, rate), arm(other, rate))
        for other in others
        for rate in [slow, *faster]
    ]
    return rates + starts


def _hard_negatives_arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    if pairs is not None:
        sizes = sorted(len(group.documents) for group in pairs.groups())
        most, middle = max(values["hard_negatives"]), sizes[len(sizes) // 2]
        if middle < most + 1:
            raise InputError(
                f"hard_negatives: got {most}; expected at most {middle - 1}: half of the queries have no more graded "
                "documents; fix: lower it, or train on data with more of them"
            )

    def settings(_: str, negatives: int) -> tuple[dict[str, Any], dict[str, Any]]:
        batch_size = max(1, values["documents"] // (negatives + 1))  # as many documents per batch in every arm
        return {"optimizer": {"documents_per_query": negatives + 1, "global_batch_size": batch_size}}, {}

    return arms_by("hard_negatives", values["hard_negatives"], config, values, settings)


def _annotation_arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    labels = values["labels"] or (len(pairs.groups()) if pairs is not None else 0)

    def settings(loss: str, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
        base = TrainConfig.load(
            None, {**merged(config.train, of_loss(config, loss)), "pairs": "pairs.parquet"}
        ).optimizer
        passes = math.ceil(labels / values["labels_per_query"][0] / base.global_batch_size) * base.num_train_epochs
        optimizer = {"documents_per_query": None, "max_steps": max(1, base.max_steps or passes)}
        return {"optimizer": optimizer}, {"labels_per_query": count, "labels": labels}

    return arms_by("labels_per_query", values["labels_per_query"], config, values, settings)


def _annotation_contrasts(values: Choices) -> list[Contrast]:
    losses, counts = values["losses"], sorted(values["labels_per_query"])
    arms = [{"loss": "bixse", "labels_per_query": count} for count in counts]
    spread = [
        above(f"bixse: {counts[0]} per query above {count} for the same budget", arms[0], arm)
        for count, arm in zip(counts[1:], arms[1:], strict=True)
        if "bixse" in losses
    ]
    return bixse_above_others(losses, "labels_per_query", counts, "with {} labels per query") + spread


TRAINING_STUDIES = (
    Study(
        name="losses",
        title="Losses on the same rows",
        paper="Table 1 and the loss ablation: BiXSE is above InfoNCE, above its own ablations, and level with or above "
        "the pairwise and listwise losses",
        defaults={
            "losses": [
                "bixse", "bixse-without-bias", "bixse-binarised", "infonce", "infonce-masked", "soft-infonce",
                "margin-mse", "distill-kl", "pairwise-bce", "lambdaloss-v1", "lambdaloss-v2",
            ]
        },
        arms=_losses_arms,
        contrasts=_losses_contrasts,
    ),
    Study(
        name="noise",
        title="Swapped labels",
        paper="Fig. landmark, right: with swapped labels BiXSE loses less than InfoNCE",
        defaults={
            "noise": [0, 0.1, 0.2, 0.3, 0.4, 0.5],
            "labels_per_query": None,
            "losses": ["bixse", "infonce"],
        },
        arms=lambda config, values, _: arms_by(
            "noise", values["noise"], config, values,
            lambda _, share: ({}, {"noise": share, "labels_per_query": values["labels_per_query"]}),
        ),
        contrasts=_noise_contrasts,
        axis="noise",
        notes=(
            "Two labels per query are swapped, a small share if a query has many. `labels_per_query` first keeps that "
            "many random labels.",
        ),
    ),
    Study(
        name="cutoff",
        title="Relevance cutoff, sizes matched",
        paper="Fig. data_cutoff: InfoNCE needs a cutoff that removes weakly relevant pairs, BiXSE makes use of them",
        defaults={"cutoffs": [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "losses": ["bixse", "infonce"]},
        arms=_cutoff_arms,
        contrasts=_cutoff_contrasts,
        axis="cutoff",
    ),
    Study(
        name="batch-size",
        title="Batch size",
        paper="Fig. batch_size_and_lr, left: nDCG@10 against the batch size; larger batches bring more negatives per "
        "query",
        defaults={"batch_sizes": [4, 8, 16, 32, 64], "losses": ["bixse", "infonce"]},
        arms=lambda config, values, _: arms_by(
            "batch_size", values["batch_sizes"], config, values,
            lambda _, size: ({"optimizer": {"global_batch_size": size}}, {}),
        ),
        contrasts=_batch_size_contrasts,
        axis="batch_size",
        axis_scale="log",
        notes=(
            "The passes over the data are the same, so a larger batch makes fewer steps; the learning rate grows with "
            "the square root of the batch.",
        ),
    ),
    Study(
        name="bias-rate",
        title="Rate of the logit bias",
        paper="Fig. batch_size_and_lr, right: the bias has to learn much faster than the encoder",
        defaults={"multipliers": [1, 10, 100, 1000], "starts": ["fit", "prior"]},
        arms=_bias_rate_arms,
        contrasts=_bias_rate_contrasts,
        axis="multiplier",
        axis_scale="log",
        notes=("On short runs Adam moves the bias by at most its rate times the steps, so its start matters most.",),
    ),
    Study(
        name="hard-negatives",
        title="Hard negatives against batch size, as many documents per batch",
        paper="Tables bge_*: 15/16, 7/32, 3/64, 1/128 and 0/256 hard negatives/queries; with several graded documents "
        "per query LambdaLoss is ahead of BiXSE in the paper's own table",
        defaults={
            "hard_negatives": [0, 1, 3, 7],
            "documents": 64,
            "losses": ["bixse", "infonce", "soft-infonce", "lambdaloss-v2"],
        },
        arms=_hard_negatives_arms,
        contrasts=lambda values: bixse_above_others(
            values["losses"], "hard_negatives", sorted(values["hard_negatives"]), "with {} hard negatives"
        ),
        axis="hard_negatives",
        notes=("A batch has each query's best document and others, drawn anew in each pass; none is left out.",),
    ),
    Study(
        name="annotation",
        title="A fixed budget of labels",
        paper="The economic claim: BiXSE learns from a single labelled pair per query, where pairwise and listwise "
        "losses need several",
        defaults={
            "labels_per_query": [1, 2, 3, 6],
            "labels": None,
            "losses": ["bixse", "infonce", "pairwise-bce", "lambdaloss-v2"],
        },
        arms=_annotation_arms,
        contrasts=_annotation_contrasts,
        axis="labels_per_query",
        notes=(
            "The budget is one label a training query unless `labels` says otherwise. Documents are drawn before their "
            "label is known; a query whose label is not relevant gives InfoNCE nothing. All labels of a query are in "
            "the batch, and all arms make as many steps as the first one does in its passes.",
        ),
    ),
)  # fmt: skip


BM25, UNTRAINED = "bm25", "untrained"
"""The systems without training."""


def _arms(config: StudyConfig, values: Choices, pairs: Pairs | None) -> list[Arm]:
    depth = {"depth": values["depth"]}
    arms = [Arm({"system": name}, options=depth) for name in (BM25, UNTRAINED)]
    arms += [Arm({"system": loss}, train=of_loss(config, loss), options=depth) for loss in values["losses"]]
    for judge, name in _names(values["judges"]).items():
        options = {**depth, "judge": judge, "rubric": values["rubric"]}
        arms.append(Arm({"system": name}, options=options, measure=rank_by_judge))
    return arms


def _contrasts(values: Choices) -> list[Contrast]:
    judges = _names(values["judges"]).values()
    pairs = [(judge, name) for judge in judges for name in (BM25, UNTRAINED, *values["losses"])]
    pairs += [(loss, UNTRAINED) for loss in values["losses"]]
    return [above(f"{first} above {second}", {"system": first}, {"system": second}) for first, second in pairs]


def rank_by_encoder(run: ArmRun, inputs: StudyInputs, run_folder: Path) -> Measured:
    """Score BM25, the untrained encoder, or an encoder trained here, as ranker of BM25's candidates."""
    ranker: System = Bm25System()
    if run.arm.trained:
        ranker = EncoderSystem(trained(run, inputs, run_folder, inputs.pairs), cache="none")  # no other run has it
    elif run.arm.labels["system"] == UNTRAINED:
        ranker = EncoderSystem(untrained(run, inputs), cache="none")
    tests = {}
    for name, folder in inputs.tests.items():
        task = test_task(inputs, folder)
        (queries,) = task.query_sets
        first = Bm25System().search(task, run.arm.options["depth"])[queries.name]
        candidates = {query: list(answers) for query, answers in first.items()}
        task = replace(task, query_sets=(replace(queries, candidates=candidates),))
        tests[name] = evaluate(ranker, task, verbose=False)
    return measured(tests)


def rank_by_judge(run: ArmRun, inputs: StudyInputs, run_folder: Path) -> Measured:
    """Score a judge as ranker of BM25's candidates. The judge must grade every candidate."""
    if inputs.exclude_self:
        raise InputError(
            "rankers: got a judge and `exclude_self`; expected one of them, since a judge ranks every document that "
            "BM25 finds; fix: leave the judge out, or take a collection whose queries are no documents"
        )
    options = run.arm.options
    settings = {"judge": {"name": options["judge"]}, "rubric": options["rubric"]}
    evaluations = {}
    with closing(JudgeConfig.model_validate(settings).open()) as judge:
        for name, folder in inputs.tests.items():
            of = {"collection": folder, "depth": options["depth"], "min_relevant_grade": inputs.min_relevant_grade}
            system = JudgeSystem(RankConfig.model_validate(settings | of), judge, run_folder / name)
            evaluations[name] = evaluate(system, test_task(inputs, folder), run_folder / name, verbose=False)
            if warnings := system.warnings():
                raise IncompleteError(
                    f"{run.arm.label}: got {warnings[0]}; expected a grade for each candidate; fix: give "
                    "the same command again, or another judge"
                )
    return measured(evaluations)


def _names(judges: Sequence[str]) -> dict[str, str]:
    """Return judge -> its name in the table: the last part of the path, or all of it where two judges share it."""
    short = {judge: judge.rstrip("/").rpartition("/")[2] or judge for judge in judges}
    names = list(short.values())
    return {judge: f"judge {name if names.count(name) == 1 else judge}" for judge, name in short.items()}


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


STUDIES = {study.name: study for study in (*TRAINING_STUDIES, RANKERS)}


def describe_studies() -> str:
    """Describe each study: its question, the paper's finding, its values."""
    lines = []
    for study in STUDIES.values():
        lines += [f"{study.name}: {study.title}", f"  the paper: {study.paper}"]
        lines += [f"  {key}: {value}" for key, value in study.defaults.items()]
    return "\n".join(lines)


def find_study(name: str) -> Study:
    """Return a study by its name. An unknown name raises InputError with the closest name."""
    check_known("study", name, STUDIES)
    return STUDIES[name]
