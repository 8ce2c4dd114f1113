"""Finding out how a server can be asked, with two questions whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bixse.errors import BixseError, InputError, shorten
from bixse.grading.server.answer import Reading, read_choices, read_position
from bixse.grading.server.reply import PASSING, Reply
from bixse.grading.server.request import (
    ANSWER_TOKENS,
    CONSTRAINTS,
    OWN_CONSTRAINT,
    TOP_LOGPROBS,
    RequestForm,
    next_logprobs,
    simpler_form,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bixse.grading.server.client import Outcome
    from bixse.grading.server.served_tokens import ServerTokenizer

KNOWN_QUERY = "what is the capital of France"
KNOWN_DOCUMENTS = ("Paris is the capital of France.", "Bake the bread for forty minutes.")
"""A document that answers the query, and one that has nothing to do with it."""
MANY_LOGPROBS = 1000
"""Alternatives asked for under a constraint where the options are not among the first 20 (llama.cpp gives them)."""
_ODD_WORD, _ODD_TOKENS = "zebra", 4

Wanted = Literal["auto", "token-ids", "top-logprobs", "constrained", "sample", "verbal"]
"""What `--mode` may be."""
OTHER_MODES = (
    "`--mode sample` (the share of each option in several samples) or `--mode verbal` (the one grade that is written)"
)


@dataclass(frozen=True)
class Finding:
    """How a server is asked, and what it said to the known questions."""

    form: RequestForm
    """How it is asked."""
    readings: tuple[Reading, Reading]
    """Of the relevant and of the irrelevant document."""


class Probe:
    """Finds the form of requests that one endpoint understands.

    Args:
        ask: asks known question 0 (relevant) or 1 (irrelevant) in a form.
        tokenizer: the server's.
        labels: the rubric's options.
        max_tokens: tokens the judge may write; None: as few as it needs.
        samples: how many in the mode "sample".
        address: of the endpoint, for messages.
        kind: of the server.
    """

    def __init__(
        self,
        ask: Callable[[RequestForm, int], Awaitable[Outcome[Reply]]],
        tokenizer: ServerTokenizer,
        labels: Sequence[str],
        max_tokens: int | None,
        samples: int,
        address: str,
        kind: str,
    ) -> None:
        self._ask, self._tokenizer, self._labels = ask, tokenizer, tuple(labels)
        self._max_tokens, self._samples = max_tokens, samples
        self._address, self._kind = address, kind
        self._seen: set[str] = set()

    async def find(self, model: str, wanted: Wanted) -> Finding:
        """The best form for a mode; "auto": token-ids, else top-logprobs, else constrained where only that answers.

        Raises:
            InputError: the server cannot be asked in this mode; says which modes remain.
            BixseError: the server does not work now.
        """
        if wanted in ("sample", "verbal"):
            return await self._finish(await self._written(model, wanted))
        form = RequestForm(model, "top-logprobs", self._labels, self._max_tokens or ANSWER_TOKENS)
        form, reply = await self._settle(form)
        while form.logprobs != "none" and not self._has_probabilities(form, reply):
            form, reply = await self._settle(next_logprobs(form, refused=False))
        if form.logprobs == "none":
            raise self._unusable("no usable probabilities of tokens", "a server that gives them (logprobs)")
        await self._check_labels(form)
        form, reading = await self._without_thinking(form, reply)
        if wanted == "constrained" or (wanted == "auto" and reading.status != "graded"):
            constrained = await self._constrained(form)
            if constrained is not None:
                return await self._finish(constrained)
        if wanted == "constrained":
            raise self._unusable("no way to allow only the options", "one of vLLM, SGLang or llama.cpp")
        if reading.status != "graded":
            raise self._unanswered(reading, reply)
        by_id = await self._by_id(form) if wanted != "top-logprobs" else None
        if wanted == "token-ids" and by_id is None:
            raise self._unusable("no probabilities of tokens chosen by id", "vLLM with `logprob_token_ids`")
        one_token = reading.position == 0 and self._max_tokens is None
        return await self._finish(replace(by_id or form, max_tokens=1) if one_token else by_id or form)

    async def _settle(self, form: RequestForm) -> tuple[RequestForm, Reply]:
        """Leave out what the server refuses until it answers."""
        while True:
            outcome = await self._reply(form, 0)
            if outcome.value is not None:
                return form, outcome.value
            simpler = simpler_form(form, outcome.detail)
            if simpler is None:
                raise InputError(
                    f"{self._address}: got {outcome.detail}; expected an answer to a plain chat request; fix: see "
                    "the server's log"
                )
            form = simpler

    async def _reply(self, form: RequestForm, known: int, optional: bool = False) -> Outcome[Reply]:
        """Ask a known question; an error of the server is a refusal where what is tried is optional."""
        outcome = await self._ask(form, known)
        if outcome.failure in PASSING and not (optional and outcome.failure == "strained"):
            raise BixseError(
                f"{self._address}: got {outcome.detail} in {outcome.tries} tries; expected an answer to a known "
                "question; fix: see that the server works, then give the same command again"
            )
        if outcome.value is not None:
            tokens = (
                token for choice in outcome.value.choices for place in choice.positions for token in place.alternatives
            )
            self._seen |= {text.strip() for text, _ in tokens}
        return outcome

    def _has_probabilities(self, form: RequestForm, reply: Reply) -> bool:
        """Whether probabilities came that can be some: of the answer, or of the first token where there is none."""
        reading = read_choices(reply.choices, form, self._labels)
        if reading.status == "graded" or reading.position is not None:
            return reading.status == "graded"
        positions = reply.choices[0].positions
        first = [text.strip() for text, value in positions[0].alternatives if value] if positions else []
        return len(first) > 1 and read_position(positions[0], form, first) is not None

    async def _without_thinking(self, form: RequestForm, reply: Reply) -> tuple[RequestForm, Reading]:
        """Switch reasoning off where the answer is not the first token and comes earlier without."""
        reading = read_choices(reply.choices, form, self._labels)
        if reading.status == "graded" and reading.position in (0, None):
            return form, reading
        quiet = replace(form, thinking_off=True)
        outcome = await self._reply(quiet, 0, optional=True)
        if outcome.value is not None:
            other = read_choices(outcome.value.choices, quiet, self._labels)
            before = reading.position if reading.status == "graded" else None
            if other.status == "graded" and (before is None or (other.position or 0) < before):
                return quiet, other
        return form, reading

    async def _by_id(self, form: RequestForm) -> RequestForm | None:
        """Ask for the options' tokens by id, where the server gives exactly those and not others."""
        ids = await self._tokenizer.option_ids(self._labels)
        if ids is None:
            return None
        trial = await self._reply(replace(form, mode="token-ids", token_ids=ids[:1]), 0, optional=True)
        positions = trial.value.choices[0].positions if trial.value else ()
        if not positions or len(positions[0].alternatives) > 2:
            return None  # refused, or ignored: the most probable tokens came instead
        whole = replace(form, mode="token-ids", token_ids=ids)
        outcome = await self._reply(whole, 0, optional=True)
        honoured = outcome.value and read_choices(outcome.value.choices, whole, self._labels).status == "graded"
        return whole if honoured else None

    async def _constrained(self, form: RequestForm) -> RequestForm | None:
        """Allow only the options, where the server can be shown to obey: it writes a word it would not write."""
        for kind in sorted(CONSTRAINTS, key=lambda kind: kind != OWN_CONSTRAINT.get(self._kind)):
            odd = replace(form, mode="constrained", constraint=kind, labels=(_ODD_WORD,), max_tokens=_ODD_TOKENS)
            trial = await self._reply(odd, 0, optional=True)
            wrote = trial.value.choices[0].text.strip() if trial.value is not None else ""
            if not wrote or not _ODD_WORD.startswith(wrote):
                continue
            found = replace(odd, labels=self._labels, max_tokens=self._max_tokens or 1)
            outcome = await self._reply(found, 0)
            if outcome.value is None:
                continue
            many = replace(found, top_logprobs=MANY_LOGPROBS)
            if found.top_logprobs == TOP_LOGPROBS[0] and self._hides(found, outcome.value):
                wide = await self._reply(many, 0, optional=True)
                if wide.value is not None and not self._hides(many, wide.value):
                    return many
            return found
        return None

    def _hides(self, form: RequestForm, reply: Reply) -> bool:
        """Whether an option is not among the tokens returned."""
        options = read_choices(reply.choices, form, self._labels).options
        return options is None or not all(options.probabilities)

    async def _written(self, model: str, wanted: Wanted) -> RequestForm:
        """The form of a mode that needs no probabilities."""
        drawn = wanted == "sample"
        form = RequestForm(
            model,
            "sample" if drawn else "verbal",
            self._labels,
            self._max_tokens or ANSWER_TOKENS,
            logprobs="none",
            samples=1 if drawn else 0,
            seeded=drawn,
            temperature=1.0 if drawn else 0.0,
        )
        form, reply = await self._settle(form)
        form, reading = await self._without_thinking(form, reply)
        if drawn and self._samples > 1:
            together = replace(form, samples=self._samples)
            outcome = await self._reply(together, 0, optional=True)
            if outcome.value is not None and len(outcome.value.choices) == self._samples:
                return together
        if reading.status != "graded" and not drawn:
            raise self._unanswered(reading, reply)
        return form

    async def _finish(self, form: RequestForm) -> Finding:
        """Ask both known questions in the final form; write more than one token where one is not enough."""
        await self._check_labels(form)
        replies = [(await self._reply(form, known)) for known in (0, 1)]
        readings = [
            read_choices(outcome.value.choices, form, self._labels)
            if outcome.value is not None
            else Reading("failed", detail=outcome.detail)
            for outcome in replies
        ]
        if all(reading.status == "graded" for reading in readings):
            return Finding(form, (readings[0], readings[1]))
        if form.max_tokens == 1 and self._max_tokens is None:
            return await self._finish(replace(form, max_tokens=ANSWER_TOKENS))
        if readings[0].status != "graded" and form.mode != "sample":
            raise self._unanswered(readings[0], replies[0].value)
        return Finding(form, (readings[0], readings[1]))

    async def _check_labels(self, form: RequestForm) -> None:
        """Raise an InputError where an option of several letters is not known to be one token."""
        if form.mode in ("sample", "verbal"):
            return
        for label in self._labels:
            if len(label) == 1 or label in self._seen:
                continue
            ids = await self._tokenizer.ids(label)
            if ids is None or len(ids) != 1:
                found = f"{len(ids)} tokens" if ids else "no proof that it is one token"
                raise InputError(
                    f"label {label!r}: got {found}; expected options of one token each; fix: take single digits or "
                    f"letters as labels, or choose {OTHER_MODES}"
                )

    def _unusable(self, found: str, expected: str) -> InputError:
        return InputError(f"{self._address}: got {found}; expected {expected}; fix: choose {OTHER_MODES}")

    def _unanswered(self, reading: Reading, reply: Reply | None) -> InputError:
        wrote = shorten(reply.choices[0].text.strip()) if reply is not None else "nothing"
        return InputError(
            f"{self._address}: got {wrote} to a known question ({reading.status}: {reading.detail}); expected one of "
            f"{', '.join(self._labels)}; fix: raise --max-tokens if the model reasons first, choose another model, "
            "or `--mode constrained` where the server can allow only the options"
        )
