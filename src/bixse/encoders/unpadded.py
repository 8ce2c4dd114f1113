"""The features of one pass: padded to its longest text, or in one row, with attention inside each text."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from bixse.encoders.processes import is_sharded
from bixse.errors import first_fault

varlen_attn: Any = None
with suppress(ImportError):  # before PyTorch 2.10
    from torch.nn.attention.varlen import varlen_attn

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Features: TypeAlias = Mapping[str, Any]
"""Tokenised texts for models of sentence-transformers: `input_ids` (N, T), `attention_mask` (N, T), ...
For static embeddings, `input_ids` holds the tokens of all texts in one row, and `offsets` (N,) their starts."""
Encoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Tensor]]
"""A SentenceTransformer, or the distributed wrapper around one."""


class _Name(str):
    """A name that is pickled as "sdpa", since the processes of `encode` on several GPUs do not know it."""

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("sdpa",)


NAME = _Name("bixse_varlen")
"""Name of the attention among those of transformers."""
LENGTHS = (3, 40, 11)
"""Tokens of texts that are read with and without padding for comparison; a text as long as the model reads follows."""
LONGEST = 8192
"""Most tokens of that text."""
DISTANCE = 1e-4
"""Allowed distance of the two unit embeddings of a text, in addition to four times that of half precision."""
HALF_DISTANCE = 0.05
"""Allowed distance if the weights are in half precision, whose own distance is unknown."""
log = logging.getLogger(__name__)


def embed_pass(model: Encoder, part: Features) -> Tensor:
    """Embed the texts of one pass, padded or flat."""
    embeddings = model(dict(part))["sentence_embedding"]  # the encoder adds its states to the dictionary
    if "cu_seq_lens_k" not in part:
        return embeddings
    segments = (len(part["cu_seq_lens_q"]) - 1) // (len(part["cu_seq_lens_k"]) - 1)
    return embeddings[segments - 1 :: segments]  # of a prompt that is not pooled and the rest: the rest


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for the device."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def take_rows(features: Features, tokens: NDArray[np.bool_], rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the chosen rows, without token positions that are padding in all rows (left or right).

    `tokens` is the (N, T) mask of the features on the host.
    """
    mask: Tensor = features["attention_mask"]
    columns = np.flatnonzero(tokens[rows].any(axis=0))
    row, column = on_device(rows, mask.device), on_device(columns, mask.device)
    return map_tensors(features, mask, lambda x: x[row[:, None], column], lambda x: x[row])


def map_tensors(
    features: Features, mask: Tensor, tokens: Callable[[Tensor], Tensor], texts: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """Apply `tokens` to tensors with an entry per token and `texts` to tensors with an entry per text."""
    mapped = dict(features)
    for name, value in features.items():
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
            mapped[name] = tokens(value)
        elif isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]:
            mapped[name] = texts(value)
    return mapped


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend inside each text of (1, H, S, d) flat queries, keys and values; padded texts go through SDPA.

    Flat attention has no dropout. `cu_seq_lens_k` are the (N + 1,) borders of the texts, and `max_length_k` is the
    number of tokens of the longest text.
    """
    if "cu_seq_lens_k" not in options:
        options |= {"scaling": scaling, "sliding_window": sliding_window, "is_causal": is_causal}
        from transformers import AttentionInterface

        padded: tuple[Tensor, None] = AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
        return padded
    if unknown := {name for name in ("position_bias", "softcap", "s_aux") if options.get(name) is not None}:
        raise NotImplementedError(f"attention without padding: got {', '.join(unknown)}")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    longest, left = options["max_length_k"], -1
    if sliding_window is not None:
        # as transformers' masks: a decoder that was made bidirectional sees one token more on each side
        reach = sliding_window - (is_causal is not False)
        left = reach if reach < longest - 1 else -1
    window = (left, 0 if causal else left)
    return _varlen((query, key, value), options["cu_seq_lens_k"], longest, scaling, window), None


def _varlen(
    heads: Sequence[Tensor], starts: Tensor, longest: int, scale: float | None, window: tuple[int, int]
) -> Tensor:
    """Return (1, S, H, d) by PyTorch's kernel, which takes half precision alone."""
    query, key, value = heads
    # rotary positions make float32 of queries and keys in autocast
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else value.dtype
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {"scale": scale, "window_size": window}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:  # not in PyTorch 2.11
        options["enable_gqa"] = groups > 1
    elif groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    flat = [part[0].transpose(0, 1).to(dtype) for part in (query, key, value)]
    attended: Tensor = varlen_attn(*flat, starts, starts, longest, longest, **options)
    return attended[None]


def is_possible(model: Any, features: Features, device: torch.device) -> bool:
    """Return True if an encoder may read texts without padding on a device in the precision in use."""
    if not has_kernel(model, device) or is_sharded(model):
        return False
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from bixse.encoders.loading.backbones import backbones, input_parts, parts_of

    if not isinstance(model, SentenceTransformer):
        return False
    parts: list[Any] = backbones(model)
    if not parts or len(parts) < len(input_parts(model)):
        return False
    modes = {module.pooling_mode for module in parts_of(model) if isinstance(module, Pooling)}
    implementations = {part.auto_model.config._attn_implementation for part in parts}
    return (
        implementations <= {"sdpa", NAME}
        and all(part.auto_model.is_backend_compatible() for part in parts)
        # the state of the first token after a prompt may not exist
        and (modes == {"mean"} or not _leaves_prompt_out(model, features))
    )


def has_kernel(model: Any, device: torch.device) -> bool:
    """Return True if PyTorch has the kernel for a device and the precision in use."""
    if device.type != "cuda" or varlen_attn is None:
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else getattr(model, "dtype", None)
    return dtype in (torch.bfloat16, torch.float16)


def switch(model: SentenceTransformer) -> None:
    """Let an encoder read texts with and without padding; without any effect on what is saved."""
    from transformers import AttentionInterface, AttentionMaskInterface

    from bixse.encoders.loading.backbones import backbones

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, AttentionMaskInterface()["sdpa"])  # the masks of padded texts
    part: Any
    for part in backbones(model):  # for good: gradient checkpointing calls layers again in the backward pass
        if part.auto_model.config._attn_implementation != NAME:
            part.auto_model.set_attn_implementation(NAME)


@torch.no_grad()
def agrees(model: SentenceTransformer, features: Features) -> bool:
    """Return True if texts that are read without padding have the embeddings they have one by one."""
    from bixse.encoders.loading.backbones import backbones

    was_training = model.training
    model.eval()
    before = [(part.auto_model, part.auto_model.config._attn_implementation) for part in backbones(model)]
    try:
        texts, tokens = _artificial(model, features)
        rows = np.arange(len(tokens))
        singles = [take_rows(texts, tokens, row) for row in np.split(rows, len(rows))]
        alone = torch.cat([embed_pass(model, single) for single in singles])
        allowed = HALF_DISTANCE
        if model.dtype == torch.float32:  # a fixed limit is loose for a model whose texts are much alike
            with torch.autocast(model.device.type, enabled=False):
                exact = torch.cat([embed_pass(model, single) for single in singles])
            rounding = _distance(alone, exact)
            # accelerate's wrapper of the encoder's forward rounds the exact embeddings too
            if rounding > DISTANCE or not torch.is_autocast_enabled(model.device.type):
                allowed = DISTANCE + 4 * rounding
        switch(model)
        distance = _distance(embed_pass(model, take_flat(model, texts, tokens, rows)), alone)
        reason = f"embeddings differ by {distance:.3g}, more than {allowed:.3g}"
        if distance <= allowed:  # not NaN
            return True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a model that takes no flat texts, or of a kernel for other GPUs
        reason = f"{type(error).__name__}: {first_fault(error)}"
    finally:
        model.train(was_training)
        torch.clear_autocast_cache()  # before PyTorch 2.11, weights that are rounded here would get no gradient
    for backbone, implementation in before:
        backbone.set_attn_implementation(implementation)
    log.warning("attention without padding is left out, passes are padded: %s", reason)
    return False


def _distance(some: Tensor, others: Tensor) -> float:
    """Return the largest distance between the unit vectors of two (N, D) tensors."""
    return float((normalize(some.float(), dim=-1) - normalize(others.float(), dim=-1)).norm(dim=-1).max())


def _artificial(model: SentenceTransformer, features: Features) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """Return features and (N, T) mask of texts of random tokens, in the form of the given features."""
    from bixse.encoders.loading.backbones import backbones, first_position

    part: Any
    longest, vocabulary = LONGEST, LONGEST
    padding = 0
    for part in backbones(model):
        config = part.auto_model.config.get_text_config()
        vocabulary = min(vocabulary, part.auto_model.get_input_embeddings().num_embeddings)
        window = getattr(config, "sliding_window", None) or 0
        positions = (getattr(config, "max_position_embeddings", None) or LONGEST) - first_position(part)
        longest = min(longest, positions, part.max_seq_length or LONGEST, max(window, max(LENGTHS)) + 8)
        padding = getattr(config, "pad_token_id", None) or 0
    lengths = np.minimum([*LENGTHS, longest], longest)
    tokens = np.arange(longest) < lengths[:, None]
    ids = np.random.default_rng(0).integers(vocabulary, size=tokens.shape)
    ids[ids == padding] = (padding + 1) % vocabulary  # RoBERTa counts no positions for it
    mask: Tensor = features["attention_mask"]
    shape = tokens.shape
    texts = map_tensors(
        features,
        mask,
        lambda value: value.new_zeros(*shape, *value.shape[2:]),
        lambda value: value.new_zeros(shape[0], *value.shape[1:]),
    )
    on = {"input_ids": on_device(ids, mask.device), "attention_mask": on_device(tokens.astype(np.int64), mask.device)}
    return {**texts, **on}, tokens


def take_flat(
    model: SentenceTransformer, features: Features, tokens: NDArray[np.bool_], rows: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the chosen rows as one text of S tokens, with the borders that attention and pooling read.

    `tokens` is the (N, T) mask of the features on the host. `cu_seq_lens_k` are the borders of the texts for attention,
    `cu_seq_lens_q` those of the segments that `Pooling` reads. If it leaves a prompt out, a text has two segments.
    """
    from bixse.encoders.loading.backbones import backbones, first_position

    mask: Tensor = features["attention_mask"]
    lengths = tokens[rows].sum(axis=1)
    chosen, columns = np.nonzero(tokens[rows])
    index = on_device(rows[chosen] * tokens.shape[1] + columns, mask.device)
    where = on_device(rows, mask.device)
    flat = map_tensors(features, mask, lambda x: x.flatten(0, 1)[index][None], lambda x: x[where])
    segments = lengths
    if _leaves_prompt_out(model, features):
        prompt = np.minimum(lengths, flat["prompt_length"])
        segments = np.stack([prompt, lengths - prompt], axis=1).ravel()
    flat.pop("prompt_length", None)
    starts = _borders(lengths)
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths) + max(map(first_position, backbones(model)))
    return flat | {
        # transformers takes a mask of four dimensions as it is, and makes none
        "attention_mask": mask.new_ones(1, 1, 1, 1),
        "position_ids": on_device(positions[None], mask.device),
        "cu_seq_lens_q": on_device(_borders(segments), mask.device),
        "cu_seq_lens_k": on_device(starts, mask.device),
        "max_length_q": int(lengths.max()),
        "max_length_k": int(lengths.max()),
        "seq_idx": on_device(np.repeat(np.arange(len(segments)), segments)[None], mask.device),
    }


def _borders(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _leaves_prompt_out(model: SentenceTransformer, features: Features) -> bool:
    from sentence_transformers.sentence_transformer.modules import Pooling

    from bixse.encoders.loading.backbones import parts_of

    parts: Sequence[Any] = [module for module in parts_of(model) if isinstance(module, Pooling)]
    return bool(features.get("prompt_length")) and not all(part.include_prompt for part in parts)
