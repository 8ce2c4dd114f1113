"""Low-rank adapters: train a few weights of a large encoder, save them alone or merged into the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.encoders.loading.attention import BidirectionalTransformer, backbones
from bixse.errors import InputError, ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer


def add_lora(
    model: SentenceTransformer,
    rank: int = 32,
    alpha: int | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] | str = "all-linear",
    **options: Any,
) -> int:
    """Freeze the encoder and add low-rank adapters to it (LoRA, Hu et al. 2021, arXiv:2106.09685).

    A pretrained head after the pooling (`pooling="cls-head"`) is trained whole. A folder saved from then on holds the
    adapters and the name of the base model, until `merge_lora`.

    Args:
        model: changed in place.
        rank: of the adapters; the BiXSE paper takes 32 for its 3B encoders.
        alpha: their scale is alpha / rank; None takes 2 * rank.
        dropout: of what goes into an adapter, in [0, 1).
        targets: names of the layers that get one, or "all-linear".
        options: any other argument of `peft.LoraConfig`, such as `use_dora` or `use_rslora`.

    Returns:
        The number of weights that are trained.

    Raises:
        InputError: peft is not installed, or does not take an option.
        ModelError: the encoder has no transformer, has adapters already, or none of its layers is a target.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise InputError(
            "lora: got no package peft; expected it to be installed; fix: pip install 'bixse[lora]'"
        ) from error
    if not backbones(model):
        raise ModelError(
            "lora: got a model without a transformer, such as static embeddings; expected one whose layers can have "
            "adapters; fix: leave lora out, all weights of such a model are trained"
        )
    if has_lora(model):
        raise ModelError("lora: got a model that has adapters; expected one without; fix: call merge_lora first")
    scale = 2 * rank if alpha is None else alpha
    names = targets if isinstance(targets, str) else list(targets)
    try:
        settings = LoraConfig(
            r=rank, lora_alpha=scale, lora_dropout=dropout, target_modules=names, bias="none", **options
        )
        for part in backbones(model):
            part.auto_model.add_adapter(settings)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"lora: got {error}; expected options of peft.LoraConfig and names of layers of the encoder; "
            "fix: correct the option, or leave `targets` out for every linear layer"
        ) from error
    for part in backbones(model):
        if getattr(part.auto_model.config, "is_causal", None) is False:
            part.__class__ = BidirectionalTransformer  # an adapter folder holds no config.json that would say so
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def merge_lora(model: SentenceTransformer) -> None:
    """Add the adapters to the weights they adapt and drop them: the model saves and loads as a whole one again.

    Raises ModelError for a model without adapters.
    """
    if not has_lora(model):
        raise ModelError("lora: got a model without adapters; expected some to merge; fix: call add_lora first")
    from peft.tuners.tuners_utils import BaseTunerLayer
    from sentence_transformers.sentence_transformer.modules import Transformer

    for part in backbones(model):
        backbone = part.auto_model
        for name, layer in list(backbone.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                layer.merge(safe_merge=True)
                parent, _, last = name.rpartition(".")
                setattr(backbone.get_submodule(parent), last, layer.get_base_layer())
        backbone._hf_peft_config_loaded = False
        del backbone.peft_config
        if isinstance(part, BidirectionalTransformer):
            part.__class__ = Transformer
        for parameter in backbone.parameters():
            parameter.requires_grad_(True)


def has_lora(model: SentenceTransformer) -> bool:
    """Whether an encoder has adapters that are not merged."""
    return any(getattr(part.auto_model, "_hf_peft_config_loaded", False) for part in backbones(model))
