"""The parts of a reranker's training: its loss, and the dev and guard collections that it reranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import set_seed

from bixse.encoders.loading.build import build_reranker, set_dropout
from bixse.errors import InputError
from bixse.evaluation.reranking import RerankedSystem
from bixse.evaluation.systems import Bm25System
from bixse.training.checks import check_pairs
from bixse.training.dev_evaluation import (
    GradedRetrievalEvaluator,
    check_not_trained_on,
    queries_of,
    sets_of,
    small_task,
)
from bixse.training.distributed import world_size
from bixse.training.loop.pair_trainer import PairTrainer, pair_loss
from bixse.training.setup import Parts

if TYPE_CHECKING:
    from bixse.evaluation.tasks import Task
    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import Role
    from bixse.training.inputs import Inputs


def make_reranker_parts(config: TrainConfig, inputs: Inputs) -> Parts:
    """Make a reranker's loss and dev evaluator, and refuse inputs that cannot be trained on."""
    if world_size() > 1:
        raise InputError(f"kind: got a reranker and {world_size()} processes; expected one; fix: start it alone")
    set_seed(config.seed)  # before the model: the layer that gives the score is random
    model = build_reranker(config.model, config.max_length, None, config.trust_remote_code, new_layer=True)
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    word, pairs = str(config.loss), inputs.pairs
    loss = pair_loss(word, model)
    warnings = check_not_trained_on(queries_of(inputs.watched), pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(inputs.where, word, loss, pairs, config.optimizer.documents_per_query)
    tasks = {role: _tasks(inputs, role, config.min_relevant_grade) for role in ("dev", "guard")}
    evaluator = None
    if config.evaluations_per_epoch and tasks["dev"]:
        system = RerankedSystem(Bm25System(), model, config.dev_candidates)
        evaluator = GradedRetrievalEvaluator(tasks["dev"], guards=tasks["guard"], system=system)
    return Parts(loss, evaluator, warnings, PairTrainer)


def _tasks(inputs: Inputs, role: Role, min_relevant_grade: float) -> list[Task]:
    """Return a task over the complete corpus per collection of a role."""
    tasks = []
    for watched, part in sets_of(inputs.watched, role):
        corpus = {name: document.content for name, document in watched.collection.corpus.items()}
        tasks.append(small_task(part.name, corpus, part.queries, part.qrels, min_relevant_grade))
    return tasks
