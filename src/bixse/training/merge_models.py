"""Models merged: those that exist (`merge_models`), and the one that was just trained with its base model."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import build_encoder, model_hashes, quiet_loading
from bixse.encoders.relevance_model import save_whole
from bixse.encoders.weights import (
    check_can_be_scaled,
    check_same_kind,
    has_lora,
    mean_weights,
    merge_lora,
    trained_weights,
)
from bixse.files.files import file_hash, storage_errors
from bixse.training.checks import check_max_length
from bixse.training.config import CHECKPOINT_FOLDER, MODEL_FOLDER, TUNED_FOLDER
from bixse.training.dev_evaluation import (
    Split,
    check_not_trained_on,
    dev_figures,
    load_watched,
    queries_of,
    split_hashes,
)
from bixse.training.distributed import first_process_alone_in, is_main_process, raise_together
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.merge import MergeResult, merge, refitted_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.encoders.weights import Weights
    from bixse.training.config import MergeModelsConfig, TrainConfig
    from bixse.training.dev_evaluation import Watched


@dataclass(frozen=True)
class MergedModel:
    """What a merge left."""

    model_path: Path
    result: MergeResult
    warnings: list[str]
    reused: bool = False


def merge_models(config: MergeModelsConfig, out: str | Path, progress: bool = False) -> MergedModel:
    """Average the weights of models of one architecture and save the result to `out/model`.

    Raises:
        InputError: collections or pairs that cannot be used, or that share queries.
        ModelError: models that differ in architecture or tokenizer.
        OutputExistsError: `out` holds another run.

    Example:
        Half of the way from the base model to the tuned one::

            config = MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5])
            merge_models(config, "runs/merged")
    """
    names, folder = config.models, Path(out)
    splits = [Split(path, config.dev_split, "dev") for path in config.dev]
    splits += [Split(path, config.guard_split, "guard") for path in config.guard]
    watched = load_watched(splits, config.documents)
    graded = load_graded_pairs(config.pairs) if config.pairs is not None else None
    warnings = check_not_trained_on(queries_of(watched), graded.queries if graded else [], config.allow_shared_queries)
    inputs = {f"{number}/{name}": value for number, m in enumerate(names) for name, value in model_hashes(m).items()}
    inputs |= split_hashes(splits)
    if config.pairs is not None:
        inputs["pairs"] = file_hash(config.pairs)
    record = open_run(folder, "merge", config.identity(), inputs)
    if record.status == "finished" and (folder / MODEL_FOLDER).is_dir():
        found = record.results
        return MergedModel(folder / MODEL_FOLDER, MergeResult.from_json(found["merge"]), found["warnings"], reused=True)
    base = build_encoder(names[0], config.max_length, trust_remote_code=config.trust_remote_code).float()
    warnings += check_max_length(base)
    states, heads = [trained_weights(base)], [base.head]
    for name in names[1:]:
        other = build_encoder(name, trust_remote_code=config.trust_remote_code)
        check_same_kind(base, other, (names[0], name))
        states.append(trained_weights(other))
        heads.append(other.head)
        del other
    with first_process_alone_in(folder), storage_errors(folder):
        record.save("running")
        if config.weights is not None:
            result = merge(base, states[0], mean_weights(states, config.weights), [1.0], [])
            result = replace(result, given=config.weights)
        else:
            tuned = mean_weights(states[1:])
            result = merge(base, states[0], tuned, config.candidates, watched, config.guard_tolerance, progress)
        warnings += result.warnings()
        base.head = None
        if graded is not None:
            head = next((head.as_trained() for head in reversed(heads) if head is not None), RelevanceHead(20.0, 0.0))
            with tempfile.TemporaryDirectory() as scratch:
                arguments = GradedTrainingArguments(scratch, report_to="none", per_device_train_batch_size=16)
                base.head = refitted_head(GradedTrainer(base, arguments, graded), head)
        else:
            warnings.append(
                "the merged model has no relevance head, as its cosines are those of neither model; fix: give --pairs, "
                "or run `bixse calibrate` on it"
            )
        save_whole(base, folder / MODEL_FOLDER, result.card())
        record.results = {"merge": result.to_json(), "warnings": warnings}
        record.save("finished")
    return MergedModel(folder / MODEL_FOLDER, result, warnings)


def weights_to_merge_with(config: TrainConfig, trainer: GradedTrainer) -> Weights | None:
    """Return the weights before training, where w can be chosen on dev or is given."""
    if config.merge is None or (config.dev is None and len(config.merge.weights) > 1):
        return None
    base = trained_weights(trainer.loss.model)
    check_can_be_scaled(base)
    return base


def merge_tuned(
    config: TrainConfig,
    out: Path,
    trainer: GradedTrainer,
    base: Weights,
    watched: Sequence[Watched],
    head: RelevanceHead | None,
    progress: bool,
) -> tuple[MergeResult, RelevanceHead | None]:
    """Set the trained encoder, or the mean of its best checkpoints, to the best weights between it and the base."""
    settings, model = config.merge, trainer.loss.model
    assert settings is not None
    device = model.device
    if settings.keep_tuned:
        whole = trainer.whole_model()
        with raise_together():
            if is_main_process():
                save_model(copy.deepcopy(whole.cpu()), head, out / TUNED_FOLDER)
        model.to(device)
    tuned = [trained_weights(model)]
    if settings.checkpoints > 1:
        figures = dev_figures(trainer.state.log_history)
        best = sorted((step for step in figures if step > 0), key=lambda step: -figures[step])
        tuned = []
        for step in best[: settings.checkpoints]:
            trainer._load_from_checkpoint(str(out / CHECKPOINT_FOLDER / f"checkpoint-{step}"))
            tuned.append(trained_weights(model))
    model.eval()
    # as a saved model computes: eager attention, which trains faster, rounds differently and is slow on long texts
    switch_attention(model, config.attention)
    mean = mean_weights(tuned) if len(tuned) > 1 else tuned[0]
    tolerance, keep = config.guard_tolerance, settings.keep_tuned
    found = merge(model, base, mean, settings.weights, watched, tolerance, progress, keep)
    merged = replace(found, checkpoints=len(tuned), checkpoints_wanted=settings.checkpoints)
    if head is not None and (merged.weight < 1 or settings.checkpoints > 1):
        with raise_together():
            head = refitted_head(trainer, head)
    return merged, head


def save_model(
    encoder: SentenceTransformer,
    head: RelevanceHead | None,
    folder: Path,
    merged: MergeResult | None = None,
    adapters: Path | None = None,
) -> None:
    """Save an encoder with its head and the card of a merge; adapters are written alone first, then merged into it."""
    model = cast("RelevanceModel", encoder)
    model.head = head  # one that came with the base model is not this encoder's
    with quiet_loading():
        if has_lora(model):
            if adapters is not None:
                save_whole(model, adapters)
            model.float()  # bf16 would round away a part of what the adapters add
            merge_lora(model)
        save_whole(model, folder, merged.card() if merged is not None else "")
