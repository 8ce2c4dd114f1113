"""`TrainConfig`: everything `bixse train` depends on, validated once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from bixse.encoders.loading.build import STATIC, PoolingMode
from bixse.encoders.loading.precision import Setting, resolve_precision
from bixse.errors import SEEDS, ConfigError
from bixse.losses.catalogue import LOSSES, LossOptions, check_loss_options, instead_of
from bixse.settings import Flag, Reads, Settings, paths_in

MODEL_FOLDER = "model"
TUNED_FOLDER = "tuned"
"""Folder of the tuned model before merging, if `merge.keep_tuned` is set."""
ADAPTER_FOLDER = "adapter"
"""Folder of the low-rank adapters alone; the model folder holds them merged."""
TENSORBOARD_FOLDER = "tensorboard"
LOG_FILE, DIVERGED_FILE = "log.jsonl", "diverged.jsonl"
CHECKPOINT_FOLDER = "checkpoints"
"""Checkpoints to resume from, until the run is finished."""


NOT_OF_A_STATIC_ENCODER = (
    "max_length", "train_max_length", "dropout", "bidirectional", "pooling", "standardise", "lora"
)  # fmt: skip


class LoraConfig(Settings):
    """Low-rank adapters: the encoder is frozen, and a few added weights are trained."""

    rank: int = Field(default=32, ge=1)
    """Rank of the adapters. The default is the paper's for 3B encoders."""
    alpha: int | None = Field(default=None, ge=1)
    """Numerator of the adapters' scale, alpha / rank. Null takes 2 * rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate at the input of each adapter. 0 drops nothing."""
    targets: str | list[str] = "all-linear"
    """Names of the layers that get an adapter. "all-linear" takes every linear layer."""


class OptimizerConfig(Settings):
    """The optimizer: the paper's Adam with linear warm-up and decay.

    The dev queries of `pydocs` chose the defaults of rate, epochs, batch and documents per query.
    """

    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate of the encoder for 16 queries per step. It is multiplied by sqrt(queries per step / 16), as in
    the paper. A step holds global_batch_size * gradient_accumulation_steps queries, or all queries, if fewer."""
    bias_lr_multiplier: float = Field(default=100.0, ge=0)
    """Learning rate of the logit bias, as a multiple of the rate of the encoder."""
    num_train_epochs: int = Field(default=3, ge=1)
    """Number of passes over the queries."""
    max_steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps of the run. Null trains `num_train_epochs` epochs."""
    global_batch_size: int = Field(default=16, ge=1)
    """Number of queries per batch, over all processes."""
    documents_per_query: int | None = Field(default=4, ge=1)
    """Graded documents per query in a batch: the best document, and others drawn anew each epoch. Null takes all."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps in which the rate rises from 0 to its peak."""
    adam_beta2: float = Field(default=0.98, gt=0, lt=1)
    """Decay rate of Adam's second moment. The first moment decays at 0.9."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the encoder. Logit scale and bias take none."""
    max_grad_norm: float = Field(default=0.0, ge=0)
    """Maximum norm of the encoder's gradient. 0 does not clip."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Number of batches per optimizer step. In-batch negatives stay within one batch."""
    gradient_checkpointing: bool = False
    """Save memory: store only the states between layers, and compute the rest again in the backward pass."""

    rate_batch: ClassVar[int] = 16
    """Number of queries per step that `learning_rate` is for."""

    def queries_per_step(self, queries: int | None = None) -> int:
        """Return the number of queries per step; a run on `queries` queries cannot have more."""
        wanted = self.global_batch_size * self.gradient_accumulation_steps
        return wanted if queries is None else min(wanted, queries)

    def scaled_learning_rate(self, queries: int | None = None) -> float:
        """Return the encoder's peak rate (BiXSE paper, appendix: base * sqrt(total batch / 16)).

        Example:
            >>> OptimizerConfig(learning_rate=1e-4, global_batch_size=1024).scaled_learning_rate(queries=64)
            0.0002
        """
        return self.learning_rate * math.sqrt(self.queries_per_step(queries) / self.rate_batch)


Weight = Annotated[float, Field(ge=0, le=1)]
"""The share w of (1 - w) base + w tuned: 0 is the base model, 1 the tuned one."""
Weights = Annotated[tuple[Weight, ...], Field(min_length=1)]
TOLERANCE = 0.01
"""nDCG@10 by which a guard collection may fall below the base model."""
SEARCHED = 10_000
"""Documents of a collection that each weight searches."""


class MergeConfig(Settings):
    """Merging after training: weights between the base and the tuned encoder, which keep what the base model knew."""

    weights: Weights | None = None
    """Weights w to score on dev and guard. Null searches: 0.5, then halves toward the better side, at most four weights
    with 1, the tuned model. A single weight needs no dev collection."""
    documents: int | None = Field(default=SEARCHED, ge=1)
    """Maximum number of documents per collection that a weight searches: all judged documents and the best hits of the
    base and the tuned model. Null searches the complete corpus."""
    keep_tuned: bool = False
    """Also save the tuned model before merging, in the folder `tuned` next to `model`."""


class TrainConfig(Settings):
    """Settings of `bixse train`; also the keys of its YAML file.

    Example:
        >>> config = TrainConfig(pairs="pairs.jsonl", loss="infonce", loss_options={"positive_from": 0.7})
        >>> config.optimizer.global_batch_size
        16
    """

    renamed: ClassVar = {
        **dict.fromkeys(("per_device_train_batch_size", "train_batch_size", "batch_size"), "global_batch_size"),
        **{"epochs": "num_train_epochs", "lr": "learning_rate"},
        **dict.fromkeys(("frozen_layers", "max_distance"), "leave it out: `merge` keeps as much"),
        "kind": "train other kinds with sentence-transformers' trainers, as docs/reference/kinds.md does",
        "regrade": "leave it out: `bixse mine` with the tuned model finds likely false negatives for `bixse grade`",
    }

    pairs: Annotated[Path | Annotated[tuple[Path, ...], Field(min_length=1)], Reads("training")]
    """File of graded pairs (.parquet, .jsonl, .csv, .tsv), or several files. With several files, the file name is the
    task of rows without a task column."""
    task_shares: dict[str, float] = Field(default_factory=dict)
    """Task -> share of its queries per epoch, in (0, 1], drawn anew each epoch. Other tasks have share 1."""
    instructions: Path | None = None
    """TOML file of task instructions, saved with the model. "paper" takes the instructions of the BiXSE paper. Null
    takes the model's own instructions, or else its prompts."""
    dev: Annotated[Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None, Reads("collection")] = None
    """Collection folder, or several, to select the checkpoint by mean graded nDCG@10. Null keeps the last one."""
    dev_split: str = "dev"
    """Split of the dev collections."""
    dev_candidates: int = Field(default=30, ge=1)
    """BM25 candidates per dev query, ranked together with the judged documents, which alone are too easy."""
    guard: Annotated[Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None, Reads("collection")] = None
    """Collection folder, or several, that must not get worse: the merge weight is chosen to protect them."""
    guard_split: str | tuple[str, ...] = "test"
    """Split of the guard collections, or one split per collection."""
    guard_tolerance: float = Field(default=TOLERANCE, ge=0)
    """Maximum drop of nDCG@10 on a guard collection, against the base model."""
    allow_shared_queries: bool = False
    """Accept dev or guard queries that are training queries too, and warn of their number."""
    merge: MergeConfig | None = Field(default_factory=MergeConfig)
    """Merge the tuned weights with the weights of the base model. Null keeps the tuned weights."""
    min_relevant_grade: float = Field(default=1.0, gt=0)
    """Lowest relevant grade, on the scale of the grades, for recall and MRR on dev."""
    model: Annotated[str, Reads("model")] = "demo"
    """Folder or hub name of the encoder. "demo" is the small model of the extra `bixse[demo]`. "static:NAME" makes a
    static encoder of the token embeddings of a model, which trains in seconds."""
    max_length: int | None = Field(default=None, ge=4)
    """Maximum number of tokens per text, in training and in the saved model. Null keeps the limit of the model. To
    train faster, lower `train_max_length` instead."""
    train_max_length: int | None = Field(default=None, ge=4)
    """Maximum number of tokens per text in training alone. Null takes max_length, as the saved model does."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout rate of the encoder in training; `lora` has the rate of adapters. Null keeps the rate of the model."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    bidirectional: bool | None = None
    """Let each token of a decoder attend to the complete text. Null does so for a bare decoder."""
    pooling: PoolingMode | None = None
    """Pooling of a bare backbone: mean, cls (the first token) or cls-head (the first token and ModernBERT's head). Null
    takes cls-head if the checkpoint has the head, else mean. A sentence-transformers model keeps its pooling."""
    standardise: Literal["none", "mean", "mean-and-deviation"] | None = None
    """Map of a bare backbone's embeddings before training, measured on 1,000 training texts and saved with the model:
    "mean" subtracts their mean, "mean-and-deviation" also divides each dimension by its deviation. Null takes
    mean-and-deviation for a bare decoder, else none. Embeddings of a sentence-transformers model are not mapped."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of all weights. `lora: {}` takes the defaults; null trains all weights."""
    loss: Annotated[str, Flag(metavar="LOSS")] = "bixse"
    """Name of the loss, a key of `bixse.losses.LOSSES` such as infonce."""
    scale: float = Field(default=LossOptions.model_fields["scale"].default, gt=0)
    """Logit scale alpha, 1 / temperature. The paper takes 20; 10 was better on dev for every loss."""
    dimensions: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Flag(metavar="D")] = ()
    """Numbers of dimensions that embeddings can be cut to after training, for example 256 128 64. Each is trained in
    addition to the complete embedding. Empty trains only the complete embedding."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Other arguments of the loss, for example bias, positive_from, in_batch_labels."""
    sharding: Literal["full"] | None = None
    """Sharding over processes (FSDP2). "full" gives each process a part of weights, gradients, optimizer state and
    checkpoints. Null keeps everything in every process."""
    optimizer: Annotated[OptimizerConfig, Flag(flat=True)] = Field(default_factory=OptimizerConfig)
    """Rates, epochs and batches."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of batches, draws and dropout."""
    precision: Setting = "auto"
    """Dtype of computation: float32, bfloat16 or auto. auto follows `--precision` or BIXSE_PRECISION, or else takes
    bfloat16 if the CPU or GPU is fast at it."""
    evaluations_per_epoch: int = Field(default=1, ge=0)
    """Number of dev evaluations and checkpoints per epoch; there are more if it does not divide the steps of an epoch.
    0 writes one checkpoint per epoch, and evaluates dev only to choose the merge weight."""
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Trackers that also get the log, through transformers. Each tracker needs its package."""

    @model_validator(mode="after")
    def _fits_a_static_encoder(self) -> TrainConfig:
        given = [name for name in NOT_OF_A_STATIC_ENCODER if getattr(self, name) not in (None, "none")]
        if self.model.startswith(STATIC) and given:
            raise ValueError(
                f"got {given[0]} for a static encoder, which is a table of token embeddings; expected none; "
                "fix: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _used(self) -> TrainConfig:
        if self.guard is not None and (self.dev is None or self.merge is None):
            raise ValueError("got guard without dev and merge; expected all three; fix: set both, or leave guard out")
        check_guard_splits(self.guard_split, self.guard)
        weights = None if self.merge is None else self.merge.weights
        if self.dev is None and weights is not None and len(weights) > 1:
            raise ValueError(
                "got merge weights without dev; expected dev, to choose one; fix: set dev, or a single weight"
            )
        return self

    @model_validator(mode="after")
    def _loss_takes_its_options(self) -> TrainConfig:
        if self.loss_options:  # imported here: the classes of losses import torch, which takes seconds
            try:
                check_loss_options(self.loss, self.loss_options)
            except ConfigError as error:
                first, *options = str(error).splitlines()
                raise ValueError("\n  ".join(f"loss_options.{line.strip()}" for line in options) or first) from error
        return self

    @property
    def pair_files(self) -> tuple[Path, ...]:
        return tuple(paths_in(self.pairs))

    def identity(self) -> dict[str, Any]:
        """Return the settings that make two runs the same."""
        # runs of older versions continue
        left_out = {name for name in ("dimensions", "standardise") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=left_out)

    def resolved(self) -> TrainConfig:
        """Return these settings with the precision of this machine instead of "auto"."""
        return self.model_copy(update={"precision": resolve_precision(self.precision)})

    @field_validator("loss_options")
    @classmethod
    def _no_second_scale(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, setting in {"scale": "scale", "bias_lr_multiplier": "optimizer.bias_lr_multiplier"}.items():
            if name in value:
                raise ValueError(f"expected no {name} here; fix: set `{setting}`, next to `loss_options`")
        return value

    @field_validator("loss", mode="before")
    @classmethod
    def _known_loss(cls, value: Any) -> str:
        known = list(LOSSES)
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"expected one of {', '.join(known)}; fix: {instead_of(value, known)}")
        return value


def check_guard_splits(splits: str | tuple[str, ...], guard: Any) -> None:
    """Refuse several splits that are not one per guard collection; for a validator."""
    collections = len(paths_in(guard))
    if not isinstance(splits, str) and len(splits) != collections:
        raise ValueError(
            f"got {len(splits)} guard splits for {collections} guard collections; expected one, or one per collection; "
            "fix: name as many in guard_split"
        )
