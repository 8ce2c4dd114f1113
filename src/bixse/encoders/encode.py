"""Encode texts for search, in one process or several: sorted by length, each text once, in the chosen precision."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import parent_process
from pprint import pformat
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers.util import batch_to_device
from torch import multiprocessing

from bixse.encoders.embedding import embed_features, take_rows
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.backbones import parts_of
from bixse.encoders.loading.precision import autocast, resolve_precision
from bixse.errors import BixseError, InputError
from bixse.machine import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.encoders.loading.precision import Precision
    from bixse.relevance import Kind

TEXTS_PER_BLOCK = 512
"""Texts tokenised together. They are sorted by length, so that a block has little padding."""
FEWEST_TEXTS_SHARED = 64
"""Lowest number of texts to share out: sending fewer takes longer than encoding them in this process."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
_model: SentenceTransformer  # of a pool's process: sent once at its start, not with each block


def encoding_device(model: SentenceTransformer) -> torch.device:
    """Return the device of the model, or the first device of its processes."""
    return torch.device(POOLS[model].devices[0]) if model in POOLS else model.device


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
    prompt: str | None = None,
) -> NDArray[np.float32]:
    """Embed N texts, (N, D) L2-normalised, as `encode_query` or `encode_document` would; see `encode_on`.

    A text without tokens is embedded as 0. `progress` gets the number of texts since its last call. `prompt` replaces
    the model's own prompt; "" is none.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row_of)
    before = prompt_for(model, kind) if prompt is None else prompt or None
    given = (distinct, kind, before, resolve_precision(precision, encoding_device(model)), progress)
    if progress is not None and len(distinct) < len(texts):
        progress(len(texts) - len(distinct))
    pool = POOLS.get(model)
    if pool is not None and len(distinct) >= FEWEST_TEXTS_SHARED:
        embeddings = pool.encode(*given)
    else:
        embeddings = encode_here(model, *given)
    return embeddings if len(distinct) == len(texts) else embeddings[[row_of[text] for text in texts]]


@torch.no_grad()  # no inference mode: it makes buffers of a sharded encoder that training cannot use
def encode_here(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    prompt: str | None,
    precision: Precision,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts in this process, each after `prompt`; see `encode_texts`."""
    was_training = model.training
    model.eval()
    order = by_length(texts)
    dimensions = model.get_embedding_dimension() or 0
    embeddings = np.zeros((len(texts), dimensions), dtype=np.float32)
    try:
        for start in range(0, len(texts), TEXTS_PER_BLOCK):
            rows = order[start : start + TEXTS_PER_BLOCK]
            features = model.preprocess([texts[row] for row in rows], prompt=prompt, task=kind)
            # without special tokens, an empty text has no token: models crash or give NaN
            number, with_tokens = len(rows), _with_tokens(features.get("attention_mask"))
            if with_tokens is not None and len(with_tokens) < number:
                rows = rows[with_tokens.numpy()]
                features = take_rows(features, features["attention_mask"], with_tokens)
            if len(rows):
                features = batch_to_device(dict(features), model.device)
                with autocast(model.device, precision):
                    block = embed_features(model, features)
                embeddings[rows] = torch.nn.functional.normalize(block.float(), dim=-1).cpu().numpy()
            if progress is not None:
                progress(number)
    finally:
        model.train(was_training)
    return embeddings


def by_length(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the (N,) positions of the texts, shortest first."""
    return np.argsort([len(text) for text in texts], kind="stable")


def _with_tokens(mask: object) -> Tensor | None:
    """Return the rows that have a token; None for features without a mask."""
    return mask.any(dim=1).nonzero().squeeze(1) if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None


def embeddings_key(model: SentenceTransformer, portable: bool = False) -> str:
    """Hash everything that a document's embedding depends on except its text; `portable`: and except the precision."""
    digest = hashlib.sha256()
    for name, state in sorted(model.state_dict().items()):
        for part in state if isinstance(state, tuple) else (state,):  # a quantised layer keeps weight and bias as one
            if not isinstance(part, torch.Tensor):
                digest.update(f"{name} {part!r}".encode())
                continue
            # portable: one machine loads half-precision weights as float32, another does not
            dtype = torch.float32 if portable and part.is_floating_point() else part.dtype
            tensor = part.dequantize() if part.is_quantized else part
            digest.update(f"{name} {dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())
    for module in parts_of(model):
        backbone = getattr(getattr(module, "auto_model", None), "config", None)
        own: dict[str, Any] = getattr(module, "get_config_dict", dict)()
        # without _name_or_path: a moved folder has equal embeddings
        settings = (own, {n: v for n, v in backbone.to_dict().items() if n != "_name_or_path"} if backbone else {})
        digest.update(pformat([type(module).__name__, settings]).encode())  # sorts keys, also in a router
        digest.update(_tokenizer_content(getattr(module, "tokenizer", None)).encode())
        digest.update(repr(getattr(module, "max_seq_length", None)).encode())
    in_bf16 = not portable and resolve_precision(device=encoding_device(model)) == "bfloat16"
    digest.update(repr((prompt_for(model, "document"), model.truncate_dim, in_bf16)).encode())
    return digest.hexdigest()[:32]


def _tokenizer_content(tokenizer: Any) -> str:
    """Return all that decides the tokens of a text but the length limit; saving and loading keep it equal."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    sides = [getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")]
    if hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        kept = {name: value for name, value in content.items() if name not in ("truncation", "padding")}  # set per call
        return json.dumps([sides, kept], sort_keys=True)
    words = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", {})
    return json.dumps([type(tokenizer).__name__, sides, words, special], sort_keys=True, default=str)


class EncodePool:
    """A pool of processes that each hold the model, which moves to shared main memory; they start with the first texts.

    `devices` has one entry per process, such as "cpu" or "cuda:0", also several times.
    """

    def __init__(self, model: SentenceTransformer, devices: Sequence[str]) -> None:
        self.devices = check_devices(devices)
        self._model = model
        self._executor: ProcessPoolExecutor | None = None

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind,
        prompt: str | None,
        precision: Precision,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        if self._executor is None:
            self._executor = self._start()
        order = by_length(texts)[::-1]  # the longest texts first, so that all processes end together
        size = max(1, min(TEXTS_PER_BLOCK, -(-len(texts) // (4 * len(self.devices)))))
        blocks = [order[start : start + size] for start in range(0, len(texts), size)]
        parts = [[texts[row] for row in rows] for rows in blocks]
        embeddings = np.zeros((len(texts), self._model.get_embedding_dimension() or 0), dtype=np.float32)
        try:
            found = self._executor.map(_encode, parts, repeat(kind), repeat(prompt), repeat(precision))
            for rows, done in zip(blocks, found, strict=True):
                embeddings[rows] = done
                if progress is not None:
                    progress(len(rows))
        except BrokenProcessPool as error:
            self.close()
            raise BixseError(
                f"encode: got a process that ended ({error}); expected {len(self.devices)} that go on; fix: fewer "
                "processes where the memory is not enough, then the same command again"
            ) from error
        return embeddings

    def _start(self) -> ProcessPoolExecutor:
        self._model.to("cpu")
        self._model.share_memory()
        context = multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
        devices = context.SimpleQueue()  # each process takes one
        for device in self.devices:
            devices.put(device)
        arguments = (self._model, devices, threads_each(self.devices))
        return ProcessPoolExecutor(len(self.devices), context, _start_process, arguments)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._executor = None


POOLS: WeakKeyDictionary[SentenceTransformer, EncodePool] = WeakKeyDictionary()
"""Model -> its pool. This process encodes for models without one."""


@contextmanager
def encode_on(model: SentenceTransformer, devices: Sequence[str] | None) -> Iterator[None]:
    """Encode on other devices inside the block: the model moves to one device, or several devices share the texts.

    `devices` are such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"]; None leaves the model on its device. An unknown device
    is an InputError.
    """
    if not devices:
        yield
        return
    if len(devices) == 1:
        model.to(check_devices(devices)[0])
        yield
        return
    pool = POOLS[model] = EncodePool(model, devices)
    try:
        yield
    finally:
        del POOLS[model]
        pool.close()


def check_devices(devices: Sequence[str]) -> list[str]:
    """Return the full names of the devices; raises InputError for a missing device."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    named = ["cuda:0" if device == "cuda" else device for device in devices]
    for device in named:
        if device not in there:
            raise InputError(f"device: got {device!r}; expected one of {', '.join(there)}; fix: name one of them")
    return named


def threads_each(devices: Sequence[str]) -> int:
    """Return the threads per CPU process: OMP_NUM_THREADS, else an even share of the cores."""
    wanted = os.environ.get(THREADS_VARIABLE, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return max(1, cores() // max(1, devices.count("cpu")))


def warn_of_too_many(devices: Sequence[str]) -> list[str]:
    """Return one warning if CPU processes would slow each other down, else none."""
    number, threads = devices.count("cpu"), threads_each(devices)
    if number < 2 or number * threads <= cores():
        return []
    return [
        f"{number} processes of {threads} thread{'s' if threads > 1 else ''} on {cores()} cores: they slow each other "
        f"down; fix: fewer --processes, or a smaller {THREADS_VARIABLE}"
    ]


def _start_process(model: SentenceTransformer, devices: Any, threads: int) -> None:
    """Set up a process of the pool, which ends with its parent and leaves Ctrl-C to it."""
    global _model
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes together fill the cores
    device = devices.get()
    if device == "cpu":
        torch.set_num_threads(threads)
    _model = model.to(device)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()  # else this process would wait for ever on the queue of a killed parent, and hold memory
        os._exit(1)


def _encode(texts: Sequence[str], kind: Kind, prompt: str | None, precision: Precision) -> NDArray[np.float32]:
    return encode_here(_model, texts, kind, prompt, precision)
