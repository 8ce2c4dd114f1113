"""The relevance head of a trained loss: its scale and bias, saved with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from bixse.encoders.head import RelevanceHead, at_lengths, save_heads
from bixse.encoders.serving import add_older_settings
from bixse.errors import InputError
from bixse.losses.base import GradedLoss


def _with_head(loss: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(loss, "with_head", loss)  # a loss of sentence-transformers has no inner one
    return inner


def restore_head(loss: nn.Module, head: RelevanceHead) -> None:
    """Give a loss the scale and bias of its head."""
    # bias_is_set: else the next batch would fit the bias anew
    values = {"logit_scale": head.logit_scale, "logit_bias": head.logit_bias, "bias_is_set": True}
    _with_head(loss).load_state_dict({name: torch.tensor(value) for name, value in values.items()}, strict=False)


def save_relevance_head(
    loss: nn.Module, folder: str | Path, prior: float | None = None, *, before_weights: bool = False
) -> RelevanceHead:
    """Write scale and bias of a trained loss into a model folder, so that `load_relevance_model` gives probabilities.

    `bixse train` does this itself. sentence-transformers' own trainer saves the encoder alone: call this afterwards
    with the folder of the model. The callback `SaveRelevanceHead` does it with every checkpoint. If the model is a
    `RelevanceModel` (`build_encoder`), it gets the head too and is saved with it from then on.

    Args:
        loss: a trained `BiXSELoss`.
        folder: the model folder; an existing head is replaced.
        prior: mean target of the training entries, between 0 and 1, for `RelevanceHead.at_prior`; None: unknown.
        before_weights: True if the weights are written later, by `trainer.save_model()`.

    Example:
        ::

            trainer.train()
            model.save_pretrained("my-model")
            save_relevance_head(loss, "my-model")
    """
    from bixse.encoders.relevance_model import RelevanceModel

    head = _head_or_refuse(loss, prior)
    if not bool(getattr(_with_head(loss), "bias_is_set", True)):
        raise InputError(
            "relevance head: got a loss that has seen no batch, so that its bias is not set; expected a trained one; "
            "fix: call this after trainer.train(), with the loss that the trainer was given"
        )
    heads = at_lengths(head, getattr(loss, "dimensions", ()))
    save_heads(heads, folder := Path(folder), before_weights=before_weights)
    add_older_settings(folder)  # the folder was saved by plain sentence-transformers, which omits them
    model = getattr(loss, "model", None)
    if isinstance(model, RelevanceModel):
        model.heads = heads
    return head


class SaveRelevanceHead(TrainerCallback):
    """Save scale and bias of a `BiXSELoss` with the models of sentence-transformers' own trainer.

    Every checkpoint gets the relevance head of its step. At the end the output folder of the training, where
    `trainer.save_model()` writes the model, gets the head: that of the best checkpoint, if the trainer has loaded it. A
    model of `build_encoder` gets it too, and is saved with it in any folder. With another folder and a plain
    `SentenceTransformer`, call `save_relevance_head(loss, folder)`.

    A run that is resumed from a checkpoint in its output folder continues with the scale and bias of that checkpoint.

    Example:
        ::

            loss = BiXSELoss(model)
            heads = SaveRelevanceHead(loss)
            trainer = SentenceTransformerTrainer(model, args, train_dataset, loss=loss, callbacks=[heads])
            trainer.train()
            trainer.save_model()  # to the output folder
            trainer.save_model("other")
            save_relevance_head(loss, "other")
            load_relevance_model("other")
    """

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss
        self._targets = 0.0
        self._steps = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        _head_or_refuse(self.loss)
        self._targets, self._steps = 0.0, 0
        head = RelevanceHead.load(_checkpoint(args, state)) if state.global_step else None
        if head is not None:
            restore_head(self.loss, head)
            self._targets, self._steps = (head.trained_prior or 0.0) * state.global_step, state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        target = getattr(self.loss, "statistics", {}).get("mean_target")
        if target is not None:
            self._targets += float(target)
            self._steps += 1

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            save_relevance_head(self.loss, _checkpoint(args, state), self._prior())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        head = RelevanceHead.load(Path(best)) if best is not None else None
        if head is not None:
            restore_head(self.loss, head)
        if state.is_world_process_zero:
            prior = head.trained_prior if head is not None else self._prior()
            save_relevance_head(self.loss, args.output_dir or ".", prior, before_weights=True)

    def _prior(self) -> float | None:
        return self._targets / self._steps if self._steps else None


def _head_or_refuse(loss: nn.Module, prior: float | None = None) -> RelevanceHead:
    inner = _with_head(loss)
    head = inner.trained_head(prior) if isinstance(inner, GradedLoss) else None
    if head is None:
        raise InputError(
            f"relevance head: got {type(loss).__name__}, which learns no probability of relevance; expected a "
            "BiXSELoss; fix: run `bixse calibrate MODEL --collection DIR` on the saved model"
        )
    return head


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
