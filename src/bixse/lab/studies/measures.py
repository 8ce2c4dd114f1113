"""The measures of a study on the test queries: training on transformed pairs, the untrained encoder, and BM25."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.task_instructions import load_instructions
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import resolve_precision
from bixse.encoders.weights import set_instructions
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.systems import Bm25System, EncoderSystem, System
from bixse.lab.experiments import PAIRS_FILE, TRAIN_FOLDER, ArmRun, Measured, train_run
from bixse.lab.studies.study_inputs import StudyInputs, transformed
from bixse.training.config import MODEL_FOLDER, TUNED_FOLDER, TrainConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.evaluate import Evaluation
    from bixse.search.tasks import Task


NOT_MERGED = ", not merged"
"""Suffix of a collection's name for the tuned model before merging (`merge: {keep_tuned: true}`)."""


def train_and_score(run: ArmRun, inputs: StudyInputs, folder: Path) -> Measured:
    """Train on the transformed pairs and search the test queries."""
    path = folder / PAIRS_FILE
    pairs = transformed(load_graded_pairs(inputs.pairs), run.arm.pairs, run.seed)
    save_graded_pairs(pairs, path)
    merged, apart = _scored(trained(run, inputs, folder, path), inputs, folder)
    tuned = folder / TRAIN_FOLDER / TUNED_FOLDER
    if tuned.is_dir():
        tests, others = _scored(build_encoder(tuned), inputs, folder)
        apart |= {f"{name}{NOT_MERGED}": figures for name, figures in {**_per_query(tests), **others}.items()}
    return measured(merged, len(pairs), apart)


def score_untrained(run: ArmRun, inputs: StudyInputs, folder: Path) -> Measured:
    """Search the test queries with the encoder in the state before training."""
    tests, apart = _scored(untrained(run, inputs), inputs, folder)
    return measured(tests, apart=apart)


def score_bm25(run: ArmRun, inputs: StudyInputs, folder: Path) -> Measured:
    """Search the test queries with BM25."""
    system = Bm25System()
    others = _per_query(_evaluated(inputs.extra_test, inputs, system))
    return measured(_evaluated(inputs.tests, inputs, system), apart=others, precision="")


def test_task(inputs: StudyInputs, folder: Path) -> Task:
    """Return the test queries of a collection as a task, scored by the settings of the study."""
    return collection_task(
        folder, "test", exclude_self=inputs.exclude_self, min_relevant_grade=inputs.min_relevant_grade
    )


def measured(
    evaluations: Mapping[str, Evaluation],
    rows: int | None = None,
    apart: Mapping[str, Mapping[str, float]] | None = None,
    precision: str | None = None,
) -> Measured:
    """Return the figures of a run. With several collections, a figure is the mean of their means."""
    metrics = {
        metric: sum(each.metrics[metric] for each in evaluations.values()) / len(evaluations) for metric in METRICS
    }
    per_query = {query: value for evaluation in _per_query(evaluations).values() for query, value in evaluation.items()}
    return Measured(metrics, per_query, apart or {}, rows, resolve_precision() if precision is None else precision)


def _per_query(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Return collection name -> `collection/query` -> primary metric."""
    return {
        name: {f"{name}/{query}": value for query, value in evaluation.by_query[PRIMARY_METRIC].items()}
        for name, evaluation in evaluations.items()
    }


def trained(run: ArmRun, inputs: StudyInputs, folder: Path, pairs: Path) -> SentenceTransformer:
    """Return the encoder of a run. Train it in the run's folder, unless it is finished there."""
    train_run(run_config(run, inputs, pairs), folder)
    return build_encoder(folder / TRAIN_FOLDER / MODEL_FOLDER)


def untrained(run: ArmRun, inputs: StudyInputs) -> SentenceTransformer:
    """Return the encoder before training, with the length, pooling, attention and instructions of training."""
    config = TrainConfig.load(None, {**run.settings, "pairs": inputs.pairs})
    encoder = build_encoder(
        inputs.model,
        config.max_length,
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
    )
    if config.instructions is not None:
        set_instructions(encoder, load_instructions(config.instructions))
    return encoder


def run_config(run: ArmRun, inputs: StudyInputs, pairs: Path) -> TrainConfig:
    """Return the validated training settings of a run. Raises ConfigError."""
    settings = {
        "pairs": pairs,
        "dev": list(inputs.dev) or None,
        "dev_split": inputs.dev_split,
        "min_relevant_grade": inputs.min_relevant_grade,
        "model": inputs.model,
        "seed": run.seed,
    }
    return TrainConfig.load(None, {"merge": None, **run.settings, **settings})


def _scored(
    model: SentenceTransformer, inputs: StudyInputs, folder: Path
) -> tuple[dict[str, Evaluation], dict[str, dict[str, float]]]:
    """Score an encoder on the test collections and on the extra ones, and encode each text once."""
    cache = folder / "embeddings"
    system = EncoderSystem(model, cache=cache)
    try:
        tests = _evaluated(inputs.tests, inputs, system)
        others = _evaluated(inputs.extra_test, inputs, system)
    finally:
        shutil.rmtree(cache, ignore_errors=True)  # the cache saves nothing later: no other run has this model
    return tests, _per_query(others)


def _evaluated(folders: Mapping[str, Path], inputs: StudyInputs, system: System) -> dict[str, Evaluation]:
    return {name: evaluate(system, test_task(inputs, folder), verbose=False) for name, folder in folders.items()}
