"""Encode texts for search: sorted by length, each text once, in the chosen precision."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pprint import pformat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bixse.encoders.embedding import embed_features
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.backbones import parts_of
from bixse.encoders.loading.precision import Precision, autocast, resolve_precision
from bixse.machine import ahead

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.relevance import Kind

TEXTS_PER_BLOCK: Mapping[str, int] = defaultdict(lambda: 512, cuda=4096)
"""Texts tokenised together, per device type. They are sorted by length, so that a block has little padding."""
BLOCKS_AHEAD: Mapping[str, int] = defaultdict(int, cuda=2)
"""Blocks that a thread tokenises ahead. A CPU spends 2 % of the time on tokens, and needs all cores for the encoder."""
_ONLY_IDS = {
    "text": {"padding": False, "return_attention_mask": False, "return_token_type_ids": False},
    "common": {"return_tensors": None},
}
"""Options of `preprocess` for lists of token ids alone: the other lists take longer than tokenising on 16 cores."""


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
    prompt: str | None = None,
) -> NDArray[np.float32]:
    """Embed N texts, (N, D) L2-normalised, as `encode_query` or `encode_document` would.

    A text without tokens is embedded as 0. `progress` gets the number of texts since its last call. `prompt` replaces
    the prompt of the model; "" means no prompt.
    """
    return encode_and_count(model, texts, kind, precision, progress, prompt)[0]


def encode_and_count(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
    prompt: str | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed texts as `encode_texts` does; also return (N,) 1 for a text that is longer than the model reads, else 0."""
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row_of)
    before = prompt_for(model, kind) if prompt is None else prompt or None
    if progress is not None and len(distinct) < len(texts):
        progress(len(texts) - len(distinct))
    parts = encode_here(model, distinct, kind, before, resolve_precision(precision, model.device), progress)
    if len(distinct) < len(texts):
        rows = [row_of[text] for text in texts]
        return parts[0][rows], parts[1][rows]
    return parts


@torch.no_grad()  # no inference mode: it makes buffers of a sharded encoder that training cannot use
def encode_here(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    prompt: str | None,
    precision: Precision,
    progress: Callable[[int], None] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed distinct texts, each after `prompt`; see `encode_and_count`."""
    was_training, device, on_gpu = model.training, model.device, model.device.type == "cuda"
    model.eval()
    order, size = by_length(texts), TEXTS_PER_BLOCK[device.type]
    blocks = [order[start : start + size] for start in range(0, len(texts), size)]
    embeddings = np.zeros((len(texts), model.get_embedding_dimension() or 0), dtype=np.float32)
    is_cut = np.zeros(len(texts), dtype=np.float32)
    launched: deque[tuple[NDArray[np.int64], torch.Tensor, torch.cuda.Event | None]] = deque()

    def save_oldest() -> None:
        rows, block, copied = launched.popleft()
        if copied is not None:
            copied.synchronize()
        embeddings[rows] = block.numpy()
        if progress is not None:
            progress(len(rows))

    try:
        tokenise = _tokeniser(model, texts, order, kind, prompt)
        with closing(ahead(tokenise, blocks, BLOCKS_AHEAD[device.type])) as tokenised:
            for rows, (features, cut) in zip(blocks, tokenised, strict=True):
                is_cut[rows] = cut
                for name, value in features.items():
                    if isinstance(value, torch.Tensor):
                        features[name] = value.to(device, non_blocking=on_gpu)
                with autocast(device, precision):
                    block = embed_features(model, features)
                block = torch.nn.functional.normalize(block.float(), dim=-1).to("cpu", non_blocking=on_gpu)
                event = torch.cuda.current_stream(device).record_event() if on_gpu else None
                launched.append((rows, block, event))
                # a GPU computes this block while the one before is read
                if event is None or len(launched) > 1:
                    save_oldest()
        while launched:
            save_oldest()
    finally:
        model.train(was_training)
    return embeddings, is_cut


def _tokeniser(
    model: SentenceTransformer, texts: Sequence[str], order: NDArray[np.int64], kind: Kind, prompt: str | None
) -> Callable[[NDArray[np.int64]], tuple[dict[str, Any], ArrayLike]]:
    """Return a function from rows of the texts to features, and 1 or True for a text that was cut."""
    preprocess: Callable[..., Any] = partial(model.preprocess, prompt=prompt, task=kind)
    sample = [texts[row] for row in order[[0, -1]]] if BLOCKS_AHEAD[model.device.type] and len(order) else []
    only_ids = bool(sample) and _ids_suffice(preprocess, sample)
    options = {"processing_kwargs": _ONLY_IDS} if only_ids else {}
    pad = getattr(getattr(model, "tokenizer", None), "pad_token_id", None) or 0

    def tokenise(rows: NDArray[np.int64]) -> tuple[dict[str, Any], ArrayLike]:
        features = preprocess([texts[row] for row in rows], **options)
        # slow tokenizers do not tell what they cut
        cut = [bool(part.overflowing) for part in getattr(features, "encodings", None) or ()] or 0
        tensors, ids = dict(features), features.get("input_ids")
        if only_ids:
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            tensors |= padded_right(np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum()), lengths, pad)
        if model.device.type == "cuda":
            tensors = {n: v.pin_memory() if isinstance(v, torch.Tensor) else v for n, v in tensors.items()}
        return tensors, cut

    return tokenise


def _ids_suffice(preprocess: Callable[..., dict[str, Any]], sample: list[str]) -> bool:
    """Return True if features of these texts follow from the lists of their token ids."""
    complete = preprocess(sample)
    mask = complete.get("attention_mask")
    if complete.get("modality") != "text" or not isinstance(mask, torch.Tensor):
        return False
    ids = [row[is_token].tolist() for row, is_token in zip(complete.pop("input_ids"), mask.bool(), strict=True)]
    others = [v for n, v in complete.items() if n != "attention_mask" and isinstance(v, torch.Tensor)]
    # token types are 0 in a single text, as models assume without them
    simple = not any(bool(values.any()) for values in others)
    return simple and bool(ids == preprocess(sample, processing_kwargs=_ONLY_IDS)["input_ids"])


def padded_right(ids: NDArray[Any], lengths: NDArray[np.int64], pad: int) -> dict[str, Any]:
    """Pad the ids of N texts on the right by NumPy: torch would start threads. `lengths` (N,) stay an array."""
    is_token = np.arange(max(1, lengths.max())) < lengths[:, None]
    tokens = np.full(is_token.shape, pad, dtype=np.int64)
    tokens[is_token] = ids
    tensors = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(is_token.astype(np.int64))}
    return {**tensors, "lengths": lengths}


def by_length(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the (N,) positions of the texts, shortest first."""
    return np.argsort([len(text) for text in texts], kind="stable")


def embeddings_key(model: SentenceTransformer, portable: bool = False) -> str:
    """Hash everything that a document's embedding depends on, but not its text; `portable` leaves out the precision."""
    digest = hashlib.sha256()
    for name, state in sorted(model.state_dict().items()):
        for part in state if isinstance(state, tuple) else (state,):  # a quantised layer keeps weight and bias as one
            if not isinstance(part, torch.Tensor):
                digest.update(f"{name} {part!r}".encode())
                continue
            # some machines load half-precision weights as float32, others do not
            dtype = torch.float32 if portable and part.is_floating_point() else part.dtype
            tensor = part.dequantize() if part.is_quantized else part
            digest.update(f"{name} {dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())
    for module in parts_of(model):
        backbone = getattr(getattr(module, "auto_model", None), "config", None)
        options: dict[str, Any] = getattr(module, "get_config_dict", dict)()
        # without _name_or_path: a moved folder has equal embeddings
        settings = (options, {n: v for n, v in backbone.to_dict().items() if n != "_name_or_path"} if backbone else {})
        digest.update(pformat([type(module).__name__, settings]).encode())  # sorts keys, also in a router
        digest.update(tokenizer_content(getattr(module, "tokenizer", None)).encode())
        digest.update(repr(getattr(module, "max_seq_length", None)).encode())
    in_bf16 = not portable and resolve_precision(device=model.device) == "bfloat16"
    digest.update(repr((prompt_for(model, "document"), model.truncate_dim, in_bf16)).encode())
    return digest.hexdigest()[:32]


def tokenizer_content(tokenizer: Any) -> str:
    """Return the settings that decide the tokens of a text, without the length limit; equal after saving."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    sides = [getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")]
    if hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        # every call sets truncation and padding anew
        lasting = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
        return json.dumps([sides, lasting], sort_keys=True)
    words = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", {})
    return json.dumps([type(tokenizer).__name__, sides, words, special], sort_keys=True, default=str)
