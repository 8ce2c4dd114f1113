"""A judge in this process: a causal language model, its prompts, and the probabilities of option tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from bixse.errors import InputError, ModelError
from bixse.files.files import json_hash
from bixse.judging.judge import TEXT_WIDTH, Answer, AnyJudge, Dtype, Question, Usage
from bixse.judging.judges.local_model import LocalModel, PromptReader, longest_input
from bixse.judging.judges.reading import OptionProbabilities, expected_grade, spellings

if TYPE_CHECKING:
    from bixse.judging.rubrics import Rubric

    Messages = Sequence[Mapping[str, str]]


MODE: Final = "token-ids"
TOKENS_PER_THREAD, TOKENS_ON_DEVICE = 256, 16_384
"""Positions per forward pass: per CPU thread (more only adds padding), and on another device."""
WINDOW, WINDOW_ON_DEVICE = 512, 2048


class LocalJudge(AnyJudge):
    """A judge by the probabilities of the options as the next token after one pass over a question (mode "token-ids").

    Probabilities come from the softmax over the whole vocabulary in float32. A label has the probability of all its
    spellings ("3" and " 3"), so nothing is hidden and the bounds of a grade equal the grade. Questions are sorted by
    length. An answer with a probability below `min_mass` on all options has no grade.
    """

    def __init__(
        self,
        model: str | Path,
        rubric: Rubric,
        device: str | None = None,
        dtype: Dtype = "auto",
        min_mass: float = 0.01,
    ) -> None:
        loaded = self._loaded = LocalModel(model, device, dtype)
        self.rubric, self.min_mass = rubric, min_mass
        self._renderer = PromptRenderer(loaded.tokenizer)
        example = [rubric.variants[0].messages("query", "document")]
        prompt, ids = self._renderer.texts(example)[0], self._renderer.encode(example)[0]
        self._option_ids = option_token_ids(loaded.tokenizer, rubric.labels, prompt, ids)
        self.name, self.scale, self.warnings = loaded.name, rubric.scale, self._renderer.notes
        self.identity = {
            "kind": "transformers",
            "model": self.name,
            "revision": loaded.revision,
            "mode": MODE,
            "dtype": loaded.dtype,
            "template": json_hash(self._renderer.template),
            "labels": list(rubric.labels),
            "values": list(rubric.values),
            "min_mass": min_mass,
        }

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        return [len(ids) for ids in self._prompts(questions)]

    @cached_property
    def _reader(self) -> PromptReader:
        """The reader, created for the first question: a run without pending questions needs no weights."""
        model, on_cpu = self._loaded.model, self._loaded.device.startswith("cpu")
        try:
            threads = max(2, torch.get_num_threads())
            return PromptReader(model, TOKENS_PER_THREAD * threads if on_cpu else TOKENS_ON_DEVICE)
        except Exception as error:
            raise ModelError(
                f"judge {self.name!r}: got {type(error).__name__} on a first prompt ({error}); expected a causal "
                "language model that reads text alone; fix: choose another model"
            ) from error

    @property
    def shares(self) -> bool:
        """True if the common beginning of prompts is computed once."""
        return self._reader.shares

    @property
    def context(self) -> int | None:
        """The maximum number of tokens per prompt; None without a limit."""
        return longest_input(self._loaded.model.config, self._loaded.tokenizer.model_max_length)

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        source = iter(questions)
        window = WINDOW if self._loaded.device.startswith("cpu") else WINDOW_ON_DEVICE
        while asked := list(islice(source, window)):
            started = time.perf_counter()
            prompts = self._prompts(asked)
            usable: dict[str, list[int]] = {}
            for i, ids in enumerate(prompts):
                if ids and (self.context is None or len(ids) <= self.context):
                    usable.setdefault(asked[i].variant, []).append(i)
                else:
                    yield asked[i], self._without_grade(len(ids), f"the context has {self.context} tokens")
            for members in usable.values():
                for batch, logits in self._reader.logits([prompts[i] for i in members]):
                    chosen = [members[i] for i in batch]
                    answers = self._answers(logits, [len(prompts[i]) for i in chosen], time.perf_counter() - started)
                    for i, answer in zip(chosen, answers, strict=True):
                        yield asked[i], answer
                    started = time.perf_counter()

    def close(self) -> None:
        vars(self).pop("_reader", None)
        self._loaded.free()
        torch.cuda.empty_cache()

    def _answers(self, logits: Tensor | None, lengths: Sequence[int], seconds: float) -> list[Answer]:
        """Return one answer per row of the logits (b, V)."""
        if logits is None:
            return [self._without_grade(lengths[0], "the memory of the device cannot hold it")]
        probabilities = torch.softmax(logits, dim=-1)
        options = torch.stack([probabilities[:, list(ids)].sum(dim=-1) for ids in self._option_ids], dim=-1)
        written = self._loaded.tokenizer.batch_decode(logits.argmax(dim=-1)[:, None])
        rows = zip(options.double().tolist(), (text[:TEXT_WIDTH] for text in written), lengths, strict=True)
        return [self._answer(tuple(row), text, length, seconds / len(lengths)) for row, text, length in rows]

    def _prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        first, variants = self.rubric.variants[0], {variant.name: variant for variant in self.rubric.variants}
        return self._renderer.encode([
            each.messages or variants.get(each.variant, first).messages(each.query, each.document) for each in questions
        ])  # fmt: skip

    def _without_grade(self, tokens: int, detail: str) -> Answer:
        return Answer(
            "too-long", MODE, usage=Usage(prompt=tokens), judge=self.name, detail=f"prompt of {tokens} tokens: {detail}"
        )

    def _answer(self, options: tuple[float, ...], text: str, length: int, seconds: float) -> Answer:
        common: dict[str, Any] = {"usage": Usage(prompt=length), "seconds": seconds, "judge": self.name}
        shares = OptionProbabilities(options)
        if not all(0 <= share <= 1.001 for share in options):  # float32 sums may pass 1; NaN fails
            return Answer("failed", MODE, detail="the model gave no numbers (NaN or infinity)", **common)
        if shares.mass < max(self.min_mass, 1e-30):
            detail = f"the options have probability {shares.mass:.2g} together"
            return Answer("no-option", MODE, text=text, detail=detail, **common)
        return Answer("graded", MODE, options, *expected_grade(self.rubric.values, shares), text=text, **common)


def option_token_ids(
    tokenizer: Any, labels: Sequence[str], prompt: str = "", prompt_ids: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return per label the ids of the single tokens that spell it, with and without a leading space."""
    token_ids = tuple(_single_tokens(tokenizer, label, prompt, prompt_ids) for label in labels)
    for label, ids in zip(labels, token_ids, strict=True):
        if not ids:
            tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(label, add_special_tokens=False))
            raise InputError(
                f"label {label!r}: got the tokens {tokens} of the judge; expected a single token that spells it; "
                "fix: use labels of one digit or letter, as 0, 1, 2, 3 or A, B, C"
            )
    return token_ids


def _single_tokens(tokenizer: Any, label: str, prompt: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    known = list(prompt_ids)
    candidates = set()
    for spelling in spellings(label):
        # alone and after the prompt: SentencePiece spells the start of a text differently
        alone = tokenizer.encode(spelling, add_special_tokens=False)
        following = tokenizer.encode(prompt + spelling, add_special_tokens=False) if prompt else []
        rest = following[len(known) :] if following[: len(known)] == known else []
        candidates |= {ids[0] for ids in (alone, rest) if len(ids) == 1}
    return tuple(sorted(token for token in candidates if tokenizer.decode([token]).strip() == label))


_PROBE = "bixse-probe"
_REASONING = "<think>"


class PromptRenderer:
    """A renderer of messages by a tokenizer's chat template, up to the beginning of the answer.

    Reasoning is switched off (`enable_thinking=False`); if a template begins it nevertheless, it is closed at once.
    If a template refuses or drops the system message, its text leads the user message. Raise ModelError without a
    template that renders a user message.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.template = getattr(tokenizer, "chat_template", None)
        self.notes: list[str] = []
        self._merges_system = False
        if self.template is None:
            raise ModelError(
                "chat template: got none; expected one, as an instruct model has; fix: choose a model that was trained "
                "to answer, not a base model"
            )
        self._control_tokens = self._find_control_tokens()
        self._try_template()

    def texts(self, conversations: Sequence[Messages]) -> list[str]:
        return [_closed(text) for text in self._render([self._prepared(messages) for messages in conversations])]

    def encode(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Return the untruncated prompts as token ids."""
        if not conversations:
            return []
        # a template writes the special tokens itself
        encoded = self.tokenizer(self.texts(conversations), add_special_tokens=False, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def _prepared(self, messages: Messages) -> list[dict[str, str]]:
        safe = [dict(message) for message in messages]
        for message, token in product(safe, self._control_tokens):
            # an unbroken token could end its message and answer for the judge
            message["content"] = message["content"].replace(token, f"{token[0]} {token[1:]}")
        if self._merges_system and len(safe) > 1 and safe[0]["role"] == "system":
            system, user, *rest = safe
            return [{"role": user["role"], "content": f"{system['content']}\n\n{user['content']}"}, *rest]
        return safe

    def _find_control_tokens(self) -> list[str]:
        """Return special tokens, and added tokens in the template, for example the marks of reasoning."""
        template = json.dumps(self.template, ensure_ascii=False)
        added = self.tokenizer.added_tokens_decoder.values()
        in_template = {token.content for token in added if token.content in template}
        tokens = in_template | {token.content for token in added if token.special}
        return sorted((token for token in tokens if len(token) > 1 and not token.isspace()), key=len, reverse=True)

    def _render(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        rendered: list[str] = self.tokenizer.apply_chat_template(
            [list(messages) for messages in conversations],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        return rendered

    def _tried(self, *messages: Mapping[str, str]) -> tuple[str, str]:
        """Return the rendered messages, and what to say if they lack the user message."""
        import jinja2

        try:
            return self._render([messages])[0], "a prompt without the user message"
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            return "", f"{type(error).__name__}: {error}"

    def _try_template(self) -> None:
        """Test if the template shows a system message and if it begins reasoning."""
        user = {"role": "user", "content": "question"}
        self._merges_system = _PROBE not in self._tried({"role": "system", "content": _PROBE}, user)[0]
        text, got = self._tried(user)
        if user["content"] not in text:
            raise ModelError(
                f"chat template: got {got}; expected one that renders a user message; fix: choose another model, or "
                "correct its chat_template"
            )
        if self._merges_system:
            self.notes.append("the chat template takes no system message: its text leads the user message")
        if _closed(text) != text:
            self.notes.append("the chat template begins reasoning that cannot be switched off: it is closed at once")


def _closed(text: str) -> str:
    return f"{text.rstrip()}\n\n</think>\n\n" if text.rstrip().endswith(_REASONING) else text
