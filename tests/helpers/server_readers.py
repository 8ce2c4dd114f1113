"""Two servers' readers of a model's folder, from the field lists of their own sources; each returns what it serves.

A server that refuses the folder raises `RefusedError`. They share nothing with `bixse.encoders.serving`.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError
from safetensors.numpy import load_file


class RefusedError(Exception):
    pass


class Layer(NamedTuple):
    """A linear layer that both servers apply to the pooled embedding, before they normalise it."""

    weight: Any
    bias: Any


class Served(NamedTuple):
    pooling: str | None
    """None: the default of the architecture, or no pooling at all."""
    length: int
    normalised: bool
    prompts: dict[str, str]
    layers: tuple[Layer, ...] = ()


class PoolConfig(BaseModel):  # text-embeddings-inference, router/src/lib.rs: the first two fields have no default
    pooling_mode_cls_token: bool
    pooling_mode_mean_tokens: bool
    pooling_mode_lasttoken: bool = False


class DenseConfig(BaseModel):  # text-embeddings-inference, backends/candle/src/layers/dense.rs
    in_features: int = Field(ge=0)
    out_features: int = Field(ge=0)
    bias: bool
    activation_function: Literal["torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"]


class STConfig(BaseModel):
    max_seq_length: int = Field(ge=0, lt=2**64)  # usize


class NewSTConfig(BaseModel):
    prompts: dict[str, str] | None = None


class ModelConfig(BaseModel):
    architectures: list[str]
    model_type: str
    max_position_embeddings: int | None = None


def text_embeddings_inference(folder) -> Served:
    try:
        config = ModelConfig.model_validate_json((folder / "config.json").read_bytes())
        pool = PoolConfig.model_validate_json((folder / "1_Pooling" / "config.json").read_bytes())
        limit = STConfig.model_validate_json((folder / "sentence_bert_config.json").read_bytes())
        new = NewSTConfig.model_validate_json((folder / "config_sentence_transformers.json").read_bytes())
    except (ValidationError, OSError) as error:
        raise RefusedError(str(error)) from error
    if not (folder / "tokenizer.json").is_file() or config.max_position_embeddings is None:
        raise RefusedError("tokenizer or positions")
    modes = {"cls": pool.pooling_mode_cls_token, "mean": pool.pooling_mode_mean_tokens,
             "lasttoken": pool.pooling_mode_lasttoken}  # fmt: skip
    pooling = next((name for name, is_set in modes.items() if is_set), None)
    if pooling is None:
        raise RefusedError("Pooling config is not supported")
    return Served(pooling, limit.max_seq_length, True, new.prompts or {}, layers(folder))


def layers(folder) -> tuple[Layer, ...]:
    """Return the layers of modules whose type has the name before sentence-transformers 5.4; both read no other."""
    dense = []
    for module in content(folder, "modules.json"):
        if module["type"] == "sentence_transformers.models.Dense":
            config = DenseConfig.model_validate(content(folder, module["path"], "config.json"))
            weights = load_file(folder / module["path"] / "model.safetensors")
            assert weights["linear.weight"].shape == (config.out_features, config.in_features)
            assert config.activation_function.endswith("Identity")
            dense.append(Layer(weights["linear.weight"], weights["linear.bias"] if config.bias else 0.0))
    return tuple(dense)


def content(folder, *names):
    return json.loads(folder.joinpath(*names).read_bytes())


def vllm_before_september_2026(folder) -> Served:
    modules = content(folder, "modules.json")
    length = content(folder, "config.json")["max_position_embeddings"]
    text = content(folder, "sentence_bert_config.json")
    if "max_seq_length" in text and "do_lower_case" in text:
        length = text["max_seq_length"]
    paths = [module["path"] for module in modules if module["type"] == "sentence_transformers.models.Pooling"]
    if not paths:
        return Served(None, length, True, {})
    pooling = None
    for key, value in content(folder, paths[0], "config.json").items():
        word = key.replace("pooling_mode_", "").split("_", 1)[0].upper()
        word = "LAST" if "LASTTOKEN" in word else word
        if value is True and word in ("CLS", "LAST", "MEAN"):
            pooling = {"CLS": "cls", "LAST": "lasttoken", "MEAN": "mean"}[word]
    normalised = any(module["type"] == "sentence_transformers.models.Normalize" for module in modules)
    return Served(pooling, length, normalised, {}, layers(folder))
