"""The inputs of a training run: pairs, instructions, collections, its record, the model and the loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from sentence_transformers.util import batch_to_device
from transformers import set_seed

from bixse.data.pairs_files import load_several
from bixse.data.run import Run, open_run
from bixse.data.task_instructions import Instructions, load_instructions
from bixse.encoders.embedding import embed_features
from bixse.encoders.loading.build import (
    build_encoder,
    check_dimensions,
    model_hashes,
    model_path_settings,
    set_dropout,
    use_attention_to_train_with,
)
from bixse.encoders.loading.precision import autocast
from bixse.encoders.loading.standardise import TEXTS_MEASURED, Standardised, standardise
from bixse.encoders.relevance_model import RelevanceModel, set_instructions
from bixse.encoders.weights import add_lora, upcast_trainable_to_float32
from bixse.files.files import file_hash
from bixse.losses.catalogue import LOSSES, build_loss
from bixse.training.dev_evaluation import Watched, load_watched, split_hashes, watched_splits
from bixse.training.distributed import world_size
from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset, prompts_of
from bixse.training.loop.tokens import Tokenisation

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.losses import GradedLoss
    from bixse.training.config import TrainConfig


QUERIES_AT_ONCE = 32
"""Maximum number of queries per batch whose embeddings are measured."""


class Inputs(NamedTuple):
    """The loaded files of a configuration, and the record of the run."""

    where: str
    """Names of the files of pairs, for messages."""
    pairs: Pairs
    instructions: Instructions | None
    watched: list[Watched]
    record: Run


def open_training(config: TrainConfig, out: Path) -> Inputs:
    """Read the files of a configuration and the record of its run; nothing is written."""
    files, splits = config.pair_files, watched_splits(config)
    pairs = load_several(files)
    names = ["pairs"] if len(files) == 1 else [f"pairs/{path.stem}" for path in files]
    hashes = {name: file_hash(path) for name, path in zip(names, files, strict=True)} | split_hashes(splits)
    paths = ("pairs", "dev", "guard", "instructions", *model_path_settings(config.model))
    hashes |= model_hashes(config.model)
    table = load_instructions(config.instructions) if config.instructions is not None else None
    if table is not None:
        hashes["instructions"] = table.content_hash()
    record = open_run(out, "train", config.identity(), hashes, paths)
    watched = load_watched(splits, config.merge.documents if config.merge is not None else None)
    return Inputs(", ".join(map(str, files)), pairs, table, watched, record)


def make_loss(config: TrainConfig, table: Instructions | None) -> GradedLoss:
    """Return the loss on an encoder that is ready to be trained."""
    set_seed(config.seed)
    model = build_encoder(
        config.model,
        config.max_length,
        "cpu" if config.sharding is not None and world_size() > 1 else None,  # each process keeps only a part
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
    )
    use_attention_to_train_with(model, config.train_max_length or config.max_length)
    if table is not None:
        set_instructions(model, table)
    if config.dropout is not None:  # before the adapters, which have a dropout of their own
        set_dropout(model, config.dropout)
    if config.lora is not None:
        add_lora(model, **config.lora.model_dump())
    upcast_trainable_to_float32(model)
    check_dimensions(model, config.dimensions)
    options = {"scale": config.scale, **config.loss_options}
    if LOSSES[config.loss].name == "BiXSELoss":
        options["bias_lr_multiplier"] = config.optimizer.bias_lr_multiplier
    return build_loss(config.loss, model, config.dimensions, **options)


@torch.no_grad()
def standardise_bare(config: TrainConfig, model: RelevanceModel, pairs: Pairs) -> Standardised | None:
    """Append the map `config.standardise` to a bare backbone, measured on texts as training reads them."""
    if config.standardise is None or model.backbone_files is None:
        return None
    optimizer, was_training = config.optimizer, model.training
    groups = GroupDataset(pairs, optimizer.documents_per_query, config.seed)
    tokenisation = Tokenisation(model, config.train_max_length)
    collator = GradedCollator(tokenisation, pairs, prompts=prompts_of(model, None, pairs))
    vectors: list[torch.Tensor] = []
    model.eval()
    # batches of the first epoch, cut small: queries, documents and tasks come in the proportion of training
    for drawn in BatchPlan(pairs, min(optimizer.global_batch_size, QUERIES_AT_ONCE), config.seed, config.task_shares):
        batch = collator([groups[index] for index in drawn])
        for kind in ("query", "document"):
            part = {name.removeprefix(f"{kind}_"): value for name, value in batch.items() if name.startswith(kind)}
            with autocast(model.device):
                vectors += embed_features(model, batch_to_device(part, model.device)).float()
        if len(vectors) >= TEXTS_MEASURED:
            break
    model.train(was_training)
    return standardise(model, torch.stack(vectors), config.standardise)
