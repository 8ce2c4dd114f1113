"""The modules of a model, and the attention and pooling that make a bare backbone an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from bixse.encoders.loading.precision import rounding
from bixse.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SAMPLE_TEXT = "one two three four five six"
LONG_TEXT = " ".join([SAMPLE_TEXT] * 4)  # in a batch with it, the sample is padded
TOLERANCE = 1e-3
"""Largest difference between two unit embeddings that rounding explains in float32."""
ACTIVATIONS = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}
"""Activation in the config of a ModernBERT -> class of torch.nn that plain sentence-transformers loads."""


class BidirectionalTransformer(Transformer):
    """The Transformer of sentence-transformers for adapters on a decoder that sees the whole text.

    A folder of adapters holds no config.json, and the base model's own would silently make the decoder causal again.
    With this class in modules.json, plain `SentenceTransformer(folder)` asks for `trust_remote_code=True`, which
    imports this class from bixse. `build_encoder` and `RelevanceModel` know it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_model.config.is_causal = False


def parts_of(model: SentenceTransformer) -> Iterator[nn.Module]:
    """Yield each module of the model in order; the modules of its routes follow a router."""
    for module in model.children():
        yield module
        for route in _routes(module):
            yield from route.children()


def input_parts(model: SentenceTransformer) -> list[nn.Module]:
    """Return the modules that read the texts: the first module, or the first module per route of a router."""
    first = next(iter(model.children()))
    return [next(iter(route.children())) for route in _routes(first)] or [first]


def backbones(model: SentenceTransformer) -> list[Any]:
    """Return the parts that read texts with a transformers model."""
    return [part for part in input_parts(model) if getattr(part, "auto_model", None) is not None]


def first_position(part: nn.Module) -> int:
    """Return the position of the first token in a table of positions: RoBERTa counts from padding_idx + 1 on."""
    tables = [getattr(module, "position_embeddings", None) for module in part.modules()]
    padding = [getattr(table, "padding_idx", None) for table in tables]
    return max((index + 1 for index in padding if index is not None), default=0)


def switch_attention(model: SentenceTransformer, implementation: str | None) -> None:
    """Switch to another attention implementation of transformers; None takes the choice of loading."""
    for part in backbones(model):
        backbone = part.auto_model
        backbone.set_attn_implementation(implementation or backbone.get_correct_attn_implementation(None))


def set_attention(model: SentenceTransformer, name: str, bare: bool, bidirectional: bool | None) -> bool:
    """Make a bare decoder an encoder and set its attention; check the attention that is kept.

    Return True for a bare decoder.
    """
    decoder = bare and not all(sees_whole_text(part) for part in backbones(model))
    if decoder:
        prepare_decoder(model)
    if bidirectional or (bidirectional is None and decoder):
        make_bidirectional(model, name)
    else:
        check_attention(model, name)
    if decoder:
        check_padding(model, name)
    return decoder


def sees_whole_text(part: Any) -> bool:
    """Return True if changing the last token changes the state of the first token."""
    tokens = part.preprocess([SAMPLE_TEXT])["input_ids"]
    other = tokens.clone()
    other[0, -1] = tokens[0, len(tokens[0]) // 2] if tokens[0, len(tokens[0]) // 2] != tokens[0, -1] else tokens[0, 0]
    inputs = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in (tokens, other)]
    states = [_evaluated(part, features, part.auto_model.device)["token_embeddings"] for features in inputs]
    return bool((states[0][0, 0] - states[1][0, 0]).abs().max() > 1e-6 * states[0][0, 0].abs().max())


def make_bidirectional(model: SentenceTransformer, name: str) -> None:
    """Let every token of a decoder attend to the whole text (LLM2Vec, BehnamGhader et al. 2024, arXiv:2404.05961)."""
    for part in backbones(model):
        if sees_whole_text(part):
            continue
        # saved in config.json; from_pretrained(..., is_causal=False) is ignored, and some architectures ignore this too
        part.auto_model.config.is_causal = False
        if not sees_whole_text(part):
            raise ModelError(
                f"model {name!r}: got a {part.auto_model.config.model_type} decoder whose first token does not see "
                "the last one after its causal mask was switched off; expected attention to the whole text; fix: "
                "choose an architecture such as Llama, Qwen, Mistral or Gemma 3, or set `bidirectional: false`"
            )


def check_attention(model: SentenceTransformer, name: str) -> None:
    """Refuse a causal model whose saved configuration says `is_causal: false`."""
    # a change of the library can make the switch silently do nothing, and the embeddings wrong
    for part in backbones(model):
        if getattr(part.auto_model.config, "is_causal", None) is False and not sees_whole_text(part):
            raise ModelError(
                f"model {name!r}: got causal attention, although its configuration says "
                "is_causal: false; expected attention to the whole text; fix: load it with the version of "
                "transformers it was saved with"
            )


def check_padding(model: SentenceTransformer, name: str) -> None:
    """Refuse a decoder whose embedding of a text depends on its batch or on the side of the padding."""
    alone = _unit_embedding(model, [SAMPLE_TEXT])
    tokenizer = model.tokenizer
    side = tokenizer.padding_side
    try:
        for tried in ("right", "left"):
            tokenizer.padding_side = tried
            difference = float((_unit_embedding(model, [SAMPLE_TEXT, LONG_TEXT]) - alone).abs().max())
            rounded = rounding(alone.dtype)
            allowed = TOLERANCE if rounded == "float32" else 50 * TOLERANCE  # half precision rounds more
            if not difference <= allowed:  # also NaN
                raise ModelError(
                    f"model {name!r}: got another embedding of a text when it is padded on the {tried} (a difference "
                    f"of {difference:.3g}); expected the same within {allowed:g}, as it computes in {rounded}; fix: "
                    "check that the tokenizer has a padding token of its own and the model takes an attention mask"
                )
    finally:
        tokenizer.padding_side = side


def prepare_decoder(model: SentenceTransformer) -> None:
    """Give a bare decoder plain text as input, a padding token, and pooling without the instruction."""
    for part in backbones(model):
        tokenizer = part.tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        # sentence-transformers puts every text into the chat template: all would begin with the same system message,
        # and short texts would be hardly anything else
        if getattr(tokenizer, "chat_template", None) is not None:
            tokenizer.chat_template = None
            part.modality_config, part.module_output_name = part.infer_modalities(part.auto_model, part.processor)
            part.input_formatter.supported_modalities = list(part.modality_config)
    for module in model.children():
        if isinstance(module, Pooling):
            module.include_prompt = False


def _routes(module: nn.Module) -> list[nn.Module]:
    return list(module.sub_modules.children()) if isinstance(module, Router) else []


def _unit_embedding(model: SentenceTransformer, texts: list[str]) -> Tensor:
    embeddings = _evaluated(model, model.preprocess(texts), model.device)["sentence_embedding"]
    return torch.nn.functional.normalize(embeddings[0], dim=0)


@torch.no_grad()
def _evaluated(module: Any, features: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    was_training = module.training
    module.eval()
    try:
        computed: dict[str, Tensor] = module(batch_to_device(features, device))
        return computed
    finally:
        module.train(was_training)


def pool_backbone(model: SentenceTransformer, files: dict[str, Any] | None, name: str, pooling: str | None) -> None:
    """Put the chosen pooling after a bare backbone; raises ModelError for a pooling that it cannot have or save.

    `files` are `RelevanceModel.backbone_files`.
    """
    if files is None:
        if pooling is not None:
            raise ModelError(
                f"pooling: got {pooling!r} for the sentence-transformers model {name!r}, which has its own; expected "
                "none; fix: leave `pooling` out, or name the bare backbone it was made from"
            )
        return
    part: Any = next(iter(model.children()))
    if getattr(part, "module_output_name", None) != "token_embeddings":
        if pooling is not None:
            raise ModelError(
                f"model {name!r}: got a backbone that gives one vector per text, and pooling {pooling!r}; expected one "
                "that gives one state per token; fix: leave `pooling` out"
            )
        return
    head: list[nn.Module] = []
    if pooling in (None, "cls-head"):
        # BiXSE paper: "the representation of the first token through the model's standard pooler"
        if part.auto_model.config.model_type == "modernbert":
            head = _modernbert_head(part.auto_model, files, name, optional=pooling is None)
        elif pooling == "cls-head":
            raise _no_head(name, f"a backbone of type {part.auto_model.config.model_type}", "a ModernBERT")
    mode: Literal["cls", "mean"] = "cls" if head or pooling == "cls" else "mean"
    del model[1:]  # sentence-transformers chose the last token if config.json names a causal language model
    # its own modules alone, so that plain `SentenceTransformer(folder)` loads them
    for module in (Pooling(part.get_embedding_dimension(), mode), *head):
        model.append(module.to(device=part.auto_model.device, dtype=part.auto_model.dtype))


def _modernbert_head(backbone: Any, files: dict[str, Any], name: str, optional: bool) -> list[nn.Module]:
    """Read dense, activation and norm as ModernBertForSequenceClassification does; [] for a lacking optional head."""
    from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead, ModernBertPreTrainedModel

    class HeadAlone(ModernBertPreTrainedModel):
        """A model of the weights `head.*` of a checkpoint alone."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.head = ModernBertPredictionHead(config)
            self.post_init()  # type: ignore[no-untyped-call]

    try:
        loaded: Any = HeadAlone.from_pretrained(**files, dtype=backbone.dtype, output_loading_info=True)
    except Exception as error:
        raise ModelError(
            f"model {name!r}: got {type(error).__name__} while reading its head; expected weights that fit its "
            "config.json; fix: check that both belong together, or choose pooling 'cls' or 'mean'"
        ) from error
    head, missing = loaded[0].head, sorted(loaded[1]["missing_keys"])
    if optional and len(missing) == len(list(head.parameters())):
        return []
    if missing:
        raise _no_head(name, f"no weights for its head ({', '.join(missing)})")
    config = backbone.config
    if config.classifier_activation not in ACTIVATIONS:
        raise _no_head(name, f"a head with the activation {config.classifier_activation!r}", ", ".join(ACTIVATIONS))
    norm = LayerNorm(config.hidden_size)
    if head.norm.eps != norm.norm.eps:  # the module has no setting for it
        raise _no_head(name, f"a head with norm_eps {config.norm_eps}", f"norm_eps {norm.norm.eps}")
    norm.norm.weight.data.copy_(head.norm.weight)
    if head.norm.bias is not None:
        norm.norm.bias.data.copy_(head.norm.bias)
    else:  # the module always has a bias: it stays 0
        norm.norm.bias.requires_grad_(False)
    linear, activation = head.dense, getattr(nn, ACTIVATIONS[config.classifier_activation])()
    dense = Dense(linear.in_features, linear.out_features, linear.bias is not None, activation)
    dense.linear.load_state_dict(linear.state_dict())
    return [dense, norm]


def _no_head(name: str, got: str, expected: str = "them in the model's files") -> ModelError:
    return ModelError(
        f"model {name!r}: got {got}; expected {expected}; fix: choose pooling 'cls' (the first token as it is) or "
        "'mean', or a checkpoint that holds the head"
    )
