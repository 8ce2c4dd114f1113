"""Embed tokenised features without padding short texts to the longest text of the batch."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from bixse.encoders import unpadded
from bixse.encoders.processes import is_sharded, local_part, most_of_all, world_size
from bixse.encoders.unpadded import Encoder, embed_pass, map_tensors, on_device, take_rows
from bixse.encoders.unpadded import Features as Features
from bixse.progress import size

PASS_COST: Mapping[str, int] = defaultdict(lambda: 2048, cpu=64)
"""Fixed cost of a pass in tokens, per device type, measured with MiniLM. A GPU computes thousands of tokens before the
next pass is launched."""
TEXTS_CUT_EXACTLY = 4096
"""Largest number of texts for which the best cuts are searched."""
TEXTS_PER_PASS = 32
"""Largest number of texts per pass on a CPU, whose caches hold no more."""
TOKENS_PER_PASS = (512, 2**18)
"""Lowest and highest budget of tokens per pass on a GPU. More tokens are not faster."""
USED_SHARE = 0.7
"""Share of the free memory of a GPU that the tokens of a pass may take by the estimate of `bytes_per_token`."""
TakeRows: TypeAlias = "Callable[[Features, NDArray[np.bool_], NDArray[np.int64]], dict[str, Any]]"
"""A function that makes the features of one pass, see `take_rows`."""
T = TypeVar("T")
log = logging.getLogger(__name__)


def embed_features(
    model: Encoder, features: Features, mini_batch_size: int | None = None, gradient_cache: bool = False
) -> Tensor:
    """Embed N tokenised texts in passes of similar length: (N, D), cut to `truncate_dim`, not normalised.

    `lengths` among the features are (N,) numbers of tokens on the host, of texts padded on the right; the device is
    then asked for nothing. `mini_batch_size` is the largest number of texts per pass; None: 32, and on a GPU as many
    tokens as its memory holds (`Passes`). Without gradients, passes that do not fit into memory are made smaller.
    """
    embed = partial(_embed, model, features, mini_batch_size, gradient_cache)
    if torch.is_grad_enabled() or is_sharded(model):
        return embed()  # a step with gradients begins again as a whole; a pass of a sharded encoder takes all processes
    return retry_with_smaller_passes(model, embed)


def _embed(model: Encoder, features: Features, mini_batch_size: int | None, gradient_cache: bool) -> Tensor:
    # a distributed wrapper keeps the encoder as its `module`
    dimensions: int | None = getattr(getattr(model, "module", model), "truncate_dim", None)
    sharded = is_sharded(model)

    def one_pass(part: dict[str, Any]) -> Tensor:
        return embed_pass(model, part)[:, :dimensions]

    def embed(part: dict[str, Any]) -> Tensor:
        if not torch.is_grad_enabled():
            return one_pass(part)
        # backward recomputes one pass at a time, with equal dropout; reentrant passes crash with adapters
        encode = partial(checkpoint, one_pass, use_reentrant=False) if gradient_cache else one_pass
        # without an input that requires a gradient there would be no backward pass
        start = torch.empty(0, requires_grad=True)
        embedded: Tensor = _SeparateBackward.apply(start, encode, part) if sharded else encode(part)  # type: ignore[no-untyped-call]
        return embedded

    features = dict(features)
    lengths, mask = features.pop("lengths", None), features.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return embed(features)
    # (N, T) on the host; texts of known lengths begin at position 0
    tokens = mask.bool().cpu().numpy() if lengths is None else np.arange(mask.shape[1]) < np.asarray(lengths)[:, None]
    lengths = tokens.sum(axis=1)
    # without special tokens, an empty text has no token: models crash or give NaN, so its embedding is 0
    order = np.argsort(lengths, kind="stable")[np.count_nonzero(lengths == 0) :]
    # A batch padded to its longest text spends most of its time on padding. Trimmed passes change no embedding: the
    # mask hides padding. Left padding needs relative positions (decoders): absolute ones count from the padding on.
    passes = passes_of(model, mask.device)
    take = passes.take(model, features)
    numbers = passes.cut(lengths[order], mini_batch_size, take is take_rows)
    # a pass through a sharded encoder gathers weights from all processes: each must call this and run as many passes;
    # a batch without any token takes one pass too, which gives the dimensions
    missing = max(1, most_of_all(len(numbers), mask.device) if sharded else 0) - len(numbers)
    parts = [embed(take(features, tokens, rows)) for rows in np.split(order, np.cumsum(numbers)[:-1]) if len(rows)]
    parts += [embed(_one_token(features, mask))[:0] for _ in range(missing)]
    embeddings = torch.cat(parts)
    return embeddings.new_zeros(len(mask), embeddings.shape[1]).index_copy(0, on_device(order, mask.device), embeddings)


def joined_columns(model: Encoder, columns: Sequence[Features]) -> dict[str, Any] | None:
    """Return the texts of several columns as one, if they are read without padding; otherwise None.

    The kernels of a pass take no longer to launch for more texts, and short texts leave a GPU idle.
    """
    if not all("lengths" in features for features in columns):
        return None
    masks: list[Tensor] = [features["attention_mask"] for features in columns]
    options = [{n: v for n, v in part.items() if n != "lengths" and not isinstance(v, Tensor)} for part in columns]
    names = [set(part) for part in columns]
    take = passes_of(model, masks[0].device).take(model, columns[0])
    if take is take_rows or any(part != options[0] for part in options) or any(part != names[0] for part in names):
        return None
    width = max(mask.shape[1] for mask in masks)
    joined = {
        name: torch.cat([pad(part[name], (0, width - part[name].shape[1])) for part in columns])
        for name, value in columns[0].items()
        if isinstance(value, Tensor)
    }
    return {**options[0], **joined, "lengths": np.concatenate([part["lengths"] for part in columns])}


class _SeparateBackward(torch.autograd.Function):
    """A pass through a sharded encoder with a backward graph of its own.

    In one graph, autograd would keep the gradient of every unsharded weight until all passes are done. Here each
    gradient is reduced to this process's part after its block.
    """

    @staticmethod
    def forward(ctx: Any, _: Tensor, encode: Callable[[dict[str, Any]], Tensor], part: dict[str, Any]) -> Tensor:
        with torch.enable_grad():
            ctx.embedded = encode(part)
        detached: Tensor = ctx.embedded.detach()
        return detached

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        torch.autograd.backward(ctx.embedded, gradients)
        return None, None, None


def _one_token(features: Features, mask: Tensor) -> dict[str, Any]:
    """Return features of a text of one token, with the same names."""
    single = map_tensors(
        features, mask, lambda x: x.new_zeros(1, 1, *x.shape[2:]), lambda x: x.new_zeros(1, *x.shape[1:])
    )
    return {**single, "attention_mask": mask.new_ones(1, 1)}


@dataclass
class Passes:
    """The size of passes through one encoder on one device, and whether its texts are read without padding."""

    device: torch.device
    budget: dict[bool, float]
    """Largest number of tokens per pass, padding included: with gradients (True), and without."""
    largest: float = 0
    """Tokens of the largest pass since the budget was set."""
    verdicts: dict[Any, bool] = field(default_factory=dict)
    """Task of the features -> True if reading without padding gives the same embeddings."""

    def cut(self, lengths: NDArray[np.int64], texts: int | None, padded: bool) -> list[int]:
        """Return the number of texts of each pass, of at most `texts`, for texts of ascending length."""
        most = texts or (len(lengths) if self.device.type == "cuda" else TEXTS_PER_PASS)
        budget = self.budget[torch.is_grad_enabled()]
        numbers = passes_by_length(lengths, most, budget, PASS_COST[self.device.type] if padded else None)
        ends = np.cumsum(numbers)
        for start, end in zip(ends - numbers, ends, strict=True):
            tokens = (end - start) * lengths[end - 1] if padded else lengths[start:end].sum()
            self.largest = max(self.largest, int(tokens))
        return numbers

    def take(self, model: Any, features: Features) -> TakeRows:
        """Return the function that makes the features of a pass: without padding if that gives the same embeddings."""
        if not unpadded.is_possible(model, features, self.device):
            return take_rows
        task = features.get("task")  # a router reads each task with another backbone
        if task not in self.verdicts:
            self.verdicts[task] = unpadded.agrees(model, features)
        if not self.verdicts[task]:
            return take_rows
        unpadded.switch(model)
        return partial(unpadded.take_flat, model)

    def halve(self) -> bool:
        """Halve the budget after a pass that did not fit; return False if a smaller one would not help."""
        gradients = torch.is_grad_enabled()
        budget = min(self.budget[gradients], self.largest) // 2
        if budget < TOKENS_PER_PASS[0]:
            return False
        log.warning(
            "memory of %s: got a pass of %d tokens that does not fit; now %d", self.device, self.largest, budget
        )
        self.budget[gradients], self.largest = budget, 0
        return True


_PASSES: WeakKeyDictionary[Any, Passes] = WeakKeyDictionary()


def passes_of(model: Encoder, device: torch.device) -> Passes:
    """Return the passes of an encoder; the first call on a GPU derives and logs their budget."""
    passes = _PASSES.get(model)
    if passes is None or passes.device != device:
        passes = _PASSES[model] = Passes(device, _budgets(model, device))
    return passes


def _budgets(model: Encoder, device: torch.device) -> dict[bool, float]:
    if device.type != "cuda" or not isinstance(model, torch.nn.Module):
        return {True: math.inf, False: math.inf}
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + held
    # the first step allocates a gradient and two moments per trained weight
    trained = sum(local_part(part).numel() for part in model.parameters() if part.requires_grad)
    configs = [module.config for module in model.modules() if hasattr(getattr(module, "config", None), "hidden_size")]
    low, high = TOKENS_PER_PASS
    budget: dict[bool, float] = {}
    for gradients in (True, False):
        memory = USED_SHARE * (free - 12 * trained * gradients)
        each = max((bytes_per_token(config, gradients) for config in configs), default=2**20)
        budget[gradients] = max(low, min(high, int(memory / each)))
    log.warning(
        "passes on %s: at most %d tokens with gradients, %d without (%s free)",
        device, budget[True], budget[False], size(free),
    )  # fmt: skip
    return budget


def bytes_per_token(config: Any, gradients: bool) -> int:
    """Return an upper estimate of the memory per token of a transformer in bf16 autocast, from its config."""
    hidden = config.hidden_size
    heads = config.num_attention_heads * (getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    # counted from BERT and Llama: residuals and norms are float32, and each linear layer keeps a bf16 copy of its input
    if gradients:
        return int(config.num_hidden_layers * (24 * hidden + 30 * heads + 10 * inner))
    return int(32 * hidden + 16 * heads + 10 * inner)


def retry_with_smaller_passes(model: Encoder, step: Callable[[], T], trained: Iterable[Tensor] = ()) -> T:
    """Run a step; while memory does not suffice, begin it again with passes of half the size.

    A step with gradients begins again without gradients of its `trained` weights and with the random state it began
    with, so that nothing is applied twice. It is not begun again if these weights have gradients of an earlier step, or
    if other processes wait for it.
    """
    weights = list(trained)
    final = any(part.grad is not None for part in weights) or (torch.is_grad_enabled() and world_size() > 1)
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    states = torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None
    while True:
        try:
            return step()
        except torch.OutOfMemoryError:
            if final or model not in _PASSES or not _PASSES[model].halve():
                raise
        # here, as the handled error would still hold the tensors of the pass
        for part in weights:
            part.grad = None
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1])
            torch.cuda.empty_cache()


def passes_by_length(
    lengths: NDArray[np.int64],
    texts: int = TEXTS_PER_PASS,
    budget: float = math.inf,
    cost: int | None = PASS_COST["cpu"],
) -> list[int]:
    """Return the number of texts of each pass, for texts of ascending length.

    A pass has at most `texts` texts and `budget` tokens, or a single text. Texts are padded to the longest one of their
    pass, and the cut with the fewest tokens is taken, where a pass costs `cost` tokens; None: there is no padding.
    """
    ends = np.arange(1, len(lengths) + 1)
    if cost is not None:
        first = ends - np.minimum(np.maximum(np.floor(budget / lengths), 1), texts)
    else:
        before = np.concatenate([[0], np.cumsum(lengths)])
        first = np.maximum(np.minimum(np.searchsorted(before, before[1:] - budget), ends - 1), ends - texts)
    first = np.maximum(first, 0).astype(np.int64)
    """The lowest start of a pass that ends before `end`, at `end - 1`."""
    if cost is not None and len(lengths) <= TEXTS_CUT_EXACTLY:
        return _cheapest_cut(lengths, first, cost)
    numbers: list[int] = []  # of similar lengths: full passes
    while (start := sum(numbers)) < len(lengths):
        numbers.append(int(np.searchsorted(first, start, side="right")) - start)
    return numbers


def _cheapest_cut(lengths: NDArray[np.int64], first: NDArray[np.int64], pass_cost: int) -> list[int]:
    """Return the number of texts per pass by dynamic programming; `first` is the lowest start per end."""
    cost, best = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        starts = np.arange(first[end - 1], end)
        # a pass costs its number of texts times its longest text, and a fixed number of tokens
        costs = cost[starts] + (end - starts) * lengths[end - 1] + pass_cost
        cost[end], best[end] = costs.min(), starts[costs.argmin()]
    numbers: list[int] = []
    end = len(lengths)
    while end > 0:
        numbers.append(int(end - best[end]))
        end = int(best[end])
    return numbers[::-1]


def number_of_texts(features: Features) -> int:
    """Return N, the number of texts."""
    rows: Tensor = features["offsets"] if "offsets" in features else features["input_ids"]
    return len(rows)
