"""A language model behind a server that writes texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.grading.server.client import ChatClient
from bixse.grading.server.failure import RequestError
from bixse.grading.text_model import Completion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bixse.grading.judge import Question
    from bixse.grading.text_model import CompletionStatus


class ServerTextModel:
    """A `TextModel` that speaks OpenAI's chat interface.

    Args:
        endpoints: addresses of servers of one model.
        model: the model; None: the one they serve.
        temperature: 0 to 2; 0 for the most probable text, above it texts differ.
        max_tokens: most tokens of a text.
        revision: revision of the model, recorded.
        connection: `api_key_variable`, `concurrency`, `timeout` and others of `ChatClient`.

    Raises:
        InputError: a setting out of range, or an address that cannot be used.
        ServerDownError: no server answers.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        model: str | None = None,
        temperature: float = 0.7,
        max_tokens: int = 64,
        revision: str | None = None,
        **connection: Any,
    ) -> None:
        if not 0.0 <= temperature <= 2.0:
            raise InputError(f"--temperature: got {temperature}; expected 0 to 2; fix: leave it out for 0.7")
        self._parameters = {"temperature": temperature, "max_tokens": max_tokens}
        self._revision = revision
        self._client = ChatClient(endpoints, **connection)
        try:
            self._model = self._client.served_model(model)
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> ServerTextModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def identity(self) -> dict[str, Any]:
        """What decides a text besides the messages."""
        return {
            "kind": "query writer",  # as ledgers have it from the first version on
            "model": self._model.name,
            "server": self._model.kind,
            "revision": self._revision,
            "parameters": self._parameters,
        }

    def complete(self, prompts: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        """Write a text for the messages of each prompt as they come, many at once; its `repeat` is the seed."""
        return self._client.stream(prompts, self._complete)

    async def _complete(self, prompt: Question) -> Completion:
        messages = [dict(message) for message in prompt.messages]
        body = {"model": self._model.id, "messages": messages, **self._parameters, "seed": prompt.repeat}
        try:
            reply = await self._client.chat(body)
        except RequestError as error:
            return Completion(
                error.failure if error.failure in ("too-long", "filtered") else "failed",
                seconds=error.seconds,
                judge=self.name,
                detail=error.detail,
                tries=error.tries,
            )
        cut: dict[str, CompletionStatus] = {"content_filter": "filtered", "length": "truncated"}
        choice = reply.choices[0]
        return Completion(
            cut.get(choice.finish_reason, "written"),
            choice.text,
            reply.usage,
            reply.seconds,
            judge=self.name,
            tries=reply.tries,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
