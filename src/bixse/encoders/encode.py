"""Encode texts for search, here or in several processes: sorted by length, each once, in the precision that is set."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers.util import batch_to_device
from torch import multiprocessing

from bixse.encoders.embedding import embed_features, take_rows
from bixse.encoders.instructions import prompt_for
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
"""Texts tokenised together; sorted by length, so a block holds texts of like length."""
FEWEST_TEXTS_SHARED = 64
"""Texts below which they are encoded in this process: to send them to others takes longer."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
_model: SentenceTransformer
"""In a process of a pool: the model it encodes with."""


def encoding_device(model: SentenceTransformer) -> torch.device:
    """The model's own device, or the first one of its processes."""
    pool = POOLS.get(model)
    return torch.device(pool.devices[0]) if pool is not None else model.device


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts, L2-normalised, as the model's own `encode_query` or `encode_document` would.

    A model that was given several processes (`encode_on`) shares many texts out among them.

    Args:
        model: put into evaluation mode for the call.
        texts: N texts; one without any token (an empty one, of a tokenizer without special tokens) is embedded as 0.
        kind: chooses the prompt, and the route of a model with a router.
        precision: "float32" or "bfloat16"; "auto" or None: as the process is set, see `resolve_precision`.
        progress: called with the number of texts done since the last call.

    Returns:
        (N, D) float32; D is `truncate_dim` for a model that cuts its embeddings.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row_of)
    given = (distinct, kind, prompt_for(model, kind), resolve_precision(precision, encoding_device(model)), progress)
    if progress is not None and len(distinct) < len(texts):
        progress(len(texts) - len(distinct))
    pool = POOLS.get(model)
    if pool is not None and len(distinct) >= FEWEST_TEXTS_SHARED:
        embeddings = pool.encode(*given)
    else:
        embeddings = encode_here(model, *given)
    return embeddings if len(distinct) == len(texts) else embeddings[[row_of[text] for text in texts]]


@torch.no_grad()  # not in inference mode: buffers of a sharded encoder made there could not be trained with
def encode_here(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    prompt: str | None,
    precision: Precision,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts in this process, as `encode_texts`; `prompt` stands before each."""
    was_training = model.training
    model.eval()
    order = by_length(texts)
    dimensions = model.get_embedding_dimension() or 0
    embeddings = np.zeros((len(texts), dimensions), dtype=np.float32)
    try:
        for start in range(0, len(texts), TEXTS_PER_BLOCK):
            rows = order[start : start + TEXTS_PER_BLOCK]
            features = model.preprocess([texts[row] for row in rows], prompt=prompt, task=kind)
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
    """(N,) positions of the texts, the shortest first."""
    return np.argsort([len(text) for text in texts], kind="stable")


def _with_tokens(mask: object) -> Tensor | None:
    """The rows that have a token at all; None where that cannot be told."""
    return mask.any(dim=1).nonzero().squeeze(1) if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None


class EncodePool:
    """Processes that each hold the model; they start when there is something to encode.

    The model is then moved to main memory, which the processes share. `devices` are one per process, such as "cpu" or
    "cuda:0"; one may be named several times.
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
        """As `encode_here`; the longest texts are sent first, so that all processes end together."""
        if self._executor is None:
            self._executor = self._start()
        order = by_length(texts)[::-1]
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
        context = multiprocessing.get_context("spawn")
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
"""The processes that a model's texts are shared out among; of others this process encodes."""


@contextmanager
def encode_on(model: SentenceTransformer, devices: Sequence[str] | None) -> Iterator[None]:
    """Encode with a model on other devices inside the block: one is moved to, several share the texts out.

    `devices` are such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"]; None leaves the model where it is.

    Raises:
        InputError: an unknown device.

    Example:
        Two processes on the processor::

            model = build_encoder("demo")
            with encode_on(model, ["cpu", "cpu"]):
                encode_texts(model, texts, "document")
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
    """The devices by their full names; raises InputError for one that is not there."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    named = ["cuda:0" if device == "cuda" else device for device in devices]
    for device in named:
        if device not in there:
            raise InputError(f"device: got {device!r}; expected one of {', '.join(there)}; fix: name one of them")
    return named


def threads_each(devices: Sequence[str]) -> int:
    """Threads of each process on the processor: as OMP_NUM_THREADS says, else an even share of the cores."""
    wanted = os.environ.get(THREADS_VARIABLE, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return max(1, cores() // max(1, devices.count("cpu")))


def warn_of_too_many(devices: Sequence[str]) -> list[str]:
    """One line where processes on the processor would slow each other down, or none."""
    number, threads = devices.count("cpu"), threads_each(devices)
    if number < 2 or number * threads <= cores():
        return []
    return [
        f"{number} processes of {threads} thread{'s' if threads > 1 else ''} on {cores()} cores: they slow each other "
        f"down; fix: fewer --processes, or a smaller {THREADS_VARIABLE}"
    ]


def _start_process(model: SentenceTransformer, devices: Any, threads: int) -> None:
    """In a process of the pool: end when the process that started it is gone, and leave Ctrl-C to that one."""
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
        parent.join()
        os._exit(1)


def _encode(texts: Sequence[str], kind: Kind, prompt: str | None, precision: Precision) -> NDArray[np.float32]:
    return encode_here(_model, texts, kind, prompt, precision)
