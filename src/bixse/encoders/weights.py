"""An encoder made ready for training; weights between encoders, theta = (1 - w) base + w tuned, and their means."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from sentence_transformers.sentence_transformer.modules import Dense, Transformer
from torch import Tensor, nn

from bixse.data.task_instructions import RESERVED, Instructions
from bixse.encoders.loading.backbones import BidirectionalTransformer, backbones, switch_attention
from bixse.encoders.loading.precision import default_device, resolve_precision
from bixse.encoders.processes import local_part
from bixse.errors import InputError, ModelError, needs_extra

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.relevance_model import RelevanceModel


Weights: TypeAlias = "Mapping[str, Tensor]"
"""Parameter name -> values, of the parameters that are trained."""
CONSTANT = 1e-6
"""Share of the largest deviation below which a dimension is constant up to rounding: it is not divided."""
BORDER_SAMPLES = ("what is it", "1 file", "(a) list", ".dot", " space", "été", "查询")
"""Beginnings of texts that a tokenizer might join to the end of a prompt."""
LONGEST_FOR_EAGER = 128
"""Longest texts, in tokens, for which eager attention trains faster on a CPU with bf16."""


def trained_weights(model: SentenceTransformer) -> dict[str, Tensor]:
    """Copy the trained parameters, all or the adapters, to main memory; of a sharded encoder, this process's part."""
    trained = ((name, value) for name, value in model.named_parameters() if value.requires_grad)
    return {name: local_part(value.detach()).to("cpu", copy=True) for name, value in trained}


def upcast_trainable_to_float32(model: SentenceTransformer) -> None:
    """Make trained weights float32, in place: a step is smaller than bf16 can tell apart (1 part in 256)."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def use_attention_to_train_with(model: SentenceTransformer, longest: int | None) -> None:
    """Switch a model to the fastest attention for training on texts of at most `longest` tokens."""
    device = default_device()
    # on CPUs, backward of sdpa is slow: in bf16 (not in float32), eager is faster up to 128 tokens
    short = longest is not None and longest <= LONGEST_FOR_EAGER
    if short and device == "cpu" and resolve_precision(device=device) == "bfloat16":
        switch_attention(model, "eager")


def set_dropout(model: nn.Module, probability: float) -> None:
    """Set every dropout of the encoder to one probability."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name, value in list(vars(module).items()):  # attention often has a plain number (ModernBERT, Qwen, Llama)
            if "dropout" in name and isinstance(value, (int, float)) and not isinstance(value, bool):
                setattr(module, name, probability)


def interpolate(model: SentenceTransformer, base: Weights, tuned: Weights, weight: float) -> None:
    """Set the trained parameters of an encoder to (1 - w) base + w tuned, in place; w in [0, 1].

    Interpolation keeps much of the base model and much of the training (WiSE-FT, Wortsman et al. 2022,
    arXiv:2109.01903; LM-Cocktail, Xiao et al. 2023, arXiv:2311.13534).
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in tuned:
                continue
            # An adapter adds s B A, and B starts at 0: B is scaled by w and A stays as trained, else the weight would
            # move by w squared
            down_projection = ".lora_A." in name or ".lora_embedding_A." in name
            start = tuned[name] if down_projection else base[name]
            part = local_part(parameter)
            if weight in (0, 1):  # bit-equal to a saved model: lerp makes +0 of -0, and its embeddings another key
                part.copy_(tuned[name] if weight else start)
            else:
                part.copy_(torch.lerp(start.to(part), tuned[name].to(part), weight))


def mean_weights(several: Sequence[Weights], shares: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Return the weighted mean of several encoders' weights (model soup, Wortsman et al. 2022, arXiv:2203.05482).

    `shares` has one entry per encoder, in [0, 1] and with sum 1; None gives equal shares.
    """
    if shares is None:
        shares = [1 / len(several)] * len(several)
    check_shares(shares, len(several))
    parts = list(zip(shares, several, strict=True))
    return {name: torch.stack([share * part[name].float() for share, part in parts]).sum(0) for name in several[0]}


def check_shares(shares: Sequence[float], models: int) -> None:
    """Refuse, by an InputError, shares that are not one per model with sum 1."""
    if len(shares) != models or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"weights: got {len(shares)} weights with sum {sum(shares):g} for {models} models; expected one per model, "
            "with sum 1; fix: give as many weights as models, such as 0.5 0.5"
        )


def add_lora(
    model: SentenceTransformer,
    rank: int = 32,
    alpha: int | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] | str = "all-linear",
) -> None:
    """Freeze the encoder and add adapters (LoRA, Hu et al. 2021, arXiv:2106.09685).

    Until `merge_lora`, a saved folder holds the adapters and the name of the base model.
    """
    with needs_extra("lora", "lora"):
        from peft import LoraConfig
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
        settings = LoraConfig(r=rank, lora_alpha=scale, lora_dropout=dropout, target_modules=names, bias="none")
        for part in backbones(model):  # a head after the pooling (`pooling="cls-head"`) stays trained in full
            part.auto_model.add_adapter(settings)
    except ValueError as error:
        raise InputError(
            f"lora: got {error}; expected names of layers of the encoder; fix: correct `targets`, or leave it out for "
            "every linear layer"
        ) from error
    for part in backbones(model):
        if getattr(part.auto_model.config, "is_causal", None) is False:
            part.__class__ = BidirectionalTransformer  # an adapter folder holds no config.json with is_causal


def merge_lora(model: SentenceTransformer) -> None:
    """Add the adapters to their weights and remove them: the model is complete again; raises ModelError without any."""
    if not has_lora(model):
        raise ModelError("lora: got a model without adapters; expected some to merge; fix: call add_lora first")
    from peft.tuners.tuners_utils import BaseTunerLayer

    for part in backbones(model):
        backbone = part.auto_model
        for name, layer in list(backbone.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                layer.merge(safe_merge=True)
                parent, _, last = name.rpartition(".")
                setattr(backbone.get_submodule(parent), last, layer.get_base_layer())
        backbone._hf_peft_config_loaded = False  # else transformers would save the adapters alone
        del backbone.peft_config
        if isinstance(part, BidirectionalTransformer):
            part.__class__ = Transformer
        for parameter in backbone.parameters():
            parameter.requires_grad_(True)


def has_lora(model: SentenceTransformer) -> bool:
    """Return True if an encoder has adapters that are not merged."""
    return any(getattr(part.auto_model, "_hf_peft_config_loaded", False) for part in backbones(model))


@dataclass(frozen=True)
class Standardised:
    """Figures of the measured embeddings; the cosines are means over pairs of texts."""

    texts: int
    norm_of_mean: float
    cosine_before: float
    cosine_after: float

    def line(self) -> str:
        return (
            f"standardised on {self.texts:,} training texts: norm of the mean {self.norm_of_mean:.3g}, "
            f"mean cosine {self.cosine_before:.3f} before, {self.cosine_after:.3f} after"
        )


def standardise(model: SentenceTransformer, vectors: Tensor, kind: str) -> Standardised:
    """Append the map of (N, D) embeddings to the model that gave them, as a frozen `Dense` of sentence-transformers.

    The `kind` "mean" subtracts the mean, "mean-and-deviation" divides each dimension by its deviation too.
    A text's embedding v becomes (v - mean) / deviation. All cosines of an untrained decoder are near one another,
    which hides what is relevant; afterwards their mean is about 0.
    """
    mean, deviation = vectors.mean(0), vectors.std(0)
    if kind == "mean":
        deviation = torch.ones_like(mean)
    deviation[deviation <= CONSTANT * deviation.max()] = 1.0
    size = len(mean)
    # a complete matrix, though a diagonal one: servers read a Dense, and no module of theirs scales dimensions
    dense = Dense(size, size, True, torch.nn.Identity(), torch.diag(1 / deviation), -mean / deviation)
    after = dense.requires_grad_(False).linear(vectors)
    model.append(dense.to(model.dtype))
    return Standardised(len(vectors), float(mean.norm()), _mean_cosine(vectors), _mean_cosine(after))


def take_map(base: SentenceTransformer, tuned: SentenceTransformer) -> None:
    """Append the map of a tuned model to the bare backbone that it was trained from; without a map nothing changes."""
    *_, last = tuned
    if len(tuned) != len(base) + 1 or not isinstance(last, Dense):
        return
    if last.linear.weight.count_nonzero() == len(last.linear.weight):  # diagonal, as `standardise` made it
        base.append(copy.deepcopy(last).to(device=base.device, dtype=base.dtype))


def _mean_cosine(vectors: Tensor) -> float:
    """Return the mean cosine of (N, D) vectors over pairs of two rows."""
    number = len(vectors)
    # |sum|^2 holds each pair twice, and N ones
    total = float(torch.nn.functional.normalize(vectors, dim=-1).sum(0).square().sum())
    return (total - number) / (number * (number - 1))


def set_instructions(model: RelevanceModel, table: Instructions) -> None:
    """Give a model a table of task instructions, which is saved with the model."""
    replaced = {*RESERVED, *(model.instructions.tasks if model.instructions is not None else ())}
    others = {name: text for name, text in (model.prompts or {}).items() if name not in replaced}
    model.instructions = table
    model.task = None
    # "query" and "document" hold the default's prompts; plain sentence-transformers finds a task by `prompt_name`
    model.prompts = {**others, **table.prompts()}
    tasks = [None, *table.tasks] if table.default is not None else list(table.tasks)
    check_prompt_borders(model, [table.prompt(task, "query", n) for task in tasks for n in range(table.choices(task))])


def check_prompt_borders(model: SentenceTransformer, prompts: Iterable[str]) -> None:
    """Refuse, by a ModelError, prompts whose last token reaches into the text."""
    for prompt in dict.fromkeys(prompts):
        tokens = _tokens(model, prompt)
        for text in BORDER_SAMPLES:
            # pooling without the prompt counts its tokens: a merged token takes the first token of every text with it
            if _tokens(model, prompt + text)[: len(tokens)] != tokens:
                raise ModelError(
                    f"prompt: got {prompt!r}, whose end the tokenizer joins with the text {text!r}; expected a border "
                    "between prompt and text; fix: end the template with a line break"
                )


def _tokens(model: SentenceTransformer, text: str) -> list[int]:
    """Return the tokens of a text without special tokens at its end."""
    features: dict[str, Any] = dict(model.preprocess([text]))
    tokens: list[int] = features["input_ids"][0].tolist()
    special = set(getattr(model.tokenizer, "all_special_ids", []))
    while tokens and tokens[-1] in special:
        tokens.pop()
    return tokens
