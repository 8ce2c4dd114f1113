"""A judge and a text model behind chat servers: vLLM, SGLang, llama.cpp, Ollama, or a hosted service.

Two questions with known answers probe a server for the form of requests that it understands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bixse.errors import BixseError, InputError, shorten
from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Answer, Completion, CompletionStatus, Question, Usage, model_name, same_model
from bixse.judging.judges.client import ChatClient
from bixse.judging.judges.dialects import (
    ANSWER_TOKENS,
    CONSTRAINTS,
    MANY_LOGPROBS,
    WRITTEN,
    Reply,
    RequestForm,
    answer_position,
    read_choices,
    read_position,
    request_body,
    simpler_form,
)
from bixse.judging.judges.endpoints import TRANSIENT, RequestError, ServedModel

if TYPE_CHECKING:
    from bixse.judging.rubrics import Rubric
    from bixse.judging.spending import Spending
    from bixse.relevance import GradeScale


KNOWN_QUERY = "what is the capital of France"
KNOWN_DOCUMENTS = ("Paris is the capital of France.", "Bake the bread for forty minutes.")
"""A relevant and an irrelevant document."""
OTHER_MODES = (
    "`--mode sample` (the share of each option in several samples) or `--mode verbal` (the one grade that is written); "
    'in Python mode="sample" or mode="verbal"'
)


class Finding(NamedTuple):
    """The form of requests, and the answers about the relevant and the irrelevant document."""

    form: RequestForm
    answers: tuple[Answer, Answer]


class Probe:
    """The search for the form of requests that the server understands."""

    def __init__(self, client: ChatClient, model: ServedModel, rubric: Rubric, options: JudgeOptions) -> None:
        self.client, self._model, self._rubric = client, model, rubric
        self._wanted, self._max_tokens, self._samples = options.mode, options.max_tokens, options.samples
        self._seen: set[str] = set()
        self.other_models: set[str] = set()  # that answered in place of the requested model

    async def find(self) -> Finding:
        """Return the best form for the mode; "auto" is top-logprobs, or constrained if that gives no answer.

        Raise InputError if the server cannot answer in this mode, BixseError if it does not work now.
        """
        if self._wanted in WRITTEN:
            return await self._finish(await self._written())
        form = RequestForm(
            self._model.id, "top-logprobs", self._rubric.labels, max_tokens=self._max_tokens or ANSWER_TOKENS
        )
        form, reply = await self._settle(form)
        if not form.top_logprobs or not self._has_probabilities(form, reply):
            raise InputError(
                f"{self.client.address}: got no usable probabilities of tokens; expected a server that gives them "
                f"(logprobs); fix: choose {OTHER_MODES}"
            )
        self._check_labels(form)
        form, reply = await self._without_thinking(form, reply)
        answer = self._read(form, reply)
        if answer.status != "graded":
            constrained = await self._constrained(form)
            if constrained is None:
                raise self._unanswered(answer)
            return await self._finish(constrained)
        one_token = self._position(reply) == 0 and self._max_tokens is None
        return await self._finish(replace(form, max_tokens=1) if one_token else form)

    async def _reply(self, form: RequestForm, known: int) -> Reply | RequestError:
        messages = self._rubric.variants[0].messages(KNOWN_QUERY, KNOWN_DOCUMENTS[known])
        try:
            reply = await self.client.chat(request_body(form, messages, seed=0))
        except RequestError as error:
            if error.failure == "away":
                raise BixseError(
                    f"{self.client.address}: got {error.detail} in {error.tries} tries; expected an answer to a "
                    "known question; fix: see that the server works, then give the same command again"
                ) from None
            return error
        if not same_model(self._model.id, reply.model):
            self.other_models.add(model_name(reply.model))
        self._seen |= {
            text.strip()
            for choice in reply.choices
            for position in choice.positions
            for text, _ in position.alternatives
        }
        return reply

    async def _try(self, form: RequestForm) -> Reply | None:
        reply = await self._reply(form, 0)
        return None if isinstance(reply, RequestError) else reply

    async def _settle(self, form: RequestForm) -> tuple[RequestForm, Reply]:
        """Simplify the form until the server answers; return both."""
        doubted: RequestForm | None = None
        while True:
            reply = await self._reply(form, 0)
            if not isinstance(reply, RequestError):  # was it the form, or was the server down for a moment?
                again = doubted and await self._try(doubted)
                return (doubted, again) if doubted and again else (form, reply)
            if reply.failure in TRANSIENT:
                doubted = doubted or form
            simpler = simpler_form(form, reply.detail)
            if simpler is None:
                error = BixseError if reply.failure in TRANSIENT else InputError
                raise error(
                    f"{self.client.address}: got {reply.detail}; expected an answer to a plain chat request; "
                    "fix: see the server's log"
                )
            form = simpler

    def _read(self, form: RequestForm, reply: Reply) -> Answer:
        return read_choices(reply.choices, form, self._rubric)

    def _position(self, reply: Reply) -> int | None:
        return answer_position(reply.choices[0], self._rubric.labels)

    def _has_probabilities(self, form: RequestForm, reply: Reply) -> bool:
        """Return True if the token of the answer, or else the first token, has usable probabilities."""
        choice = reply.choices[0]
        if not choice.positions:
            return False
        position = choice.positions[self._position(reply) or 0]
        return read_position(position, form, [text.strip() for text, _ in position.alternatives]) is not None

    async def _without_thinking(self, form: RequestForm, reply: Reply) -> tuple[RequestForm, Reply]:
        """Switch reasoning off if the answer is not the first token and comes earlier without reasoning."""
        graded = self._read(form, reply).status == "graded"
        before = self._position(reply) if graded else None
        if graded and before in (0, None):
            return form, reply
        quiet = replace(form, thinking_off=True)
        other = await self._try(quiet)
        helps = other is not None and self._read(quiet, other).status == "graded"
        if other is not None and helps and (before is None or (self._position(other) or 0) < before):
            return quiet, other
        return form, reply

    async def _constrained(self, form: RequestForm) -> RequestForm | None:
        """Return the form that allows only the options, if its answer is one, which it was not without constraint."""
        for kind in sorted(CONSTRAINTS.values(), key=lambda kind: kind != CONSTRAINTS.get(self._model.kind)):
            count = MANY_LOGPROBS if kind == CONSTRAINTS["llama.cpp"] else form.top_logprobs
            tokens = self._max_tokens or 1
            constrained = replace(form, mode="constrained", constraint=kind, max_tokens=tokens, top_logprobs=count)
            reply = await self._try(constrained)
            if reply is not None and self._read(constrained, reply).status == "graded":
                return constrained
        return None

    async def _written(self) -> RequestForm:
        drawn = self._wanted == "sample"
        form = RequestForm(
            self._model.id,
            "sample" if drawn else "verbal",
            self._rubric.labels,
            self._max_tokens or ANSWER_TOKENS,
            top_logprobs=0,
            samples=1 if drawn else 0,
            seeded=drawn,
            temperature=1.0 if drawn else 0.0,
        )
        form, reply = await self._settle(form)
        form, reply = await self._without_thinking(form, reply)
        if drawn and self._samples > 1:
            together = replace(form, samples=self._samples)
            several = await self._try(together)
            if several is not None and len(several.choices) == self._samples:
                return together
        answer = self._read(form, reply)
        if answer.status != "graded" and not drawn:
            raise self._unanswered(answer)
        return form

    async def _finish(self, form: RequestForm) -> Finding:
        """Ask both known questions in the final form; allow more tokens if one token is not enough."""
        self._check_labels(form)
        relevant, irrelevant = [await self._known(form, known) for known in (0, 1)]
        if relevant.status == irrelevant.status == "graded":
            return Finding(form, (relevant, irrelevant))
        if form.max_tokens == 1 and self._max_tokens is None:
            return await self._finish(replace(form, max_tokens=ANSWER_TOKENS))
        if relevant.status != "graded" and form.mode != "sample":
            raise self._unanswered(relevant)
        return Finding(form, (relevant, irrelevant))

    async def _known(self, form: RequestForm, known: int) -> Answer:
        reply = await self._reply(form, known)
        return reply.answer(form.mode) if isinstance(reply, RequestError) else self._read(form, reply)

    def _check_labels(self, form: RequestForm) -> None:
        """Raise InputError if an option of several letters was not seen as one token."""
        for label in self._rubric.labels:
            if form.mode not in WRITTEN and len(label) > 1 and label not in self._seen:
                raise InputError(
                    f"label {label!r}: got no proof that it is one token; expected options of one token each; fix: "
                    f"take single digits or letters as labels, or choose {OTHER_MODES}"
                )

    def _unanswered(self, answer: Answer) -> InputError:
        return InputError(
            f"{self.client.address}: got {shorten(answer.text.strip())} to a known question ({answer.status}: "
            f"{answer.detail}); expected one of {', '.join(self._rubric.labels)}; fix: raise --max-tokens if the model "
            f"reasons first, choose another model, or {OTHER_MODES}"
        )


LITTLE_MASS = 0.5
"""Total probability of the options on a clear question below which a warning appears."""


class ServerModel:
    """A model behind a server with OpenAI's chat interface.

    Raise InputError for an unusable address, model or key, ServerDownError if the server does not answer, and
    OverBudgetError if the limit of `spending` is reached. Without `spending`, requests wait for it.
    """

    def __init__(self, address: str, settings: ServerSettings, spending: Spending | None = None) -> None:
        self.client = ChatClient(address, settings, spending)
        self._added = {"body": settings.body} if settings.body else {}  # without it, the keys of ledgers stay the same
        try:
            self.client.run(self.connect(settings))
        except BaseException:
            self.client.close()
            raise

    async def connect(self, settings: ServerSettings) -> None:
        self._model = await self.client.served_model(settings.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._model.name

    def close(self) -> None:
        self.client.close()


class ServerJudge(ServerModel):
    """A judge behind a server, which is first probed with questions of known answers."""

    def __init__(
        self, address: str, rubric: Rubric, options: JudgeOptions | None = None, spending: Spending | None = None
    ) -> None:
        self._rubric, self._options = rubric, options or JudgeOptions()
        super().__init__(address, self._options, spending)

    async def connect(self, settings: ServerSettings) -> None:
        """Find the form of requests."""
        await super().connect(settings)
        probe = Probe(self.client, self._model, self._rubric, self._options)
        self._finding = await probe.find()
        self._other_models = probe.other_models

    def __repr__(self) -> str:
        return f"ServerJudge({self.name!r}, mode={self.form.mode!r})"

    @property
    def scale(self) -> GradeScale:
        return self._rubric.scale

    @property
    def form(self) -> RequestForm:
        return self._finding.form

    @property
    def at_once(self) -> int:
        return self.client.at_once

    @property
    def identity(self) -> Mapping[str, Any]:
        samples = {"samples": self._options.samples} if self.form.mode == "sample" else {}
        return {
            "kind": "server",
            "model": self._model.name,
            "revision": None,  # part of the keys of existing ledgers
            "server": self._model.kind,
            "mode": self.form.mode,
            "parameters": {**self.form.parameters, **samples},
            "labels": list(self._rubric.labels),
            "values": list(self._rubric.values),
            **self._added,
        }

    @property
    def doubts(self) -> list[str]:
        known = self._finding.answers
        doubts = [
            f"{self.name} gave no grade to a known question: {answer.status} ({answer.detail})"
            for answer in known
            if answer.status != "graded"
        ]
        relevant, irrelevant = (answer.grade for answer in known)
        if relevant is not None and irrelevant is not None and relevant <= irrelevant:
            doubts.append(
                f"{self.name} grades a document that answers the query {relevant:.2f}, and an unrelated one "
                f"{irrelevant:.2f}: do not trust its grades"
            )
        mass = min((answer.mass for answer in known if answer.status == "graded"), default=1.0)
        if mass < LITTLE_MASS:
            doubts.append(
                f"{self.name} puts only {mass:.0%} of its probability on the options "
                f"{', '.join(self._rubric.labels)} where the answer is clear: its grades are unreliable"
            )
        if self._other_models:
            doubts.append(f"known questions to {self.name} were answered by {', '.join(sorted(self._other_models))}")
        return doubts

    warnings = doubts

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        return self.client.stream(questions, self._answer)

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        return None

    async def _answer(self, question: Question) -> Answer:
        if not question.messages:
            raise InputError(
                f"question {question.query_id!r}, {question.document_id!r}: got no messages; expected the rubric's; "
                "fix: render it with PromptVariant.messages"
            )
        seeds: Iterable[int | None] = [None]
        if self.form.mode == "sample":
            first = 1 + question.repeat * self._options.samples  # the probe has seed 0; a repetition gets new seeds
            seeds = range(first, first + self._options.samples, self.form.samples)
        bodies = [request_body(self.form, question.messages, seed) for seed in seeds]
        ended = await asyncio.gather(*map(self.client.chat, bodies), return_exceptions=True)
        replies = [reply for reply in ended if isinstance(reply, Reply)]
        usage, tries = sum((reply.usage for reply in replies), Usage()), sum(reply.tries for reply in replies)
        for error in ended:
            if isinstance(error, RequestError):  # the other samples are paid for
                answer = error.answer(self.form.mode)
                return replace(answer, judge=self.name, usage=usage, tries=answer.tries + tries)
            if isinstance(error, BaseException):
                raise error
        models = [reply.model for reply in replies if reply.model]
        other = next((model for model in models if not same_model(self._model.id, model)), None)
        return replace(
            read_choices([choice for reply in replies for choice in reply.choices], self.form, self._rubric),
            usage=usage,
            seconds=max(reply.seconds for reply in replies),
            judge=model_name(other or (models[0] if models else self.name)),
            tries=tries,
        )


class ServerTextModel(ServerModel):
    """A `TextModel` behind a server."""

    def __init__(
        self,
        address: str,
        settings: ServerSettings | None = None,
        temperature: float = 0.7,
        max_tokens: int = 64,
        spending: Spending | None = None,
    ) -> None:
        self._parameters = {"temperature": temperature, "max_tokens": max_tokens}
        super().__init__(address, settings or ServerSettings(), spending)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "query writer",  # part of the keys of existing ledgers
            "model": self._model.name,
            "server": self._model.kind,
            "revision": None,  # part of the keys of existing ledgers
            "parameters": self._parameters,
            **self._added,
        }

    def complete(self, prompts: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        return self.client.stream(prompts, self._complete)

    async def _complete(self, prompt: Question) -> Completion:
        messages = [dict(message) for message in prompt.messages]
        body = {"model": self._model.id, "messages": messages, **self._parameters, "seed": prompt.repeat}
        try:
            reply = await self.client.chat(body)
        except RequestError as error:
            status: CompletionStatus = error.failure if error.failure in ("too-long", "filtered") else "failed"
            return Completion(status, "", Usage(), error.seconds, self.name, error.detail, error.tries)
        cut: dict[str, CompletionStatus] = {"content_filter": "filtered", "length": "truncated"}
        choice = reply.choices[0]
        status = cut.get(choice.finish_reason, "written")
        return Completion(status, choice.text, reply.usage, reply.seconds, self.name, tries=reply.tries)
