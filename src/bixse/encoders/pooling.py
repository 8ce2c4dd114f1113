"""From the token states of a bare backbone to one embedding: the mean, the first token, or the first token's head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from bixse.errors import InputError, ModelError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn

    from bixse.encoders.relevance_model import RelevanceModel

PoolingMode: TypeAlias = Literal["mean", "cls", "cls-head"]
"""How the token states of a bare backbone become an embedding.

"mean": their mean. "cls": the state of the first token. "cls-head": that state through the head that the backbone was
pretrained with: ModernBERT's prediction head (dense, activation, norm), BERT's pooler (dense, tanh).
"""
ACTIVATIONS = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}
"""Activation of a ModernBERT's configuration -> the class of torch.nn that plain sentence-transformers loads."""
POOLER_WEIGHTS = {"dense.weight", "dense.bias"}


def check_pooling(pooling: str | None) -> None:
    """Refuse, by an InputError, a word that is none of `PoolingMode`."""
    known = get_args(PoolingMode)
    if pooling is not None and pooling not in known:
        raise InputError(
            f"pooling: got {pooling!r}; expected one of {', '.join(map(repr, known))}; "
            f"fix: {did_you_mean(str(pooling), known)}"
        )


def pool_backbone(model: RelevanceModel, name: str, pooling: PoolingMode | None, missing: Collection[str]) -> None:
    """Put the chosen pooling after a bare backbone; a sentence-transformers model keeps its own.

    All of it is sentence-transformers' own modules, so that plain `SentenceTransformer(folder)` loads it. Left to
    itself the library pools the last token of a backbone whose config.json names a causal language model.

    Without `pooling`, ModernBERT's head is taken where the checkpoint holds one (BiXSE paper: "the representation of
    the first token through the model's standard pooler"), else the mean. `missing` names the parameters that the
    checkpoint lacks. Raises ModelError for a pooling or a head that this model cannot have, or that cannot be saved.
    """
    if model.backbone_files is None:
        if pooling is not None:
            raise ModelError(
                f"pooling: got {pooling!r} for the sentence-transformers model {name!r}, which has its own; expected "
                "none; fix: leave `pooling` out, or name the bare backbone it was made from"
            )
        return
    from sentence_transformers.sentence_transformer.modules import Pooling

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
        if part.auto_model.config.model_type == "modernbert":
            head = _modernbert_head(part.auto_model, model.backbone_files, name, optional=pooling is None)
        elif pooling == "cls-head":
            head = _pooler(part.auto_model, name, missing)
    mode: Literal["cls", "mean"] = "cls" if head or pooling == "cls" else "mean"
    del model[1:]
    for module in (Pooling(part.get_embedding_dimension(), mode), *head):
        model.append(module.to(device=part.auto_model.device, dtype=part.auto_model.dtype))


def _modernbert_head(backbone: Any, files: dict[str, Any], name: str, optional: bool) -> list[nn.Module]:
    """Dense, activation and norm as ModernBertForSequenceClassification reads them; [] where there may be none."""
    from sentence_transformers.sentence_transformer.modules import LayerNorm
    from torch import nn
    from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead, ModernBertPreTrainedModel

    class HeadAlone(ModernBertPreTrainedModel):
        """Reads the weights `head.*` of a checkpoint and no others."""

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
    return [_dense(head.dense, getattr(nn, ACTIVATIONS[config.classifier_activation])()), norm]


def _pooler(backbone: Any, name: str, missing: Collection[str]) -> list[nn.Module]:
    from torch import nn

    pooler = getattr(backbone, "pooler", None)
    if pooler is None:
        kind = backbone.config.model_type
        raise _no_head(name, f"a backbone of type {kind} without a pooler", "one that has a pooler, as BERT")
    lacking = sorted(key for key in missing if key.startswith("pooler."))
    if lacking:
        raise _no_head(name, f"no weights for its pooler ({', '.join(lacking)})")
    is_berts = {key for key, _ in pooler.named_parameters()} == POOLER_WEIGHTS
    if not is_berts or not isinstance(getattr(pooler, "activation", None), nn.Tanh):
        raise _no_head(name, f"a pooler of type {type(pooler).__name__}", "a dense layer with tanh, as BERT has")
    return [_dense(pooler.dense, nn.Tanh())]


def _dense(linear: nn.Linear, activation: nn.Module) -> nn.Module:
    from sentence_transformers.sentence_transformer.modules import Dense

    dense = Dense(linear.in_features, linear.out_features, linear.bias is not None, activation)
    dense.linear.load_state_dict(linear.state_dict())
    return dense


def _no_head(name: str, got: str, expected: str = "them in the model's files") -> ModelError:
    return ModelError(
        f"model {name!r}: got {got}; expected {expected}; fix: choose pooling 'cls' (the first token as it is) or "
        "'mean', or a checkpoint that holds the head"
    )
