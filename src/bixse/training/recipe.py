"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.data.collection_files import load_collection
from bixse.data.files import file_hash, storage_errors
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import RunRecord, open_run
from bixse.errors import ConfigError, InputError, InterruptedRunError, StorageError
from bixse.losses.catalogue import build_loss, check_loss_options

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.systems import GradedRetrievalEvaluator
    from bixse.losses.base import GradedLoss
    from bixse.training.config import TrainConfig
    from bixse.training.trainer import GradedTrainer, GradedTrainingArguments

MODEL_FOLDER = "model"
"""Where a run keeps its model."""
CHECKPOINT_FOLDER = "checkpoints"
"""Where a run keeps what it needs to resume, until it is finished."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run left."""

    model_path: Path
    """Folder of the model; loads in plain SentenceTransformer."""
    history: list[dict[str, Any]]
    """The log: an entry a step (loss, logit_bias, mean logits, ...) and one an evaluation on dev."""
    best_step: int | None
    """Step of the checkpoint that was kept; None without a dev collection."""
    warnings: list[str]
    """What the user should know."""
    reused: bool
    """The run was finished before; nothing was trained."""


def train(config: TrainConfig, out: Path, progress: bool = True, title: str | None = None) -> TrainResult:
    """Train an encoder on graded pairs and save it to `out/model` with `out/run.json`.

    Called again with the same configuration it continues an interrupted run from its last checkpoint, and returns
    a finished one as it is.

    Raises:
        InputError: pairs, collection, model or configuration cannot be used.
        OutputExistsError: `out` holds another run.
        StorageError: the disk is full.
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.
    """
    pairs = load_graded_pairs(config.pairs)
    collection = load_collection(config.dev, [config.dev_split]) if config.dev is not None else None
    check_loss_options(config.loss, _loss_arguments(config))
    record = open_run(out, "train", config.model_dump(mode="json"), _input_hashes(config))
    if record.status == "finished" and (out / MODEL_FOLDER).is_dir():
        return TrainResult(out / MODEL_FOLDER, **record.results, reused=True)

    from transformers import set_seed

    from bixse.encoders.build import build_encoder, no_library_bars, set_dropout

    set_seed(config.seed)
    model = build_encoder(config.model, config.max_length, trust_remote_code=config.trust_remote_code)
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    loss = build_loss(config.loss, model, **_loss_arguments(config))
    warnings = _check_pairs(config, loss, pairs)
    _check_disk(out, model)
    record.save("running")
    started = time.perf_counter()
    evaluator = None
    if collection is not None:
        from bixse.evaluation.baseline import search_bm25
        from bixse.evaluation.systems import GradedRetrievalEvaluator, candidate_corpus

        qrels = collection.qrels[config.dev_split]
        corpus = candidate_corpus(
            collection, qrels, [search_bm25(collection, list(qrels), config.dev_candidates)], config.dev_candidates
        )
        queries = {query_id: collection.queries[query_id] for query_id in qrels}
        evaluator = GradedRetrievalEvaluator(corpus, queries, qrels, config.relevance_level)
    with storage_errors(out), no_library_bars():
        trainer = _run_trainer(config, out, model, loss, pairs, evaluator, record, progress, title or config.loss)
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    best_step = trainer.state.best_global_step if evaluator is not None else None
    warnings += _warn_if_worse(history, best_step)
    _save_model(config, model, loss, out)
    record.results = {"history": history, "best_step": best_step, "warnings": warnings}
    record.timings = {
        "train": record.timings.get("train", 0.0) + time.perf_counter() - started,
        "steps": record.timings.get("steps", 0.0) + trainer.seconds_in_steps,
    }
    record.save("finished")
    shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
    return TrainResult(out / MODEL_FOLDER, history, best_step, warnings, reused=False)


def _run_trainer(
    config: TrainConfig,
    out: Path,
    model: RelevanceModel,
    loss: GradedLoss,
    pairs: GradedPairs,
    evaluator: GradedRetrievalEvaluator | None,
    record: RunRecord,
    progress: bool,
    title: str,
) -> GradedTrainer:
    """Train, from the last checkpoint when there is one; a Ctrl-C leaves a checkpoint and ends the run."""
    from transformers import PrinterCallback, ProgressCallback

    from bixse.training.callbacks import ProgressBar, StopOnInterrupt
    from bixse.training.trainer import GradedTrainer

    stop = StopOnInterrupt()
    trainer = GradedTrainer(
        model=model,
        args=training_arguments(config, out / CHECKPOINT_FOLDER, len(set(pairs.query_ids)), evaluator),
        train_pairs=pairs,
        loss=loss,
        evaluator=evaluator,
        callbacks=[ProgressBar(title, disable=not progress), stop],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    started = time.perf_counter()
    try:
        trainer.train(resume_from_checkpoint=last_whole_checkpoint(out / CHECKPOINT_FOLDER))
    finally:
        stop.release()
        if trainer.state.global_step < trainer.state.max_steps:
            record.timings["train"] = record.timings.get("train", 0.0) + time.perf_counter() - started
            record.timings["steps"] = record.timings.get("steps", 0.0) + trainer.seconds_in_steps
            record.save("interrupted")
    if trainer.state.global_step < trainer.state.max_steps:
        raise InterruptedRunError(
            f"{out}: got Ctrl-C after step {trainer.state.global_step} of {trainer.state.max_steps}; the checkpoint is "
            "written; to go on: give the same command again"
        )
    return trainer


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end, or None; a process killed while saving leaves half of one.

    The trainer's state is the last file of a checkpoint.
    """
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json") if path.stat().st_size > 0]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def training_arguments(
    config: TrainConfig, folder: Path, queries: int, evaluator: GradedRetrievalEvaluator | None
) -> GradedTrainingArguments:
    """The trainer's arguments of a configuration.

    Args:
        config: the run's settings.
        folder: where checkpoints go.
        queries: number of training queries.
        evaluator: decides whether checkpoints are compared.
    """
    import torch

    from bixse.encoders.encode import bf16_is_fast
    from bixse.training.trainer import GradedTrainingArguments

    optimizer = config.optimizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = math.ceil(queries / optimizer.batch_size)
    steps = math.ceil(batches / optimizer.gradient_accumulation_steps)
    every = max(1, steps // config.evaluations_per_epoch)
    return GradedTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=optimizer.epochs,
        per_device_train_batch_size=optimizer.batch_size,
        gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
        documents_per_query=optimizer.documents_per_query,
        train_max_length=config.train_max_length,
        learning_rate=optimizer.learning_rate,
        bias_lr_multiplier=optimizer.bias_lr_multiplier,
        lr_scheduler_type="linear",
        warmup_steps=optimizer.warmup,
        adam_beta1=0.9,
        adam_beta2=optimizer.adam_beta2,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        bf16=bf16_is_fast(device) if config.bf16 is None else config.bf16,
        seed=config.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if evaluator is not None else "no",
        eval_steps=every if evaluator is not None else None,
        eval_on_start=evaluator is not None,
        load_best_model_at_end=evaluator is not None,
        metric_for_best_model=f"eval_{evaluator.primary_metric}" if evaluator is not None else None,
        greater_is_better=True if evaluator is not None else None,
        dataloader_pin_memory=device == "cuda",
        report_to="none",
        disable_tqdm=True,
    )


def _loss_arguments(config: TrainConfig) -> dict[str, Any]:
    if "scale" in config.loss_options:
        raise ConfigError("loss_options: got 'scale'; expected it beside `loss`; to mend: set `scale` there")
    return {"scale": config.scale, **config.loss_options}


def _check_pairs(config: TrainConfig, loss: GradedLoss, pairs: GradedPairs) -> list[str]:
    """Refuse pairs the loss cannot learn from; warn where only some can be used."""
    groups = pairs.groups()
    usable = sum(loss.can_use(group.relevance) for group in groups)
    if usable == 0:
        raise InputError(
            f"{config.pairs}: got {len(groups)} queries of which loss {config.loss!r} can use none; expected queries "
            f"with {loss.needs}; to mend: check the relevance column, or choose another loss"
        )
    if usable < len(groups):
        return [
            f"loss {config.loss!r} learns from {usable} of {len(groups)} queries: the others do not have {loss.needs}"
        ]
    return []


def _check_disk(out: Path, model: RelevanceModel) -> None:
    """Refuse to start where the checkpoints would not fit (weights and two moments, kept twice, and the model)."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    needed = weights * (3 * 3 + 1)
    existing = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise StorageError(
            f"{out}: got {free / 1e9:.2f} GB free; expected {needed / 1e9:.2f} GB for checkpoints and the model; "
            "to mend: free disk space or choose another --out folder"
        )


def _warn_if_worse(history: list[dict[str, Any]], best_step: int | None) -> list[str]:
    """A checkpoint below the untrained encoder is said aloud."""
    figures = {entry["step"]: entry["eval_dev_ndcg@10"] for entry in history if "eval_dev_ndcg@10" in entry}
    if best_step is None or 0 not in figures or best_step not in figures or figures[best_step] >= figures[0]:
        return []
    return [
        f"on dev the best checkpoint (nDCG@10 {figures[best_step]:.4f}) is below the untrained encoder "
        f"({figures[0]:.4f}): a lower learning_rate or more graded queries may help"
    ]


def _save_model(config: TrainConfig, model: RelevanceModel, loss: GradedLoss, out: Path) -> None:
    """Write the model folder so that it appears whole: a temporary folder, then a rename."""
    from bixse.encoders.build import quiet_loading
    from bixse.encoders.head import RelevanceHead

    parameters = dict(loss.named_parameters(recurse=False))
    if "logit_bias" in parameters:
        model.head = RelevanceHead(parameters["logit_scale"].item(), parameters["logit_bias"].item())
    part = out / f".{MODEL_FOLDER}.part"
    with storage_errors(out), quiet_loading():
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(str(part))
        shutil.rmtree(out / MODEL_FOLDER, ignore_errors=True)
        part.rename(out / MODEL_FOLDER)


def _input_hashes(config: TrainConfig) -> dict[str, str]:
    """Content hashes of the files a run reads."""
    hashes = {"pairs": file_hash(config.pairs)}
    if config.dev is not None:
        for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{config.dev_split}.tsv"):
            hashes[f"dev/{name}"] = file_hash(config.dev / name)
    return hashes
