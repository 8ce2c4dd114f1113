"""A causal language model in this process: its files, its device, and the logits after many prompts.

Prompts are padded on the right: no token attends to later tokens, so padding changes nothing.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bixse.encoders.loading.build import loading, model_hashes, unused_weights, warn_of_unused
from bixse.encoders.loading.precision import default_device, resolve_precision, rounding
from bixse.errors import InputError, ModelError, first_fault
from bixse.files.files import file_hash, json_hash

if TYPE_CHECKING:
    from bixse.judging.judge import Dtype


EXPECTED = "a causal language model of transformers"
UNLIMITED = 10**9  # tokenizers without a limit report a larger length


class LocalModel:
    """A judge's model: a folder, a GGUF file, a package with a GGUF file, or a hub name.

    The tokenizer is loaded at once, the weights on first use. Quantised weights of a GGUF file are expanded.
    """

    def __init__(self, name_or_path: str | Path, device: str | None = None, dtype: Dtype = "auto") -> None:
        self.requested = str(name_or_path)
        self.source, file = _resolve(self.requested)
        self._device, self._dtype = device_and_dtype(device, dtype)
        # with None, transformers asks in the terminal if it may run the model's code
        self._settings: dict[str, Any] = {"trust_remote_code": False}
        if file is not None:
            self._settings["gguf_file"] = file
            if importlib.util.find_spec("gguf") is None:
                raise ModelError(
                    f"judge {self.requested!r}: got no package gguf; expected it for a .gguf file; fix: pip install "
                    "'bixse[gguf]'"
                )
        folder = Path(self.source)
        with loading(self.requested, EXPECTED, "judge"):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(self.source, **self._settings)
            config = None if folder.is_dir() else AutoConfig.from_pretrained(self.source, **self._settings)
        self.device, self.dtype = str(self._device), str(self._dtype).removeprefix("torch.")
        if config is None:
            self.name, self.revision = file or folder.name, content_hash(folder, file)
        else:
            self.name, self.revision = self.source, str(config._commit_hash or "main")

    @cached_property
    def model(self) -> Any:
        """The model in evaluation mode; raise ModelError for missing weights or too little memory."""
        judge = f"judge {self.requested!r}"
        with loading(self.requested, EXPECTED, "judge"):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.source, dtype=self._dtype, output_loading_info=True, **self._settings
            )
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"{judge}: got no weights for {len(missing)} of its parameters ({', '.join(missing[:3])}); expected "
                "all of a causal language model; fix: name a model that writes text, not an encoder or a part of one"
            )
        warn_of_unused(judge, *unused_weights(model, info["unexpected_keys"], judge))
        try:
            return model.to(self._device).eval()
        except (RuntimeError, AssertionError) as error:  # out of memory is a RuntimeError too
            raise ModelError(
                f"{judge}: got {type(error).__name__} on {self.device} ({first_fault(error)}); expected a device that "
                "this PyTorch has, with room for the weights; fix: change device or model"
            ) from error

    def free(self) -> None:
        """Free the weights; a later use reads them again."""
        vars(self).pop("model", None)


def _resolve(name: str) -> tuple[str, str | None]:
    """Return the folder or hub name, and the name of the GGUF file in the folder."""
    path = Path(name)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), path.name
    if not path.is_dir() and name.isidentifier():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            path = Path(next(iter(spec.submodule_search_locations)))
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.gguf"))
        if (path / "config.json").is_file():
            return str(path), None
        if len(files) == 1:
            return str(path), files[0]
        raise ModelError(
            f"judge {name!r}: got a folder without config.json; expected a model; fix: "
            + (f"name one of its files: {', '.join(files)}" if files else "name the folder that holds it")
        )
    is_no_hub_name = path.suffix == ".gguf" or name.count("/") > 1 or name.startswith((".", "/", "~")) or "\\" in name
    if path.exists() or is_no_hub_name:
        what = "a file" if path.exists() else "no such file or folder"
        raise ModelError(
            f"judge {name!r}: got {what}; expected a model folder, a .gguf file or a hub name (owner/name); "
            "fix: check the path"
        )
    return name, None


def device_and_dtype(device: str | None, dtype: Dtype) -> tuple[torch.device, torch.dtype]:
    """Return the device of a judge, by default the best, and the dtype of its weights."""
    best = "mps" if torch.backends.mps.is_available() else default_device()
    try:
        chosen = torch.device(device or best)
    except RuntimeError as error:
        raise InputError(f"device: got {device!r}; expected cpu, cuda, cuda:0 or mps; fix: leave it out") from error
    return chosen, getattr(torch, resolve_precision(device=chosen) if dtype == "auto" else dtype)


def content_hash(folder: Path, gguf_file: str | None = None) -> str:
    """Return the SHA-256 of the contents of a model's files."""
    if gguf_file is not None:
        return file_hash(folder / gguf_file)
    return json_hash(model_hashes(folder))


def longest_input(config: Any, *limits: int | None) -> int | None:
    """Return the lowest of a model's number of positions and these limits; None without a limit."""
    config = config.get_text_config()
    rotary = getattr(config, "rope_parameters", None) or {}
    limits = (*limits, getattr(config, "max_position_embeddings", None))
    if rotary.get("rope_type") == "longrope":  # a longer prompt would change the positions of its whole batch
        limits = (*limits, rotary.get("original_max_position_embeddings"))
    return min((int(limit) for limit in limits if limit and 0 < limit < UNLIMITED), default=None)


LEAST_SHARED = 8
"""Minimum number of shared tokens that deserve a separate pass."""
ROWS_PER_BATCH = 256
CACHE_FACTOR = 8
"""Maximum number of cached positions per batch, as a multiple of `tokens_per_batch`."""
_TOLERANCE, _HALF_TOLERANCE = 1e-2, 0.25
"""Maximum difference of two ways to read, in standard deviations of the logits; 16-bit dtypes differ more."""


class PromptReader:
    """A reader of prompts that returns the logits after the last token of each prompt.

    `tokens_per_batch` limits the positions per forward pass, padding included. Prompts are read in batches after their
    common beginning, which is computed once, if that gives the same logits on a few short probes; else one by one.
    """

    def __init__(self, model: Any, tokens_per_batch: int) -> None:
        self.model = model
        self.tokens_per_batch = tokens_per_batch
        self._head = model.get_output_embeddings()
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.shares = self._can_share()

    def logits(self, prompts: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor | None]]:
        """Yield indices of b prompts of token ids and their logits (b, V), float32, in batches of similar length.

        The logits of a single prompt that does not fit into memory are None.
        """
        shared = shared_length(prompts) if self.shares and len(prompts) > 1 else 0
        head = self._read_if_it_fits([prompts[0][:shared]], keep=True) if shared >= LEAST_SHARED else None
        prefix, start = (None, 0) if head is None else (head[1], shared)
        left = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        while left:  # from position `start` on, the longest first; a batch that does not fit into memory is halved
            width = len(prompts[left[0]]) - start
            rows = min(self.tokens_per_batch // max(width, (width + start) // CACHE_FACTOR), ROWS_PER_BATCH)
            batch = left[: max(1, rows) if self.shares else 1]
            read = self._read_if_it_fits([prompts[i][start:] for i in batch], prefix, start)
            if read is None and len(batch) > 1:
                self.tokens_per_batch = max(1, min(self.tokens_per_batch, len(batch) * width) // 2)
                continue
            yield batch, None if read is None else read[0]
            left = left[len(batch) :]

    def _read_if_it_fits(self, *arguments: Any, **named: Any) -> tuple[Tensor, Any] | None:
        try:
            return self.read(*arguments, **named)
        except RuntimeError as error:
            if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
                raise
        torch.cuda.empty_cache()
        return None

    @torch.inference_mode()
    def read(
        self, sequences: Sequence[list[int]], prefix: Any = None, start: int = 0, keep: bool = False
    ) -> tuple[Tensor, Any]:
        """Run one forward pass over B non-empty sequences of token ids; `prefix` caches `start` tokens before each.

        Return the logits after each sequence (B, V), float32, and with `keep` the cache.
        """
        device = self.model.device
        width = max(map(len, sequences))
        ids = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences], device=device)
        last = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        steps = torch.arange(width, device=device)
        mask = (steps <= last[:, None]).long()
        named: dict[str, Any] = {}
        if prefix is not None:
            mask = torch.cat([mask.new_ones(len(sequences), start), mask], dim=1)
            named["past_key_values"] = copy.deepcopy(prefix)  # a pass writes into its cache
            named["past_key_values"].batch_repeat_interleave(len(sequences))
        if self._takes_positions:  # padding repeats the last position, since a table of positions can end there
            named["position_ids"] = start + torch.minimum(steps, last[:, None])
        # logits of all positions would need far more memory than those of the last token
        hook = None if self._head is None else self._head.register_forward_pre_hook(_only_last(last, ids.shape))
        try:
            output = self.model(input_ids=ids, attention_mask=mask, use_cache=keep or prefix is not None, **named)
        finally:
            if hook is not None:
                hook.remove()
        logits = output.logits
        if logits.shape[1] > 1:  # the hook did not apply
            logits = logits[torch.arange(len(last), device=device), last][:, None]
        return logits[:, 0].float(), output.past_key_values if keep else None

    def _can_share(self) -> bool:
        """Return True if sharing reproduces the logits of short artificial prompts read one by one."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        sizes = ((31, 9), (17, 3), (13, 5), (22, 2), (30, 4))
        head, *tails = [[(7 + step * i) % vocabulary for i in range(size)] for step, size in sizes]
        expected = torch.cat([self.read([head + tail])[0] for tail in tails])
        allowed = (_TOLERANCE if rounding(self.model.dtype) == "float32" else _HALF_TOLERANCE) * expected.std()
        try:
            variants = [self.read([head + tail for tail in tails])[0]]
            variants.append(self.read(tails, self.read([head], keep=True)[1], len(head))[0])
        except (AttributeError, IndexError, TypeError, ValueError, NotImplementedError, RuntimeError):
            return False  # a cache of another kind
        return all(bool((logits - expected).abs().max() <= allowed) for logits in variants)


def shared_length(sequences: Sequence[list[int]]) -> int:
    """Return the number of first tokens that all sequences share; each keeps at least one further token."""
    most = min(len(sequence) for sequence in sequences) - 1
    # the extremes in sorted order share only what all sequences share
    columns = zip(*(sequence[:most] for sequence in (min(sequences), max(sequences))), strict=True)
    return next((i for i, (first, last) in enumerate(columns) if first != last), max(0, most))


def _only_last(last: Tensor, shape: Sequence[int]) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...] | None]:
    """Return a hook that cuts the states before the output layer to the last token per row: (B, T, D) to (B, 1, D)."""

    def chosen(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        states = inputs[0]
        if tuple(states.shape[:-1]) != tuple(shape):
            return None
        rows = torch.arange(len(last), device=states.device)
        return (states[rows, last.to(states.device)][:, None], *inputs[1:])

    return chosen
