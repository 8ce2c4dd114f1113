"""A judge and a text model behind chat servers: vLLM, SGLang, llama.cpp, Ollama, or a hosted service.

Two questions with known answers probe a server for the form of requests that it understands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bixse.errors import BixseError, InputError, shorten
from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Answer, AnyJudge, Completion, CompletionStatus, Question, Usage, model_name, same_model
from bixse.judging.judges.client import ChatClient
from bixse.judging.judges.dialects import (
    ANSWER_TOKENS,
    CONSTRAINTS,
    MANY_LOGPROBS,
    WRITTEN,
    Choice,
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


KNOWN_QUERY = "what is the capital of France"
KNOWN_DOCUMENTS = ("Paris is the capital of France.", "Bake the bread for forty minutes.")
"""A relevant and an irrelevant document."""
LITTLE_MASS = 0.5
"""Total probability of the options on a clear question below which a warning appears."""
OTHER_MODES = (
    "`--mode sample` (the share of each option in several samples) or `--mode verbal` (the one grade that is written); "
    'in Python mode="sample" or mode="verbal"'
)


class Trial(NamedTuple):
    """A known question in one form of requests, and its answer; `error` if the server refused it."""

    form: RequestForm
    answer: Answer
    choices: tuple[Choice, ...] = ()
    position: int | None = None
    """Index of the token that is the answer."""
    error: RequestError | None = None

    @property
    def is_graded(self) -> bool:
        return self.answer.status == "graded"

    @property
    def has_probabilities(self) -> bool:
        """Return True if the token of the answer, or else the first token, has usable probabilities."""
        if not self.form.top_logprobs or not self.choices[0].positions:
            return False
        position = self.choices[0].positions[self.position or 0]
        return read_position(position, self.form, [text.strip() for text, _ in position.alternatives]) is not None


class Probe:
    """The search for the form of requests that the server understands."""

    def __init__(self, client: ChatClient, model: ServedModel, rubric: Rubric, options: JudgeOptions) -> None:
        self.client, self._model, self._rubric = client, model, rubric
        self._wanted, self._max_tokens, self._samples = options.mode, options.max_tokens, options.samples
        self._seen: set[str] = set()
        self._other_models: set[str] = set()  # that answered in place of the requested model
        self._known: list[Answer] = []  # about the relevant and the irrelevant document, in the best form

    async def find(self) -> RequestForm:
        """Return the best form for the mode; "auto" is top-logprobs, or constrained if that gives no answer.

        Raise InputError if the server cannot answer in this mode, BixseError if it does not work now.
        """
        if self._wanted in WRITTEN:
            return await self._finish(await self._written())
        trial = await self._settle(
            RequestForm(self._model.id, "top-logprobs", self._rubric.labels, self._max_tokens or ANSWER_TOKENS)
        )
        if not trial.has_probabilities:
            raise InputError(
                f"{self.client.address}: got no usable probabilities of tokens; expected a server that gives them "
                f"(logprobs); fix: choose {OTHER_MODES}"
            )
        self._check_labels(trial.form)
        trial = await self._without_thinking(trial)
        if not trial.is_graded:
            return await self._finish(await self._constrained(trial))
        one_token = trial.position == 0 and self._max_tokens is None
        return await self._finish(replace(trial.form, max_tokens=1) if one_token else trial.form)

    def doubts(self) -> list[str]:
        """Return reasons against the judge's grades, from its answers to the known questions."""
        name, labels = self._model.name, ", ".join(self._rubric.labels)
        doubts = [
            f"{name} gave no grade to a known question: {answer.status} ({answer.detail})"
            for answer in self._known
            if answer.status != "graded"
        ]
        relevant, irrelevant = (answer.grade for answer in self._known)
        if relevant is not None and irrelevant is not None and relevant <= irrelevant:
            doubts.append(
                f"{name} grades a document that answers the query {relevant:.2f}, and an unrelated one "
                f"{irrelevant:.2f}: do not trust its grades"
            )
        mass = min((answer.mass for answer in self._known if answer.status == "graded"), default=1.0)
        if mass < LITTLE_MASS:
            doubts.append(
                f"{name} puts only {mass:.0%} of its probability on the options {labels} where the answer is clear: "
                "its grades are unreliable"
            )
        if self._other_models:
            doubts.append(f"known questions to {name} were answered by {', '.join(sorted(self._other_models))}")
        return doubts

    async def _ask(self, form: RequestForm, known: int = 0) -> Trial:
        """Ask about one of the known documents."""
        messages = self._rubric.variants[0].messages(KNOWN_QUERY, KNOWN_DOCUMENTS[known])
        try:
            reply = await self.client.chat(request_body(form, messages, seed=0))
        except RequestError as error:
            if error.failure == "away":
                raise BixseError(
                    f"{self.client.address}: got {error.detail} in {error.tries} tries; expected an answer to a "
                    "known question; fix: see that the server works, then give the same command again"
                ) from None
            return Trial(form, error.answer(form.mode), error=error)
        if not same_model(self._model.id, reply.model):
            self._other_models.add(model_name(reply.model))
        positions = [position for choice in reply.choices for position in choice.positions]
        self._seen |= {text.strip() for position in positions for text, _ in position.alternatives}
        answer = read_choices(reply.choices, form, self._rubric)
        return Trial(form, answer, reply.choices, answer_position(reply.choices[0], self._rubric.labels))

    async def _settle(self, form: RequestForm) -> Trial:
        """Simplify the form until the server answers."""
        doubted: RequestForm | None = None
        while True:
            trial = await self._ask(form)
            if trial.error is None:  # was it the form, or was the server down for a moment?
                again = await self._ask(doubted) if doubted else trial
                return trial if again.error else again
            if trial.error.failure in TRANSIENT:
                doubted = doubted or form
            simpler = simpler_form(form, trial.error.detail)
            if simpler is None:
                error = BixseError if trial.error.failure in TRANSIENT else InputError
                raise error(
                    f"{self.client.address}: got {trial.error.detail}; expected an answer to a plain chat request; "
                    "fix: see the server's log"
                )
            form = simpler

    async def _without_thinking(self, trial: Trial) -> Trial:
        """Switch reasoning off if the answer is not the first token and comes earlier without reasoning."""
        if trial.is_graded and not trial.position:
            return trial
        quiet = await self._ask(replace(trial.form, thinking_off=True))
        is_earlier = not trial.is_graded or (quiet.position or 0) < (trial.position or 0)
        return quiet if quiet.is_graded and is_earlier else trial

    async def _constrained(self, trial: Trial) -> RequestForm:
        """Return the form that allows only the options, if its answer is one, which it was not without constraint."""
        for kind in sorted(CONSTRAINTS.values(), key=lambda kind: kind != CONSTRAINTS.get(self._model.kind)):
            count = MANY_LOGPROBS if kind == CONSTRAINTS["llama.cpp"] else trial.form.top_logprobs
            tokens = self._max_tokens or 1
            form = replace(trial.form, mode="constrained", constraint=kind, max_tokens=tokens, top_logprobs=count)
            if (await self._ask(form)).is_graded:
                return form
        raise self._unanswered(trial.answer)

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
        trial = await self._without_thinking(await self._settle(form))
        if drawn and self._samples > 1:
            together = replace(trial.form, samples=self._samples)
            if len((await self._ask(together)).choices) == self._samples:
                return together
        if not drawn and not trial.is_graded:
            raise self._unanswered(trial.answer)
        return trial.form

    async def _finish(self, form: RequestForm) -> RequestForm:
        """Ask both known questions in the final form; allow more tokens if one token is not enough."""
        self._check_labels(form)
        self._known = [(await self._ask(form, known)).answer for known in range(len(KNOWN_DOCUMENTS))]
        if {answer.status for answer in self._known} == {"graded"}:
            return form
        if form.max_tokens == 1 and self._max_tokens is None:
            return await self._finish(replace(form, max_tokens=ANSWER_TOKENS))
        if self._known[0].status != "graded" and form.mode != "sample":
            raise self._unanswered(self._known[0])
        return form

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


class ServerModel:
    """A model behind a server with OpenAI's chat interface.

    Raise InputError for an unusable address, model or key, ServerDownError if the server does not answer, and
    OverBudgetError if the limit of `spending` is reached. Without `spending`, requests wait for it.
    """

    def __init__(self, address: str, settings: ServerSettings, spending: Spending | None = None) -> None:
        self.client = ChatClient(address, settings, spending)
        self.at_once = settings.concurrency
        try:
            self.client.run(self.connect(settings))
        except BaseException:
            self.client.close()
            raise

    async def connect(self, settings: ServerSettings) -> None:
        self._model = await self.client.served_model(settings.model)
        self.name = self._model.name
        self.identity: dict[str, Any] = {  # part of the keys of ledgers, which stay the same without a body
            "model": self.name,
            "server": self._model.kind,
            "revision": None,
            **({"body": settings.body} if settings.body else {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()


class ServerJudge(ServerModel, AnyJudge):
    """A judge behind a server, which is first probed with questions of known answers."""

    def __init__(
        self, address: str, rubric: Rubric, options: JudgeOptions | None = None, spending: Spending | None = None
    ) -> None:
        self._rubric, self._options, self.scale = rubric, options or JudgeOptions(), rubric.scale
        super().__init__(address, self._options, spending)

    async def connect(self, settings: ServerSettings) -> None:
        """Find the form of requests."""
        await super().connect(settings)
        probe = Probe(self.client, self._model, self._rubric, self._options)
        self.form = await probe.find()
        self.doubts = self.warnings = probe.doubts()
        samples = {"samples": self._options.samples} if self.form.mode == "sample" else {}
        self.identity |= {
            "kind": "server",
            "mode": self.form.mode,
            "parameters": {**self.form.parameters, **samples},
            "labels": list(self._rubric.labels),
            "values": list(self._rubric.values),
        }

    def __repr__(self) -> str:
        return f"ServerJudge({self.name!r}, mode={self.form.mode!r})"

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        return self.client.stream(questions, self._answer)

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
        self.identity |= {"kind": "query writer", "parameters": self._parameters}

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
