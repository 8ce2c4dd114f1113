"""Read many prompts with a causal language model up to the logits of what comes next.

What prompts begin with is computed once, and every prompt goes on from the keys and values that were kept. Prompts are
padded on the right: no token sees what comes after it, so padding changes nothing.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from bixse.grading.local.shared_prefix import LEAST_SHARED, KeptTokens, attention_limits, shared_groups, shared_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from bixse.grading.local.shared_prefix import Group

Sharing: TypeAlias = Literal["groups", "prefix", "none", "alone"]
"""What of the prompts' beginnings is computed once.

groups: what all share, then what those of a query share; prefix: what all share; none: every prompt is read whole, in
batches; alone: every prompt is read by itself, for models that give other answers in padded batches.
"""
WELL_FILLED, MUCH_SHORTER = 0.25, 0.8
"""A batch with this share of its positions takes no prompt that is shorter than that share of its longest one."""
KEPT_FACTOR = 8
"""Kept positions of a batch may be this many times its budget of positions to compute."""
_TOLERANCE, _HALF_TOLERANCE = 1e-2, 0.25
"""How far logits of two ways to read may differ, in standard deviations of the logits; of 16-bit numbers more."""


class PromptReader:
    """Reads prompts up to the logits after the last token of each.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        tokens_per_batch: most positions computed in one forward pass, padding included.
        rows_per_batch: most prompts in one.
        sharing: what is computed once; None: the most that gives the same logits on a few short probes.
    """

    def __init__(
        self, model: Any, tokens_per_batch: int, rows_per_batch: int = 256, sharing: Sharing | None = None
    ) -> None:
        self.model = model
        self.tokens_per_batch = tokens_per_batch
        self.rows_per_batch = rows_per_batch
        self._head = model.get_output_embeddings()
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._limits = attention_limits(model)
        self.sharing: Sharing = self._tried_sharing() if sharing is None else sharing

    def logits(self, prompts: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor | None]]:
        """Read prompts, in batches of like length.

        Args:
            prompts: token ids, each at least one.

        Yields:
            Indices of b prompts and their logits (b, V), float32; or of one prompt that does not fit into the memory
            by itself, and None.
        """
        stretch = self._limits.stretched_from
        alone = [i for i, prompt in enumerate(prompts) if stretch is not None and len(prompt) > stretch]
        for i in alone:  # its length decides how every prompt of its batch would be read
            yield from self._batches(prompts, [i], None, {}, {i: 0})
        rest = [i for i in range(len(prompts)) if i not in set(alone)]
        prefix, start = None, 0
        if self.sharing in ("groups", "prefix") and len(rest) > 1:
            start = shared_length([prompts[i] for i in rest])
            prefix = self._kept([prompts[rest[0]][:start]], None) if start >= LEAST_SHARED else None
            start = 0 if prefix is None else start
        if self.sharing == "groups" and self._limits.allow_gaps(max(map(len, prompts), default=0)):
            groups, rest = shared_groups(prompts, rest, start)
            for chosen in self._chunks(groups, start):
                kept = self._kept([prompts[members[0]][start:length] for members, length in chosen], prefix)
                members = [i for group, _ in chosen for i in group]
                if kept is None:
                    rest += members
                    continue
                places = {i: place for place, (group, _) in enumerate(chosen) for i in group}
                yield from self._batches(
                    prompts, members, kept, places, {i: end for group, end in chosen for i in group}
                )
                del kept  # its memory is free before the next chunk
        yield from self._batches(prompts, rest, prefix, dict.fromkeys(rest, 0), dict.fromkeys(rest, start))

    def _batches(
        self,
        prompts: Sequence[list[int]],
        indices: Sequence[int],
        kept: KeptTokens | None,
        places: Mapping[int, int],
        starts: Mapping[int, int],
    ) -> Iterator[tuple[list[int], Tensor | None]]:
        """Read prompts from their starts on, the longest first; a batch that does not fit into the memory is halved.

        Args:
            prompts: all of them.
            indices: those to read.
            kept: rows of what stands before.
            places: the row of each prompt.
            starts: how many of its tokens that row holds.
        """
        left = sorted(indices, key=lambda i: starts[i] - len(prompts[i]))
        while left:
            width = len(prompts[left[0]]) - starts[left[0]]
            most = self._rows(width, 0 if kept is None else kept.mask.shape[1])
            enough = WELL_FILLED * self.tokens_per_batch / width
            batch = [
                i
                for n, i in enumerate(left[:most])
                if n < enough or len(prompts[i]) - starts[i] >= MUCH_SHORTER * width
            ]
            try:
                rows = None if kept is None else kept.rows([places[i] for i in batch])
                logits = self.read([prompts[i][starts[i] :] for i in batch], rows)[0]
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                logits = None
            if logits is None:
                _free_memory()
                if len(batch) > 1:
                    self.tokens_per_batch = max(1, min(self.tokens_per_batch, len(batch) * width) // 2)
                    continue
            yield batch, logits
            left = left[len(batch) :]

    def _rows(self, width: int, kept: int) -> int:
        """How many prompts of at most `width` new tokens after `kept` ones go into one batch."""
        if self.sharing == "alone":
            return 1
        most = min(self.tokens_per_batch // width, KEPT_FACTOR * self.tokens_per_batch // (width + kept))
        return max(1, min(most, self.rows_per_batch))

    def _chunks(self, groups: Sequence[Group], start: int) -> Iterator[list[Group]]:
        """Groups whose shared tokens are computed and kept together, the longest first."""
        left = sorted(groups, key=lambda group: -group[1])
        while left:
            rows = self._rows(left[0][1] - start, start)
            yield left[:rows]
            left = left[rows:]

    def _kept(self, sequences: Sequence[list[int]], before: KeptTokens | None) -> KeptTokens | None:
        """Keys and values of sequences that go on from one kept row; None where they do not fit into the memory."""
        try:
            return self.read(sequences, None if before is None else before.rows([0] * len(sequences)), keep=True)[1]
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
        _free_memory()
        return None

    @torch.inference_mode()
    def read(
        self, sequences: Sequence[list[int]], kept: KeptTokens | None = None, keep: bool = False
    ) -> tuple[Tensor, KeptTokens | None]:
        """One forward pass over B sequences that go on from B kept rows.

        Args:
            sequences: token ids, each at least one.
            kept: what stands before them.
            keep: give back keys and values too.

        Returns:
            Logits after each one's last token (B, V), float32, on the model's device; and what is kept.
        """
        device = self.model.device
        width = max(map(len, sequences))
        ids = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences], device=device)
        last = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        steps = torch.arange(width, device=device)
        mask = (steps <= last[:, None]).long()
        past = torch.zeros_like(last) if kept is None else kept.mask.sum(dim=1)
        named: dict[str, Any] = {"attention_mask": mask if kept is None else torch.cat([kept.mask, mask], dim=1)}
        if kept is not None:
            named["past_key_values"] = kept.cache
        if self._takes_positions:  # those of padding are held back: a table of positions may end with the prompt
            named["position_ids"] = past[:, None] + torch.minimum(steps, last[:, None])
        hook = None if self._head is None else self._head.register_forward_pre_hook(_only_last(last, ids.shape))
        try:
            output = self.model(input_ids=ids, use_cache=keep or kept is not None, **named)
        finally:
            if hook is not None:
                hook.remove()
        logits = output.logits
        if logits.shape[1] > 1:  # the head saw all positions
            logits = logits[torch.arange(len(last), device=device), last][:, None]
        found = KeptTokens(output.past_key_values, named["attention_mask"]) if keep else None
        return logits[:, 0].float(), found

    def _tried_sharing(self) -> Sharing:
        """The most sharing that gives the logits of prompts read one by one, on short made-up prompts."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        sizes = ((31, 9), (17, 3), (13, 5), (5, 2), (11, 4), (19, 1), (23, 3))
        head, *parts = [[(7 + step * i) % vocabulary for i in range(size)] for step, size in sizes]
        middles, rests = [parts[0], parts[1]] * 2, parts[2:]
        tails = [middle + rest for middle, rest in zip(middles, rests, strict=True)]
        expected = torch.cat([self.read([head + tail])[0] for tail in tails])
        allowed = (_HALF_TOLERANCE if torch.finfo(self.model.dtype).bits < 32 else _TOLERANCE) * expected.std()

        def agrees(sequences: Sequence[list[int]], kept: KeptTokens | None) -> bool:
            return bool((self.read(sequences, kept)[0] - expected).abs().max() <= allowed)

        if not agrees([head + tail for tail in tails], None):
            return "alone"
        if not self._limits.keeps:
            return "none"
        try:
            prefix = self._kept([head], None)
            if prefix is None or not agrees(tails, prefix.rows([0] * 4)):
                return "none"
            groups = self._kept(middles[:2], prefix)
            return "groups" if groups is not None and agrees(rests, groups.rows([0, 1, 0, 1])) else "prefix"
        except (AttributeError, IndexError, TypeError, ValueError, NotImplementedError, RuntimeError):
            return "none"  # a cache of another kind


def _only_last(last: Tensor, shape: Sequence[int]) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...] | None]:
    """A hook that gives the output layer the state of each row's last token alone: (B, 1, D) of (B, T, D)."""

    def chosen(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        states = inputs[0]
        if tuple(states.shape[:-1]) != tuple(shape):
            return None
        rows = torch.arange(len(last), device=states.device)
        return (states[rows, last.to(states.device)][:, None], *inputs[1:])

    return chosen


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
