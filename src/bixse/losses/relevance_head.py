"""The relevance head of a trained loss: its scale and bias, kept with the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bixse.encoders.head import RelevanceHead
from bixse.encoders.serving import add_older_settings
from bixse.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def trained_head(loss: nn.Module, prior: float | None = None) -> RelevanceHead | None:
    """The head of a loss, or None where the loss learns no probability; see `save_relevance_head` for the prior."""
    parameters = dict(loss.named_parameters(recurse=False))
    if not {"logit_scale", "logit_bias"} <= set(parameters):
        return None
    scale, bias = parameters["logit_scale"].item(), parameters["logit_bias"].item()
    prior = prior if prior is not None and 0 < prior < 1 else None
    return RelevanceHead(scale, bias, trained_prior=prior, prior=prior)


def check_learns_probability(loss: nn.Module, prior: float | None = None) -> RelevanceHead:
    """The head of a loss; raises InputError where the loss learns no probability."""
    head = trained_head(loss, prior)
    if head is None:
        raise InputError(
            f"relevance head: got {type(loss).__name__}, which learns no probability of relevance; expected a "
            "BiXSELoss; fix: run `bixse calibrate MODEL --pairs FILE` on the saved model"
        )
    return head


def restore_head(loss: nn.Module, head: RelevanceHead) -> None:
    """Give a loss the scale and bias of a head."""
    values = {"logit_scale": head.logit_scale, "logit_bias": head.logit_bias, "bias_is_set": True}
    with torch.no_grad():
        for name, tensor in loss.state_dict(keep_vars=True).items():
            if name in values:
                tensor.fill_(values[name])


def save_relevance_head(loss: nn.Module, folder: str | Path, prior: float | None = None) -> RelevanceHead:
    """Write scale and bias of a trained loss into a model folder, so that `load_relevance_model` gives probabilities.

    `bixse train` does this itself. After sentence-transformers' own trainer, which saves the encoder alone, call it
    with the folder the model was saved in; the callback `SaveRelevanceHead` does it with every checkpoint. If the model
    is a `RelevanceModel` (`build_encoder`), it gets the head too and is saved with it from then on.

    Args:
        loss: a `BiXSELoss`, trained.
        folder: the model's; a head that is there is replaced.
        prior: mean target of the entries that the loss was trained on, between 0 and 1, which `RelevanceHead.at_prior`
            needs; None: not known.

    Raises:
        InputError: the loss learns no probability, or was not trained.
        StorageError: the folder cannot be written.

    Example:
        ::

            trainer.train()
            model.save_pretrained("my-model")
            save_relevance_head(loss, "my-model")
            load_relevance_model("my-model").relevance("copy a folder", ["shutil.copytree ...", "os.remove ..."])
    """
    from bixse.encoders.relevance_model import RelevanceModel

    head = check_learns_probability(loss, prior)
    if not bool(getattr(loss, "bias_is_set", True)):
        raise InputError(
            "relevance head: got a loss that has seen no batch, so that its bias is not set; expected a trained one; "
            "fix: call this after trainer.train(), with the loss that the trainer was given"
        )
    head.save(Path(folder))
    add_older_settings(Path(folder))  # plain sentence-transformers, which saved the folder, does not
    model = getattr(loss, "model", None)
    if isinstance(model, RelevanceModel):
        model.head = head
    return head
