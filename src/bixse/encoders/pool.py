"""Encode in several processes, on processor cores or several GPUs: the embeddings of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bixse.encoders.encode import TEXTS_PER_BLOCK, by_length, encode_here
from bixse.errors import BixseError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.loading.precision import Precision
    from bixse.encoders.prompts import Kind
    from bixse.encoders.relevance_model import RelevanceModel

FEWEST_TEXTS = 64
"""Texts below which they are encoded in this process: to send them takes longer."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""How many threads a user wants a process to compute with."""


class EncodePool:
    """Processes that each hold the model, started by sentence-transformers (`start_multi_process_pool`) when needed.

    Args:
        model: the encoder; it is then moved to the processor's memory, which the processes share.
        devices: one a process, such as "cpu" or "cuda:0"; a device may be named several times.

    Raises:
        InputError: an unknown device.
    """

    def __init__(self, model: RelevanceModel, devices: Sequence[str]) -> None:
        self.devices = check_devices(devices)
        self.threads = threads_each(self.devices)
        self._model = model
        self._pool: dict[Any, Any] | None = None

    def is_worth_it(self, number: int) -> bool:
        """Whether so many texts are shared out."""
        return number >= FEWEST_TEXTS

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind,
        prompt: str | None,
        precision: Precision,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts, see `encode_texts`; the longest ones are sent first, so that all processes end together.

        Raises:
            BixseError: a process ended.
        """
        if self._pool is None:
            with _one_thread_for_tokens():
                self._pool = self._model.start_multi_process_pool(self.devices)
        order = by_length(texts)[::-1]
        size = max(1, min(TEXTS_PER_BLOCK, -(-len(texts) // (4 * len(self.devices)))))
        parts = [order[start : start + size] for start in range(0, len(texts), size)]
        settings = {"kind": kind, "prompt": prompt, "precision": precision, "threads": self.threads}
        for number, rows in enumerate(parts):
            self._pool["input"].put([number, [texts[row] for row in rows], {"shared_out": settings}])
        embeddings = np.zeros((len(texts), self._model.get_embedding_dimension() or 0), dtype=np.float32)
        failed: Exception | None = None
        for _ in parts:
            number, found = self._result(self._pool)
            if isinstance(found, Exception):
                failed = failed or found
                continue
            embeddings[parts[number]] = found.numpy()
            if progress is not None:
                progress(len(parts[number]))
        if failed is not None:
            raise failed
        return embeddings

    def _result(self, pool: dict[Any, Any]) -> Any:
        try:
            return self._model._get_worker_result(pool)
        except RuntimeError as error:
            raise BixseError(
                f"encode: got a process that ended ({error}); expected {len(self.devices)} that go on; fix: fewer "
                "processes where the memory is not enough, then the same command again"
            ) from error

    def close(self) -> None:
        """End the processes, where any were started."""
        if self._pool is not None:
            self._model.stop_multi_process_pool(self._pool)
        self._pool = None


@contextmanager
def encode_on(model: SentenceTransformer, devices: Sequence[str] | None) -> Iterator[None]:
    """Encode with a model on other devices inside the block: one is moved to, several share the texts out.

    Args:
        model: the encoder, one that `build_encoder` made.
        devices: such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"]; None leaves the model where it is.

    Raises:
        InputError: an unknown device.

    Example:
        Two processes on the processor::

            from bixse.encoders.encode import encode_texts

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
    pool = EncodePool(model, devices)  # type: ignore[arg-type]
    model.encode_pool = pool  # type: ignore[assignment]
    try:
        yield
    finally:
        model.encode_pool = None  # type: ignore[assignment]
        pool.close()


def serve(model: SentenceTransformer, texts: Sequence[str], device: str, settings: dict[str, Any]) -> torch.Tensor:
    """Embed a part of the texts in a process of the pool."""
    if device == "cpu":
        torch.set_num_threads(settings["threads"])
    model.to(device)
    names = ("kind", "prompt", "precision")
    return torch.from_numpy(encode_here(model, texts, **{name: settings[name] for name in names}))


def prepare_process() -> None:
    """In a process of the pool: end when the process that started it is gone, and leave Ctrl-C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def check_devices(devices: Sequence[str]) -> list[str]:
    """Refuse devices that are not there.

    Raises:
        InputError: names the device and those there are.
    """
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
    """One line where processes on the processor would slow each other down, or none.

    Example:
        >>> warn_of_too_many(["cpu"])
        []
    """
    number, threads = devices.count("cpu"), threads_each(devices)
    if number < 2 or number * threads <= cores():
        return []
    fewer = max(1, cores() // threads)
    mend = f"--processes {fewer}" if fewer < number else f"{THREADS_VARIABLE}=1"
    if threads > 1 and number <= cores():
        mend += f", or {THREADS_VARIABLE}={max(1, cores() // number)}"
    return [
        f"{number} processes of {threads} thread{'s' if threads > 1 else ''} on {cores()} cores: they slow each other "
        f"down; fix: {mend}"
    ]


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _one_thread_for_tokens() -> Iterator[None]:
    """Processes started inside the block tokenise with one thread each: together they fill the cores."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
