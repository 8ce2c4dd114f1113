"""A judge and a text model that answer over HTTP: vLLM, SGLang, llama.cpp, Ollama, or a hosted service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from bixse.errors import InputError
from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Answer, Completion, CompletionStatus, Question, Usage, model_name, same_model
from bixse.judging.judges.client import ChatClient
from bixse.judging.judges.dialects import RequestForm, read_choices, request_body
from bixse.judging.judges.endpoints import RequestError
from bixse.judging.judges.probe import Finding, Probe, prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bixse.judging.rubrics import Rubric
    from bixse.relevance import GradeScale

LITTLE_MASS = 0.5
"""Warn below this total probability of the options on a clear question."""


class ServerModel:
    """A model behind one or several servers that speak OpenAI's chat interface and share the work.

    Raise InputError for unusable addresses, model or key, ServerDownError if no endpoint answers.
    """

    def __init__(self, endpoints: Sequence[str], settings: ServerSettings) -> None:
        self._revision = settings.revision
        self._client = ChatClient(endpoints, settings)
        try:
            self._model = self._client.run(self._client.served_model(settings.model))
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._model.name

    def close(self) -> None:
        self._client.close()


class ServerJudge(ServerModel):
    """A judge that asks servers, which it first probes with questions of known answers."""

    def __init__(self, endpoints: Sequence[str], rubric: Rubric, options: JudgeOptions | None = None) -> None:
        options = options or JudgeOptions()
        super().__init__(endpoints, options)
        self._rubric, self._samples = rubric, options.samples
        try:
            self._finding, self._other_models = self._client.run(self._probe(options))
        except BaseException:
            self.close()
            raise

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
        return self._client.at_once

    @property
    def identity(self) -> Mapping[str, Any]:
        samples = {"samples": self._samples} if self.form.mode == "sample" else {}
        return {
            "kind": "server",
            "model": self._model.name,
            "revision": self._revision,
            "server": self._model.kind,
            "mode": self.form.mode,
            "parameters": {**self.form.parameters, **samples},
            "labels": list(self._rubric.labels),
            "values": list(self._rubric.values),
        }

    @property
    def warnings(self) -> list[str]:
        return self.doubts

    @property
    def doubts(self) -> list[str]:
        known = self._finding.answers
        found = [
            f"{self.name} gave no grade to a known question: {answer.status} ({answer.detail})"
            for answer in known
            if answer.status != "graded"
        ]
        relevant, irrelevant = (answer.grade for answer in known)
        if relevant is not None and irrelevant is not None and relevant <= irrelevant:
            found.append(
                f"{self.name} grades a document that answers the query {relevant:.2f}, and one that has nothing to do "
                f"with it {irrelevant:.2f}: do not trust its grades"
            )
        mass = min((answer.mass for answer in known if answer.status == "graded"), default=1.0)
        if mass < LITTLE_MASS:
            found.append(
                f"{self.name} puts only {mass:.0%} of its probability on the options "
                f"{', '.join(self._rubric.labels)} where the answer is clear: its grades rest on little"
            )
        if self._other_models:
            found.append(f"known questions to {self.name} were answered by {', '.join(sorted(self._other_models))}")
        return found

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        return self._client.stream(questions, self._answer)

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Count prompt tokens with the server's tokenizer; None without one."""

        async def count(numbered: tuple[int, Question]) -> int | None:
            return await prompt_tokens(self._client, self._model, numbered[1].messages, self.form)

        counts: dict[int, int] = {}
        for (index, _), found in self._client.stream(enumerate(questions), count):
            if found is None:
                return None
            counts[index] = found
        return [counts[index] for index in range(len(questions))]

    async def _answer(self, question: Question) -> Answer:
        if not question.messages:
            raise InputError(
                f"question {question.query_id!r}, {question.document_id!r}: got no messages; expected the rubric's; "
                "fix: render it with PromptVariant.messages"
            )
        try:
            if self.form.mode == "sample":
                first = 1 + question.repeat * self._samples
                seeds = range(first, first + self._samples, self.form.samples)
                bodies = [request_body(self.form, question.messages, seed) for seed in seeds]
                replies = await asyncio.gather(*(self._client.chat(body) for body in bodies))
            else:
                replies = [await self._client.chat(request_body(self.form, question.messages))]
        except RequestError as error:
            return replace(error.answer(self.form.mode), judge=self.name)
        models = [reply.model for reply in replies if reply.model]
        other = next((model for model in models if not same_model(self._model.id, model)), None)
        return replace(
            read_choices([choice for reply in replies for choice in reply.choices], self.form, self._rubric),
            usage=sum((reply.usage for reply in replies), Usage()),
            seconds=max(reply.seconds for reply in replies),
            judge=model_name(other or (models[0] if models else self.name)),
            tries=sum(reply.tries for reply in replies),
        )

    async def _probe(self, options: JudgeOptions) -> tuple[Finding, set[str]]:
        """Find the form with the first present endpoint, and check it with the others."""
        probes = [
            Probe(self._client, endpoint, self._model, self._rubric, options)
            for endpoint in self._client.endpoints
            if endpoint.watch is None
        ]
        finding = await probes[0].find()
        await asyncio.gather(*(probe.check(finding.form) for probe in probes[1:]))
        return finding, set().union(*(probe.other_models for probe in probes))


class ServerTextModel(ServerModel):
    """A `TextModel` behind servers."""

    def __init__(
        self,
        endpoints: Sequence[str],
        settings: ServerSettings | None = None,
        temperature: float = 0.7,
        max_tokens: int = 64,
    ) -> None:
        self._parameters = {"temperature": temperature, "max_tokens": max_tokens}
        super().__init__(endpoints, settings or ServerSettings())

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "query writer",  # as ledgers have it from the first version on
            "model": self._model.name,
            "server": self._model.kind,
            "revision": self._revision,
            "parameters": self._parameters,
        }

    def complete(self, prompts: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        return self._client.stream(prompts, self._complete)

    async def _complete(self, prompt: Question) -> Completion:
        messages = [dict(message) for message in prompt.messages]
        body = {"model": self._model.id, "messages": messages, **self._parameters, "seed": prompt.repeat}
        try:
            reply = await self._client.chat(body)
        except RequestError as error:
            status: CompletionStatus = error.failure if error.failure in ("too-long", "filtered") else "failed"
            return Completion(status, "", Usage(), error.seconds, self.name, error.detail, error.tries)
        cut: dict[str, CompletionStatus] = {"content_filter": "filtered", "length": "truncated"}
        choice = reply.choices[0]
        status = cut.get(choice.finish_reason, "written")
        return Completion(status, choice.text, reply.usage, reply.seconds, self.name, tries=reply.tries)
