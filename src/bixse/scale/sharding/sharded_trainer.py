"""`ShardedTrainer`: `GradedTrainer` whose processes hold a part of each weight, gradient, moment and checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.losses.bixse import BiXSEOptions
from bixse.scale.sharding.sharded_checkpoints import load_optimizer, load_weights, save_shards
from bixse.scale.sharding.sharding import shard_encoder, whole_copy
from bixse.training.loop.trainer import GradedTrainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.training.loop.trainer import GradedTrainingArguments


class ShardedTrainer(GradedTrainer):
    """Train with weights that are shared out among the processes (`sharding: full`); a single process holds them all.

    Raises:
        InputError: see `GradedTrainer`; the loss asks for the base model's probabilities; the launcher shards too.
        ModelError: an encoder without transformer blocks, or a quantised one.
    """

    def __init__(self, model: SentenceTransformer, args: GradedTrainingArguments, *rest: Any, **named: Any) -> None:
        self.outline = shard_encoder(model, args)
        """The encoder without weights; None in a single process."""
        super().__init__(model, args, *rest, **named)

    def add_base_targets(self) -> None:
        options = self.loss.options
        if self.outline is not None and isinstance(options, BiXSEOptions) and options.unlabelled != "zero":
            raise InputError("sharding: got full with unlabelled: base; expected one of them; fix: leave one out")
        super().add_base_targets()

    def whole_model(self) -> SentenceTransformer:
        """Return a whole copy in main memory; every process must call this, and the first one gets the copy."""
        return self.model if self.outline is None else whole_copy(self.model, self.outline)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the evaluator in every process, all on the same texts.

        The library does so where accelerate shards the encoder, and else lets the first process encode for itself.
        """
        before, self.is_fsdp_enabled = self.is_fsdp_enabled, self.is_fsdp_enabled or self.outline is not None
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.is_fsdp_enabled = before

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a whole model in the first process; every process must call this.

        A checkpoint, for which transformers calls it, holds the processes' parts instead.
        """
        whole = None if _internal_call else self.whole_model()
        if self.args.should_save:
            self._save_files(whole, output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save_shards(Path(output_dir), self.loss, self.optimizer, self.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_optimizer(Path(checkpoint), self.loss, self.optimizer, self.lr_scheduler)

    def _load_encoder(self, checkpoint_path: str) -> None:
        load_weights(Path(checkpoint_path), self.loss)
