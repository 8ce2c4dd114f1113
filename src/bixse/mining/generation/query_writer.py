"""A language model behind a server that writes queries, asked through the same ledger as a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.grading.judge import Answer
from bixse.grading.server.client import ServerClient
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bixse.grading.judge import Question, Status
    from bixse.grading.server.client import Completion


class QueryWriter:
    """Writes one text for each question's messages; stands where `bixse.grading.ask` expects a judge.

    Args:
        endpoints: addresses of servers of one model.
        model: the model; None: the one they serve.
        temperature: 0 for the most probable text; above it texts differ, as several queries of one document must.
        max_tokens: most tokens of a text.
        revision: revision of the model, recorded.
        api_key_variable: environment variable that holds the key.
        concurrency: most requests in flight an address.
        timeout: seconds for one request.

    Raises:
        InputError: a setting out of range, an address that cannot be used, or no server that answers.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        model: str | None = None,
        temperature: float = 0.7,
        max_tokens: int = 64,
        revision: str | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 120.0,
    ) -> None:
        if not 0.0 <= temperature <= 2.0:
            raise InputError(f"--temperature: got {temperature}; expected 0 to 2; fix: leave it out for 0.7")
        if max_tokens < 1:
            raise InputError(f"--max-tokens: got {max_tokens}; expected 1 or more; fix: leave it out for 64")
        self.temperature, self.max_tokens, self.revision = temperature, max_tokens, revision
        self.client = ServerClient(
            endpoints, api_key_variable=api_key_variable, concurrency=concurrency, timeout=timeout
        )
        try:
            self.served = self.client.served_model(model)
        except BaseException:
            self.client.close()
            raise

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.served.name

    @property
    def scale(self) -> GradeScale:
        """It gives no grades: 0 to 1."""
        return GradeScale(0, 1)

    @property
    def warnings(self) -> list[str]:
        """Nothing."""
        return []

    @property
    def at_once(self) -> int:
        """Texts under way at once, as many as the servers cope with so far."""
        return self.client.pool.allowed

    @property
    def identity(self) -> dict[str, Any]:
        """What decides a text besides the messages."""
        return {
            "kind": "query writer",
            "model": self.served.name,
            "server": self.served.kind,
            "revision": self.revision,
            "parameters": {"temperature": self.temperature, "max_tokens": self.max_tokens},
        }

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Write as questions come; the repeat of a question is its seed."""

        def bodies() -> Iterator[tuple[Question, dict[str, Any]]]:
            for question in questions:
                yield (
                    question,
                    {
                        "messages": [dict(message) for message in question.messages],
                        "temperature": self.temperature,
                        "max_tokens": self.max_tokens,
                        "seed": question.repeat,
                    },
                )

        for completion in self.client.complete(bodies(), self.served.id):
            yield completion.id, self._answer(completion)

    def _answer(self, completion: Completion) -> Answer:
        status: Status = "written"
        if completion.text is None:
            known: dict[str, Status] = {"too-long": "too-long", "filtered": "filtered"}
            status = known.get(str(completion.failure), "failed")
        elif completion.finish_reason == "content_filter":
            status = "filtered"
        elif completion.finish_reason == "length":
            status = "truncated"
        return Answer(
            status,
            "text",
            text=completion.text or "",
            usage=completion.usage,
            seconds=completion.seconds,
            judge=self.name,
            detail=completion.detail,
            tries=completion.tries,
        )

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Not counted."""
        return None

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
