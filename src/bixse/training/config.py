"""`TrainConfig` and `MergeModelsConfig`: everything `bixse train` and `bixse merge` depend on, validated once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from bixse.encoders.loading.build import PoolingMode
from bixse.encoders.loading.precision import Setting, resolve_precision
from bixse.errors import SEEDS, ConfigError, did_you_mean
from bixse.extensions import extension
from bixse.losses.catalogue import LOSSES, LossOptions, check_loss_options
from bixse.settings import Flag, Settings, paths_in

if TYPE_CHECKING:
    from typing import Self


MODEL_FOLDER = "model"
TUNED_FOLDER = "tuned"
"""Folder of the tuned model before merging, if it is kept."""
ADAPTER_FOLDER = "adapter"
"""Folder of the low-rank adapters alone; the model folder holds them merged."""
TENSORBOARD_FOLDER = "tensorboard"
LOG_FILE = "log.jsonl"
CHECKPOINT_FOLDER = "checkpoints"
"""Checkpoints to resume from, until the run is finished."""
REGRADE_FOLDER = "regrade"
"""Per epoch the pairs that are asked, a folder with the answers, and their outcome; also the ledger."""


class LoraConfig(Settings):
    """Low-rank adapters: the encoder is frozen, and a few added weights are trained."""

    rank: int = Field(default=32, ge=1)
    """Rank of the adapters; the paper takes 32 for its 3B encoders."""
    alpha: int | None = Field(default=None, ge=1)
    """Their scale is alpha / rank; null takes 2 * rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of what goes into an adapter."""
    targets: str | list[str] = "all-linear"
    """Names of the layers that get one; "all-linear" takes every linear layer."""


class OptimizerConfig(Settings):
    """The optimizer: the paper's Adam with linear warm-up and decay.

    The dev queries of `pydocs` chose the defaults of rate, epochs, batch and documents per query.
    """

    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak rate of the encoder for 16 queries per step; multiplied by sqrt(queries per step / 16), as in the paper. A
    step holds global_batch_size * gradient_accumulation_steps queries, but never more than there are."""
    bias_lr_multiplier: float = Field(default=100.0, ge=0)
    """Rate of the logit bias over the encoder's."""
    num_train_epochs: int = Field(default=3, ge=1)
    """Passes over the queries."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps after which training ends instead of after `num_train_epochs`."""
    global_batch_size: int = Field(default=16, ge=1)
    """Queries in a batch, over all processes."""
    documents_per_query: int | None = Field(default=4, ge=1)
    """Graded documents of a query in a batch (the best one and others drawn anew each epoch); null takes all."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps over which the rate rises from 0."""
    adam_beta2: float = Field(default=0.98, gt=0, lt=1)
    """Second moment decay of Adam; the first is 0.9."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the encoder; scale and bias take none."""
    max_grad_norm: float = Field(default=0.0, ge=0)
    """Clip the encoder's gradient to this norm; 0 does not clip."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Batches whose mean gradient makes a step; in-batch negatives stay within one batch."""
    gradient_checkpointing: bool = False
    """Keep the states between layers alone and compute the rest again in the backward pass."""

    rate_batch: ClassVar[int] = 16
    """Queries a step that `learning_rate` is meant for."""

    def queries_per_step(self, queries: int | None = None) -> int:
        """Return the number of queries per step; a run on `queries` queries cannot have more."""
        asked = self.global_batch_size * self.gradient_accumulation_steps
        return asked if queries is None else min(asked, queries)

    def scaled_learning_rate(self, queries: int | None = None) -> float:
        """Return the encoder's peak rate (BiXSE paper, appendix: base * sqrt(total batch / 16)).

        Example:
            >>> OptimizerConfig(learning_rate=1e-4, global_batch_size=1024).scaled_learning_rate(queries=64)
            0.0002
        """
        return self.learning_rate * math.sqrt(self.queries_per_step(queries) / self.rate_batch)


Weight = Annotated[float, Field(ge=0, le=1)]
"""The share w of (1 - w) base + w tuned: 0 is the base model, 1 the tuned one."""
WEIGHTS: tuple[float, ...] = tuple(step / 10 for step in range(1, 11))
"""Default merge weights to score."""
TOLERANCE = 0.01
"""nDCG@10 by which a guard collection may fall below the base model."""
SEARCHED = 10_000
"""Documents of a collection that each weight searches."""


class MergeConfig(Settings):
    """Merging after training: weights between the base and the tuned encoder, which keep what the base model knew."""

    weights: Annotated[tuple[Weight, ...], Field(min_length=1)] = WEIGHTS
    """Weights that are scored on dev and guard; a single one is taken without a dev collection too."""
    documents: int | None = Field(default=SEARCHED, ge=1)
    """Documents of a dev or guard collection that each weight searches. A smaller corpus is searched whole; of a larger
    one the judged documents and the best hits of the base and the tuned model. Null: always the whole corpus."""
    keep_tuned: bool = False
    """Save the tuned model too, as it was before merging, in `tuned` beside `model`."""


class RegradeConfig(Settings):
    """Grading between epochs: a judge grades the likely false negatives."""

    judge: Annotated[tuple[str, ...], Field(min_length=1), Flag(name="regrade", metavar="JUDGE")]
    """Judge, as `bixse grade --judge` takes it, that grades suspicious zeros after each epoch but the last: documents
    of other queries that score high for a query although no grade says that they are relevant."""
    budget: Annotated[int, Field(ge=1), Flag(name="regrade_budget")] = 100
    """Pairs that are asked after an epoch, at most."""
    rubric: Annotated[str | None, Flag(name="regrade_rubric")] = None
    """Rubric of the judge (default: trec-dl-0-3), for one that reads it."""
    ledger: Annotated[Path | None, Flag(name="regrade_ledger", metavar="FOLDER")] = None
    """Folder of answers to share with `bixse grade` and other runs (default: regrade/ledger in the run's folder)."""
    options: Annotated[dict[str, Any], Flag(hidden=True)] = Field(default_factory=dict)
    """Other settings of the judge, as in the section `judge` of the file of `bixse grade`."""
    prices: Annotated[dict[str, Any], Flag(hidden=True)] = Field(default_factory=dict)
    """Prices of the answers, as in the section `prices` of that file."""

    @model_validator(mode="after")
    def _of_the_judge(self) -> RegradeConfig:
        if self.options or self.prices:  # only then: most runs ask no judge, and need not import what reads these
            try:
                self.judging()
            except ConfigError as error:
                raise ValueError("; ".join(line.strip() for line in str(error).splitlines()[1:])) from error
        return self

    def judging(self) -> Any:
        """Return the judge's settings as `bixse grade` has them (`GradeConfig`); raises ConfigError."""
        given = {"prices": self.prices, **({} if self.rubric is None else {"rubric": self.rubric})}
        return extension("judge").load(None, {"judge": {"names": self.judge, **self.options}, **given})

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the grades, without a server's address, speed or prices."""
        asked = {"concurrency", "timeout", "api_key_variable"}
        values = self.model_dump(mode="json", exclude={"ledger": True, "prices": True, "options": asked})
        servers = all(name.startswith(("http://", "https://")) for name in self.judge)
        return {**values, "judge": "server" if servers else values["judge"]}


class TrainConfig(Settings):
    """Settings of `bixse train`; also the keys of its YAML file.

    Example:
        >>> config = TrainConfig(pairs="pairs.jsonl", loss="infonce", loss_options={"positive_from": 0.7})
        >>> config.optimizer.global_batch_size
        16
    """

    pairs: Path | Annotated[tuple[Path, ...], Field(min_length=1)]
    """File of graded pairs (.parquet, .jsonl, .csv, .tsv), or several. Rows of a file without a task column have, where
    there are several files, the file's name as their task."""
    task_shares: dict[str, float] = Field(default_factory=dict)
    """Task -> share of its queries that stand in one epoch, in (0, 1], drawn anew each epoch; 1 for the others."""
    instructions: Path | None = None
    """TOML file of task instructions, or "paper" for the BiXSE paper's; saved with the model. Null: those that the
    model brings, else its prompts."""
    dev: Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None = None
    """Collection folder, or several; the checkpoint with the best (mean) graded nDCG@10 on them is kept."""
    dev_split: str = "dev"
    """Split of the collection for that choice."""
    dev_candidates: int = Field(default=30, ge=1)
    """Documents a dev query that BM25 adds to the judged ones for that choice: the judged alone would be too easy."""
    guard: Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None = None
    """Collection folder, or several: what must not get worse. Merged weights are chosen so that it does not."""
    guard_split: str | tuple[str, ...] = "test"
    """Split of the guard collections, or one for each."""
    guard_tolerance: float = Field(default=TOLERANCE, ge=0)
    """nDCG@10 by which a guard collection may fall below the base model."""
    allow_shared_queries: bool = False
    """Accept dev or guard queries that stand in the training pairs too; they are counted in a warning."""
    merge: MergeConfig | None = Field(default_factory=MergeConfig)
    """Merge the tuned weights with those of the base model; null keeps the tuned ones."""
    min_relevant_grade: float = Field(default=1.0, gt=0)
    """Grade from which a document of the collection counts as relevant for recall and MRR."""
    model: str = "demo"
    """Folder or hub name of the encoder; "demo" is the one of the extra `bixse[demo]`."""
    max_length: int | None = Field(default=None, ge=4)
    """Tokens of a text that the saved model reads, in training too; the rest of a longer text is not read. Null keeps
    the model's own limit. To train faster lower `train_max_length` instead."""
    train_max_length: int | None = Field(default=None, ge=4)
    """Tokens of a text that are read while training, never above max_length; null: the same. The saved model still
    reads up to max_length."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the encoder while training; null keeps the model's own."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    bidirectional: bool | None = None
    """Let the tokens of a decoder see the whole text; null does so for a bare decoder."""
    pooling: PoolingMode | None = None
    """Pooling of a bare backbone: mean, cls (the first token) or cls-head (the first token through the head
    of ModernBERT). Null takes this head where the checkpoint holds it, else the mean, and leaves a
    sentence-transformers model its own."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of all weights; `lora: {}` takes the defaults."""
    loss: str = "bixse"
    """One of the losses of `bixse.losses.LOSSES`."""
    scale: float = Field(default=LossOptions.model_fields["scale"].default, gt=0)
    """Logit scale alpha: 1 / temperature. The paper has 20; 10 was better on dev for every loss."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Other arguments of the loss, for example bias, positive_from, in_batch_labels."""
    sharding: Literal["full"] | None = None
    """"full": each of several processes holds a part of the encoder's weights, gradients, optimizer state and
    checkpoints (FSDP2); null: every process holds all of them."""
    regrade: Annotated[RegradeConfig | None, Flag(flat=True)] = None
    """Have suspicious zeros graded between epochs; null: assumed zeros stay 0."""
    optimizer: Annotated[OptimizerConfig, Flag(flat=True)] = Field(default_factory=OptimizerConfig)
    """Rates, epochs and batches."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of batches, draws and dropout."""
    precision: Setting = "auto"
    """Numbers to compute in: float32, bfloat16, or auto: as `--precision` or BIXSE_PRECISION say, else bfloat16 where
    the processor or GPU is fast at it."""
    evaluations_per_epoch: int = Field(default=1, ge=0)
    """Number of times per epoch that dev is searched and a checkpoint written. 0: one checkpoint per epoch, and
    dev is searched for the merge weight alone."""
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Trackers that get the log too, through transformers; each needs its own package."""

    @model_validator(mode="after")
    def _used(self) -> TrainConfig:
        if self.guard is not None and (self.dev is None or self.merge is None):
            raise ValueError("guard without dev and merge; expected all three; fix: set dev, or leave guard out")
        splits = [] if isinstance(self.guard_split, str) else self.guard_split
        if splits and len(splits) != len(paths_in(self.guard)):
            raise ValueError(
                f"guard_split: {len(splits)} splits for {len(paths_in(self.guard))} guard collections; expected one, "
                "or one for each; fix: name as many"
            )
        unset = self.merge is None or self.merge == MergeConfig()
        if self.merge is not None and not unset and self.dev is None and len(self.merge.weights) > 1:
            raise ValueError("merge without dev, on which the weight is chosen; fix: set dev, or a single weight")
        if self.regrade is not None and self.optimizer.num_train_epochs < 2 and self.optimizer.max_steps is None:
            raise ValueError(
                "regrade with one epoch, after which nothing is trained; fix: set num_train_epochs to 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _loss_takes_its_options(self) -> TrainConfig:
        if self.loss_options:  # only then: the classes of losses import torch, which takes seconds
            try:
                check_loss_options(self.loss, self.loss_options)
            except ConfigError as error:
                first, *options = str(error).splitlines()
                raise ValueError("\n  ".join(f"loss_options.{line.strip()}" for line in options) or first) from error
        return self

    @property
    def pair_files(self) -> tuple[Path, ...]:
        return tuple(paths_in(self.pairs))

    def splits(self) -> list[tuple[Path, str, Literal["dev", "guard"]]]:
        """Return folder, split and role of each dev and guard collection."""
        folders = paths_in(self.guard)
        splits = [self.guard_split] * len(folders) if isinstance(self.guard_split, str) else self.guard_split
        found: list[tuple[Path, str, Literal["dev", "guard"]]] = []
        found += [(folder, self.dev_split, "dev") for folder in paths_in(self.dev)]
        return found + [(folder, split, "guard") for folder, split in zip(folders, splits, strict=True)]

    def identity(self) -> dict[str, Any]:
        """Return the settings that make two runs the same."""
        regrade = None if self.regrade is None else self.regrade.identity()
        return {**self.model_dump(mode="json"), "regrade": regrade}

    def resolved(self) -> TrainConfig:
        """Return these settings with the precision of this machine instead of "auto"."""
        return self.model_copy(update={"precision": resolve_precision(self.precision)})

    @field_validator("loss_options")
    @classmethod
    def _no_second_scale(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "scale" in value:
            raise ValueError("expected no scale, which stands beside `loss`; fix: set `scale` there")
        return value

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str) -> str:
        if value not in LOSSES:
            raise ValueError(f"expected one of {', '.join(LOSSES)}; fix: {did_you_mean(value, LOSSES)}")
        return value


class MergeModelsConfig(Settings):
    """Settings of `bixse merge`: either `weights` gives the share of each model, or `dev` chooses w.

    With `dev`, the first model is the base, tuned is the mean of the other models, and the result is (1 - w) base + w
    tuned.

    Example:
        >>> MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5]).guard_tolerance
        0.01
    """

    models: Annotated[tuple[str, ...], Field(min_length=2), Flag(metavar="MODEL", positional=True)]
    """Folders or hub names of two or more models of one architecture; with dev the base model first."""
    weights: tuple[Weight, ...] | None = None
    """Share of each model, with sum 1."""
    dev: tuple[Path, ...] = ()
    """Collection folders on which w is chosen."""
    dev_split: str = "dev"
    """Split of the dev collections."""
    guard: tuple[Path, ...] = ()
    """Collection folders that must not get worse than the base model."""
    guard_split: str = "test"
    """Split of the guard collections."""
    guard_tolerance: float = Field(default=TOLERANCE, ge=0)
    """nDCG@10 by which a guard collection may fall below the base model."""
    candidates: Annotated[tuple[Weight, ...], Field(min_length=1)] = WEIGHTS
    """Values of w that are tried."""
    documents: int | None = Field(default=SEARCHED, ge=1)
    """Documents of a collection that each weight searches: the judged ones and the best hits of the base and the tuned
    model. Null: the whole corpus."""
    pairs: Path | None = None
    """Graded pairs to which scale and bias of the merged model are fitted; null leaves it without a relevance head."""
    max_length: int | None = Field(default=None, ge=4)
    """Tokens of a text that are read; null keeps the base model's."""
    trust_remote_code: bool = False
    """Run code that comes with the models."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.weights is None) == (not self.dev):
            found = "weights and dev" if self.dev else "neither weights nor dev"
            raise ValueError(f"got {found}; expected one of them; fix: give weights, or dev to choose them on")
        if self.guard and not self.dev:
            raise ValueError("got guard without dev; expected both; fix: give dev, or leave guard out")
        if self.weights is not None:
            from bixse.encoders.weights import check_shares  # not at the top: it imports torch

            check_shares(self.weights, len(self.models))
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that make two merges the same; settings of the choice of w count only with `dev`."""
        chosen = {"candidates", "documents", "guard_tolerance"} if self.dev else set()
        values = self.model_dump(mode="json", include={"models", "weights", "max_length", *chosen})
        return {**values, "precision": resolve_precision()}
