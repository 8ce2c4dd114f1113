"""The parts of training a model that scores pairs: its loss, and the dev and guard collections that it reranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import set_seed

from bixse.encoders.lengths import check_lengths
from bixse.encoders.loading.build import build_scorer, set_dropout
from bixse.errors import InputError
from bixse.evaluation.reranking import RerankedSystem
from bixse.evaluation.systems import Bm25System
from bixse.losses import ScoreLoss
from bixse.training.checks import check_pairs
from bixse.training.dev_evaluation import (
    GradedRetrievalEvaluator,
    check_not_trained_on,
    queries_of,
    sets_of,
    small_task,
    warnings_of,
)
from bixse.training.distributed import world_size
from bixse.training.loop.pair_trainer import PairTrainer, pair_loss
from bixse.training.setup import Parts

if TYPE_CHECKING:
    from bixse.evaluation.tasks import Task
    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import Role
    from bixse.training.inputs import Inputs


def make_scorer_parts(config: TrainConfig, inputs: Inputs) -> Parts:
    """Make the loss and the dev evaluator of any kind but an encoder, and refuse inputs that cannot be trained on."""
    if world_size() > 1:
        raise InputError(
            f"kind: got {config.kind} and {world_size()} processes; expected one; fix: start it without the launcher"
        )
    set_seed(config.seed)  # before the model: the layer that gives a reranker's score is random
    model: Any = build_scorer(
        config.kind, config.model, config.max_length, None, config.trust_remote_code, convert=True
    )
    loss: Any
    if config.kind == "reranker":
        loss = pair_loss(config.loss, model)
    else:
        loss = ScoreLoss(model, config.loss, scale=config.scale, **config.loss_options)
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    pairs = inputs.pairs
    warnings = warnings_of(inputs.watched)
    warnings += check_not_trained_on(queries_of(inputs.watched), pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(inputs.where, config.loss, loss, pairs, config.optimizer.documents_per_query)
    warnings += check_lengths(model, pairs)
    tasks = {role: _tasks(inputs, role, config.min_relevant_grade) for role in ("dev", "guard")}
    evaluator = None
    if config.evaluations_per_epoch and tasks["dev"]:
        system = RerankedSystem(Bm25System(), model, config.dev_candidates)
        evaluator = GradedRetrievalEvaluator(tasks["dev"], guards=tasks["guard"], system=system)
    parts = Parts(loss, evaluator, warnings)
    return replace(parts, trainer=PairTrainer) if config.kind == "reranker" else parts


def _tasks(inputs: Inputs, role: Role, min_relevant_grade: float) -> list[Task]:
    """Return a task over the complete corpus per collection of a role."""
    tasks = []
    for watched, part in sets_of(inputs.watched, role):
        corpus = {name: document.content for name, document in watched.collection.corpus.items()}
        tasks.append(small_task(part.name, corpus, part.queries, part.qrels, min_relevant_grade))
    return tasks
