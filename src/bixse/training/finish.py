"""The end of a training run: merge with the base model, and save."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bixse.encoders.head import RelevanceHead, at_lengths
from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import quiet_loading
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.encoders.weights import Weights, has_lora, merge_lora, trained_weights
from bixse.training.config import TUNED_FOLDER, TrainConfig
from bixse.training.distributed import is_main_process, raise_together
from bixse.training.merge import MergeResult, refitted_head, set_best_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.training.dev_evaluation import Watched
    from bixse.training.loop.trainer import GradedTrainer


def weights_to_merge_with(config: TrainConfig, trainer: GradedTrainer) -> Weights | None:
    """Return the weights before training if w can be chosen on dev or is given, else None."""
    if config.merge is None or (config.dev is None and len(config.merge.weights) > 1):
        return None
    return trained_weights(trainer.loss.model)


def merge_tuned(
    config: TrainConfig,
    out: Path,
    trainer: GradedTrainer,
    base: Weights,
    watched: Sequence[Watched],
    head: RelevanceHead | None,
    progress: bool,
) -> tuple[MergeResult, RelevanceHead | None]:
    """Set the trained encoder to the best weights between it and the base."""
    settings, model = config.merge, trainer.loss.model
    assert settings is not None
    device = model.device
    if settings.keep_tuned:
        unsharded = trainer.unsharded_model()
        with raise_together():
            if is_main_process():
                # a copy: saving merges adapters
                save_model(trainer, copy.deepcopy(unsharded.cpu()), head, out / TUNED_FOLDER)
        model.to(device)
    model.eval()
    # a saved model loads with sdpa: eager attention, which trains faster, rounds differently and is slow on long texts
    switch_attention(model, None)
    tuned = trained_weights(model)
    merged = set_best_weights(model, base, tuned, settings.weights, watched, config.guard_tolerance, progress)
    if head is not None and merged.weight < 1:
        with raise_together():
            head = refitted_head(trainer, head, trainer.loss.dimensions)
    return merged, head


def save_model(
    trainer: GradedTrainer,
    encoder: SentenceTransformer,
    head: RelevanceHead | None,
    folder: Path,
    merged: MergeResult | None = None,
    adapters: Path | None = None,
) -> None:
    """Save an encoder with its head and the card of a merge; adapters are written alone first, then merged."""
    model = cast("RelevanceModel", encoder)
    # also without one: the base model's heads do not fit this encoder
    model.heads = at_lengths(head, getattr(trainer.loss, "dimensions", ()))
    with quiet_loading():
        if has_lora(model):
            if adapters is not None:
                save_whole(model, adapters)
            model.float()  # bf16 would round away a part of the adapters' change
            merge_lora(model)
        save_whole(model, folder, merged.card() if merged is not None else "")
