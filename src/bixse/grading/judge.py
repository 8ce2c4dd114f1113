"""What every judge is: it takes questions about pairs and gives back one answer each, graded or with a status."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from bixse.relevance import GradeScale

Status = Literal[
    "graded",
    "refused",
    "filtered",
    "truncated",
    "no-option",
    "ambiguous",
    "off-scale",
    "no-probabilities",
    "too-long",
    "failed",
]
"""How an answer ended. Only "graded" carries relevance.

refused: the judge declined; filtered: a content filter;
truncated: the length limit came before an option; no-option: no option was answered; ambiguous: several options were
named; off-scale: a number outside the rubric; no-probabilities: the server gave none where they are needed; too-long:
the pair does not fit the judge; failed: no answer after all tries.
"""
STATUSES: tuple[str, ...] = get_args(Status)

Mode = Literal["token-ids", "top-logprobs", "constrained", "sample", "verbal", "score", "replay"]
"""How the grade was read off the judge, recorded for every row.

token-ids: probabilities of exactly the option tokens; top-logprobs: from the most probable tokens, the rest bounded;
constrained: from top tokens while decoding may only emit an option; sample: share of each option in n samples; verbal:
the one grade written (probability 1); score: a cross-encoder's score through a map; replay: an existing judgement.
"""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Number type of a local judge's weights; "auto": that of the precision the process is set to."""
TEXT_WIDTH = 200
"""Characters of an answer's text, and of its detail, that are kept."""
MOST_TOKENS = 10_000_000
"""More than this no model reads or writes for one question."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    prompt: int = 0
    """Tokens read, cached ones included."""
    cached: int = 0
    """Of those, tokens the server had in its prompt cache."""
    completion: int = 0
    """Tokens written, reasoning included."""
    reasoning: int = 0
    """Of those, tokens of reasoning."""

    @classmethod
    def reported(cls, prompt: Any = 0, cached: Any = 0, completion: Any = 0, reasoning: Any = 0) -> Usage:
        """Usage as a server counted it; what can be no number of tokens is unknown, and so is a part above its whole.

        Unknown is 0.

        Example:
            >>> Usage.reported(12.0, 40, -3, float("nan"))
            Usage(prompt=12, cached=0, completion=0, reasoning=0)
        """
        read, of_these, written, thought = map(_tokens, (prompt, cached, completion, reasoning))
        return cls(read, of_these if of_these <= read else 0, written, thought if thought <= written else 0)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
            self.reasoning + other.reasoning,
        )


def _tokens(count: Any) -> int:
    """A whole number from 0 to `MOST_TOKENS`; 0 for anything else."""
    number = type(count) in (int, float) and 0 <= count <= MOST_TOKENS and count == int(count)
    return int(count) if number else 0


@dataclass(frozen=True)
class Question:
    """One question to a judge: one pair in one prompt variant of a rubric."""

    query_id: str
    """Id of the query."""
    document_id: str
    """Id of the document."""
    query: str
    """Its text."""
    document: str
    """Its text."""
    variant: str = ""
    """Name of the rubric's prompt variant."""
    messages: tuple[Mapping[str, str], ...] = ()
    """Rendered chat messages."""
    repeat: int = 0
    """0, or the number of a repetition asked to measure self-agreement."""

    @property
    def characters(self) -> int:
        """Length of all that the judge reads."""
        if not self.messages:
            return len(self.query) + len(self.document)
        return sum(len(message["content"]) for message in self.messages)

    def key(self, identity: Mapping[str, Any]) -> str:
        """SHA-256 of everything that decides the answer: the judge's identity, the rendered question, the repeat.

        Args:
            identity: the judge's `identity`: model, revision, kind of server, parameters, options, mode.
        """
        asked: Any = [dict(message) for message in self.messages] or [self.query, self.document]
        if identity.get("kind") == "replay":  # existing judgements may be found by their ids
            asked = [asked, self.query_id, self.document_id]
        content = json.dumps([stored_identity(identity), asked, self.repeat], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What a judge made of one question."""

    status: Status
    """"graded" or why there is no grade."""
    mode: Mode
    """How the grade was read."""
    probabilities: tuple[float, ...] = ()
    """Raw probability of each label of the rubric; empty without a grade."""
    grade: float | None = None
    """Expected grade on the rubric's scale."""
    low: float | None = None
    """Its lower bound, given what the judge did not return."""
    high: float | None = None
    """Its upper bound."""
    text: str = ""
    """What the judge wrote, cut to 200 characters."""
    usage: Usage = field(default_factory=Usage)
    """Tokens."""
    seconds: float = 0.0
    """Wall time from question to answer; a batch's time divided by its questions for local judges."""
    judge: str = ""
    """Model that answered."""
    detail: str = ""
    """Why there is no grade, for people; never holds a key."""
    tries: int = 1
    """Requests made for it."""

    @property
    def usable(self) -> bool:
        """Whether it has a grade."""
        return self.status == "graded"

    @property
    def usage_unknown(self) -> bool:
        """Whether something was answered, and nobody said how many tokens it took."""
        return bool(self.text) and not self.usage.prompt

    @property
    def mass(self) -> float:
        """Probability the judge put on the options together."""
        return min(1.0, sum(self.probabilities))

    def to_json(self) -> str:
        """One line of JSON; half a surrogate pair, which a server may write, becomes a question mark."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The answer that `to_json` wrote."""
        content = json.loads(text)
        content["usage"] = Usage.reported(**content["usage"])
        content["probabilities"] = tuple(content["probabilities"])
        return cls(**content)


def stored_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity as ledgers and run.json have held it from the first version on, so that what was paid for is found.

    Example:
        >>> stored_identity({"kind": "server", "model": "m"})
        {'judge': 'server', 'model': 'm'}
    """
    kept = {key: value for key, value in identity.items() if key != "kind"}
    return {"judge": "server", **kept} if identity.get("kind") == "server" else dict(identity)


class Judge(Protocol):
    """A source of grades: a server, a local model, a cross-encoder, or existing judgements.

    `answers` may take questions ahead and give answers in any order; each question taken is answered once, with a
    grade or a status. It takes the next question only when there is room to ask it, so the giver of questions can stop
    at any time.

    A judge that asks questions whose answers are known when it is opened has `doubts` too: a sequence of what speaks
    against its grades, empty where nothing does. `grade` tells them before the first question.
    """

    @property
    def name(self) -> str:
        """Model name, recorded with every row."""

    @property
    def scale(self) -> GradeScale:
        """Scale of its grades: the rubric's, or its own where it reads no rubric."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides an answer besides the question, as plain JSON values; no address, no key."""

    @property
    def at_once(self) -> int:
        """How many questions it answers at the same time now: the time of one answer divided by this passes for each.

        1 where the time of a batch is divided among its answers already.
        """

    @property
    def warnings(self) -> Sequence[str]:
        """What people should know before they trust it; may grow while it answers."""

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions as they come."""

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Prompt tokens of each question by the judge's own tokenizer, or None where there is none at hand."""

    def close(self) -> None:
        """Free what the judge holds."""
