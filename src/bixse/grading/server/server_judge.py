"""A judge that answers over HTTP: vLLM, SGLang, llama.cpp, Ollama, or a hosted service with OpenAI's interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

from bixse.errors import InputError, did_you_mean
from bixse.grading.judge import Answer, Usage
from bixse.grading.model_names import model_name, same_model
from bixse.grading.server.answer import STATUS_OF_FAILURE, Reading, read_choices
from bixse.grading.server.client import Outcome, ServerClient
from bixse.grading.server.probe import KNOWN_DOCUMENTS, KNOWN_QUERY, Finding, Probe, Wanted
from bixse.grading.server.reply import PASSING, Reply
from bixse.grading.server.request import RequestForm, request_body
from bixse.grading.server.served_tokens import ServerTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bixse.grading.judge import Question
    from bixse.grading.rubrics import Rubric
    from bixse.grading.server.endpoints import Endpoint
    from bixse.relevance import GradeScale

TEXT_WIDTH = 200
"""Characters of an answer's text that are kept."""
LITTLE_MASS = 0.5
"""Below this probability of the options together, on a clear question, a warning is due."""


class ServerJudge:
    """Asks servers that speak OpenAI's chat interface; probes them first with questions whose answers are known.

    Args:
        endpoints: addresses with or without `/v1`; several serve the same model and share the work.
        rubric: the options, and the wording of the known questions.
        model: model id; None: the one that is served.
        mode: "auto" (probabilities of the options, or an error) or one of `Wanted`.
        api_key_variable: environment variable that holds the key.
        concurrency: most requests at once an endpoint; fewer where the server copes with fewer.
        timeout: seconds for one try.
        connect_timeout: seconds until a connection stands.
        tries: most tries of one request.
        patience: seconds without any answer after which the run stops.
        samples: answers drawn a question in the mode "sample".
        max_tokens: tokens the judge may write; None: one where the first is the answer, else 16.
        revision: revision of the model, part of the identity.

    Raises:
        InputError: settings, addresses, model, key or mode that cannot be used; says how to fix it.
        ServerDownError: no endpoint answers.

    Example:
        >>> judge = ServerJudge(["http://localhost:8000"], rubric)                              # doctest: +SKIP
        >>> for question, answer in judge.answers(questions):                                   # doctest: +SKIP
        ...     answer.status, answer.grade, answer.mode
        ('graded', 2.61, 'token-ids')
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        rubric: Rubric,
        model: str | None = None,
        mode: str = "auto",
        api_key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 120.0,
        connect_timeout: float = 10.0,
        tries: int = 6,
        patience: float = 300.0,
        samples: int = 10,
        max_tokens: int | None = None,
        revision: str | None = None,
    ) -> None:
        if mode not in get_args(Wanted):
            raise InputError(
                f"--mode: got {mode!r}; expected one of {', '.join(get_args(Wanted))}; fix: "
                f"{did_you_mean(mode, get_args(Wanted))}"
            )
        for name, value in (("samples", samples), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise InputError(f"{name}: got {value}; expected 1 or more; fix: leave it out")
        self._rubric, self._samples, self._revision = rubric, samples, revision
        self._others: set[str] = set()
        self._client = ServerClient(
            endpoints,
            api_key_variable=api_key_variable,
            concurrency=concurrency,
            timeout=timeout,
            connect_timeout=connect_timeout,
            tries=tries,
            patience=patience,
        )
        try:
            self._model = self._client.served_model(model)
            self._tokenizer = ServerTokenizer(self._client, self._model)
            self.finding: Finding = self._client.loop.run(self._probe(mode, max_tokens))
        except BaseException:
            self._client.close()
            raise
        self._client.check = self._still_fits

    def __repr__(self) -> str:
        return f"ServerJudge({self.name!r}, mode={self.form.mode!r})"

    def __enter__(self) -> ServerJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def scale(self) -> GradeScale:
        """The rubric's."""
        return self._rubric.scale

    @property
    def form(self) -> RequestForm:
        """How questions are asked, as the probe found it."""
        return self.finding.form

    @property
    def at_once(self) -> int:
        """Questions under way at once, as many as the servers cope with so far."""
        return self._client.pool.allowed

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides an answer besides the question; no address, no key."""
        parameters = self.form.parameters
        if self.form.mode == "sample":
            parameters["samples"] = self._samples
        return {
            "judge": "server",
            "model": self._model.name,
            "revision": self._revision,
            "server": self._model.kind,
            "mode": self.form.mode,
            "parameters": parameters,
            "labels": list(self._rubric.labels),
            "values": list(self._rubric.values),
        }

    @property
    def warnings(self) -> list[str]:
        """What a user should know."""
        return self.doubts

    @property
    def doubts(self) -> list[str]:
        """What the known questions showed against its grades; stands before anything else is asked."""
        readings = self.finding.readings
        found = [
            f"{self.name} gave no grade to a known question: {reading.status} ({reading.detail})"
            for reading in readings
            if reading.status != "graded"
        ]
        relevant, irrelevant = (reading.grade(self._rubric)[0] for reading in readings)
        if relevant is not None and irrelevant is not None and relevant <= irrelevant:
            found.append(
                f"{self.name} grades a document that answers the query {relevant:.2f}, and one that has nothing to do "
                f"with it {irrelevant:.2f}: do not trust its grades"
            )
        masses = [reading.options.mass for reading in readings if reading.options is not None]
        if min(masses, default=1.0) < LITTLE_MASS:
            found.append(
                f"{self.name} puts only {min(masses):.0%} of its probability on the options "
                f"{', '.join(self._rubric.labels)} where the answer is clear: its grades rest on little"
            )
        if self._others:
            found.append(f"known questions to {self.name} were answered by {', '.join(sorted(self._others))}")
        return found

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions as they come, many at once; closing the generator cancels what is under way.

        Raises:
            InputError: a failure that all questions would share (a key that does not count, a model that went away).
            ServerDownError: no endpoint has answered for long.
        """
        return self._client.loop.stream(questions, self._answer, lambda: self._client.pool.room)

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Prompt tokens of each question by the server's tokenizer, or None where it has none to ask."""

        async def count(entry: tuple[int, Question]) -> int | None:
            return await self._tokenizer.count(entry[1].messages, self.form)

        counts: dict[int, int] = {}
        for (index, _), found in self._client.loop.stream(enumerate(questions), count, lambda: self._client.pool.room):
            if found is None:
                return None
            counts[index] = found
        return [counts[index] for index in range(len(questions))]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _answer(self, question: Question) -> Answer:
        if not question.messages:
            raise InputError(
                f"question {question.query_id!r}, {question.document_id!r}: got no messages; expected the rubric's; to "
                "mend: render it with RubricOrder.messages"
            )
        if self.form.mode != "sample":
            return self._read([await self._client.chat(request_body(self.form, question.messages))])
        first = 1 + question.repeat * self._samples
        seeds = range(first, first + self._samples, self.form.samples)
        bodies = [request_body(self.form, question.messages, seed) for seed in seeds]
        return self._read(await asyncio.gather(*(self._client.chat(body) for body in bodies)))

    def _read(self, outcomes: Sequence[Outcome[Reply]]) -> Answer:
        """The answer that the requests of one question brought: one request, or one for each sample."""
        replies = [outcome.value for outcome in outcomes if outcome.value is not None]
        failed = next((outcome for outcome in outcomes if outcome.failure is not None), None)
        if failed is not None and failed.failure is not None:
            reading = Reading(STATUS_OF_FAILURE.get(failed.failure, "failed"), detail=failed.detail)
        else:
            choices = [choice for reply in replies for choice in reply.choices]
            reading = read_choices(choices, self.form, self._rubric.labels)
        grade, low, high = reading.grade(self._rubric)
        texts = [choice.text for reply in replies for choice in reply.choices]
        models = [reply.model for reply in replies if reply.model]
        answered = next((m for m in models if not same_model(self._model.id, m)), models[0] if models else self.name)
        return Answer(
            status=reading.status,
            mode=self.form.mode,
            probabilities=reading.options.probabilities if reading.options is not None else (),
            grade=grade,
            low=low,
            high=high,
            text=" | ".join(texts)[:TEXT_WIDTH],
            usage=sum((reply.usage for reply in replies), Usage()),
            seconds=max(outcome.seconds for outcome in outcomes),
            judge=model_name(answered),
            detail=reading.detail[:TEXT_WIDTH],
            tries=sum(outcome.tries for outcome in outcomes),
        )

    async def _known(self, form: RequestForm, which: int, endpoint: Endpoint) -> Outcome[Reply]:
        messages = self._rubric.orders[0].messages(KNOWN_QUERY, KNOWN_DOCUMENTS[which])
        outcome = await self._client.chat(request_body(form, messages, seed=0), endpoint)
        if outcome.value is not None and not same_model(self._model.id, outcome.value.model):
            self._others.add(model_name(outcome.value.model))
        return outcome

    async def _probe(self, mode: Any, max_tokens: int | None) -> Finding:
        """Find the form with the first endpoint that answers, and see that the others understand it."""
        first, *others = [endpoint for endpoint in self._client.pool.endpoints if not endpoint.resting]

        async def ask(form: RequestForm, which: int) -> Outcome[Reply]:
            return await self._known(form, which, first)

        probe = Probe(
            ask,
            self._tokenizer,
            self._rubric.labels,
            max_tokens,
            self._samples,
            first.address.api,
            self._model.kind,
        )
        finding = await probe.find(self._model.id, mode)
        self.finding = finding
        fits = await asyncio.gather(*(self._still_fits(endpoint) for endpoint in others))
        for endpoint, fit in zip(others, fits, strict=True):
            if not fit:
                self._client.pool.rest(endpoint)
        return finding

    async def _still_fits(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint answers a known question in the form that was found; False: it does not answer now.

        Raises:
            InputError: it answers, but not in this form.
        """
        outcome = await self._known(self.form, 0, endpoint)
        if outcome.failure in PASSING:
            return False
        choices = outcome.value.choices if outcome.value is not None else ()
        reading = read_choices(choices, self.form, self._rubric.labels) if choices else None
        if reading is None or reading.status != "graded":
            found = outcome.detail if reading is None else f"{reading.status} ({reading.detail})"
            raise InputError(
                f"{endpoint.address.api}: got {found} to a known question; expected an answer in the mode "
                f"{self.form.mode} as from the other endpoints; fix: run the same server everywhere"
            )
        return True
