"""What judges and text models are: they take questions and give back one answer or text each, or a status."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
truncated: the length limit came before the end; no-option: no option was answered in the form that was asked for;
ambiguous: existing judgements of one pair differ; off-scale: an existing judgement or a score outside the scale;
no-probabilities: the server gave none where they are needed; too-long: the pair does not fit the judge; failed: no
answer after all tries.
"""
STATUSES: tuple[str, ...] = get_args(Status)
CompletionStatus = Literal["written", "filtered", "truncated", "too-long", "failed"]
"""How a text ended: whole, stopped by a content filter, cut by the length limit, not asked since the prompt does not
fit, or not there after all tries."""

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
_RELEASE = re.compile(r"[-@_](?:latest|v?\d{3,4}|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:-\d{4})?)$")
"""Dates and numbers of a release at the end of a model's name, not sizes ("70b") or kinds ("mini")."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    prompt: int = 0
    """Read, cached ones included."""
    cached: int = 0
    completion: int = 0
    """Written, reasoning included."""
    reasoning: int = 0

    @classmethod
    def reported(cls, prompt: Any = 0, cached: Any = 0, completion: Any = 0, reasoning: Any = 0) -> Usage:
        """Usage as a server counted it; 0 for what can be no number of tokens and for a part above its whole.

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
    number = type(count) in (int, float) and 0 <= count <= MOST_TOKENS and count == int(count)
    return int(count) if number else 0


@dataclass(frozen=True)
class Question:
    """One question to a judge: one pair in one prompt variant of a rubric."""

    query_id: str
    document_id: str
    query: str
    document: str
    variant: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    """Rendered chat messages; empty for judges that read the two texts."""
    repeat: int = 0
    """0, or the number of a repetition asked to measure self-agreement."""

    @property
    def characters(self) -> int:
        if not self.messages:
            return len(self.query) + len(self.document)
        return sum(len(message["content"]) for message in self.messages)

    def key(self, identity: Mapping[str, Any]) -> str:
        """SHA-256 of everything that decides the answer."""
        asked: Any = [dict(message) for message in self.messages] or [self.query, self.document]
        if identity.get("kind") == "replay":  # existing judgements may be found by their ids
            asked = [asked, self.query_id, self.document_id]
        content = json.dumps([stored_identity(identity), asked, self.repeat], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()


class Stored:
    """What a ledger keeps of an answer: JSON, and what all answers share."""

    text: str
    usage: Usage

    @property
    def usage_unknown(self) -> bool:
        """Whether something was answered, and nobody said how many tokens it took."""
        return bool(self.text) and not self.usage.prompt

    def to_json(self) -> str:
        """One line of JSON; half a surrogate pair, which a server may write, becomes a question mark."""
        line = json.dumps(asdict(self), ensure_ascii=False)  # type: ignore[call-overload]
        return line.encode("utf-8", "replace").decode("utf-8")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote; earlier versions kept texts of models as answers without a grade."""
        content: dict[str, Any] = json.loads(text)
        content["usage"] = Usage.reported(**content["usage"])
        content["probabilities"] = tuple(content.get("probabilities", ()))
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Answer(Stored):
    """What a judge made of one question."""

    status: Status
    mode: Mode
    probabilities: tuple[float, ...] = ()
    """Raw probability of each label of the rubric; empty without a grade."""
    grade: float | None = None
    """Expected grade on the rubric's scale."""
    low: float | None = None
    """The least that the grade can be, given what the judge did not return."""
    high: float | None = None
    """The most."""
    text: str = ""
    """What the judge wrote, cut to `TEXT_WIDTH` characters."""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Wall time from question to answer; a batch's time divided by its questions for local judges."""
    judge: str = ""
    """Model that answered."""
    detail: str = ""
    """Why there is no grade, for people; never holds a key."""
    tries: int = 1

    @property
    def usable(self) -> bool:
        return self.status == "graded"

    @property
    def mass(self) -> float:
        """Probability the judge put on the options together."""
        return min(1.0, sum(self.probabilities))


@dataclass(frozen=True)
class Completion(Stored):
    """A text that a model wrote, or why there is none."""

    status: CompletionStatus
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    judge: str = ""
    """Model that wrote it; named as in `Answer`, since one ledger may hold both."""
    detail: str = ""
    tries: int = 1

    mode = "text"

    @property
    def usable(self) -> bool:
        return self.status == "written"


def stored_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity as ledgers and run.json have held it from the first version on, so that what was paid for is found.

    Example:
        >>> stored_identity({"kind": "server", "model": "m"})
        {'judge': 'server', 'model': 'm'}
    """
    kept = {key: value for key, value in identity.items() if key != "kind"}
    return {"judge": "server", **kept} if identity.get("kind") == "server" else dict(identity)


def model_name(identifier: str) -> str:
    """A model's id without the folders where it is a path of the server's disk.

    Example:
        >>> model_name("/models/Qwen2.5-7B-Instruct"), model_name("Qwen/Qwen2.5-7B-Instruct")
        ('Qwen2.5-7B-Instruct', 'Qwen/Qwen2.5-7B-Instruct')
    """
    if identifier.startswith(("/", "./", "~")):
        return PurePosixPath(identifier).name or identifier
    return PureWindowsPath(identifier).name if identifier[1:3] in (":\\", ":/") else identifier


def same_model(asked: str, answered: str) -> bool:
    """Whether an answer came from the model that was asked for, as far as the two names tell; an empty one is believed.

    Compared are the last parts of the names (after "/"), without upper case and the ending ".gguf". A release ("-0613",
    "-2024-08-06", "-latest") and a tag (":8b") count only where both names have one; "latest" is any.

    Example:
        >>> same_model("gpt-4o", "gpt-4o-2024-08-06"), same_model("gpt-4o", "gpt-4o-mini")
        (True, False)
        >>> same_model("Qwen/Qwen2.5-7B-Instruct", "/models/Qwen2.5-7B-Instruct")
        True
    """
    if not answered or asked == answered:
        return True
    (name, *one), (other, *two) = _parts(asked), _parts(answered)
    return name == other and all(a == b or not (a and b) for a, b in zip(one, two, strict=True))


def _parts(name: str) -> tuple[str, str, str]:
    """Name, release and tag; the last two are empty where there is none or it is "latest"."""
    bare = re.split(r"[/\\]", name.strip().rstrip("/\\").lower())[-1].removesuffix(".gguf")
    bare, _, tag = bare.partition(":")
    found = _RELEASE.search(bare)
    release = re.sub(r"\W|_|v", "", found[0]) if found else ""
    return bare[: found.start()] if found else bare, release.replace("latest", ""), tag.replace("latest", "")


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
        """Questions it answers at the same time now; 1 where a batch's time is divided among its answers already."""

    @property
    def warnings(self) -> Sequence[str]:
        """What people should know before they trust it; may grow while it answers."""

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions as they come."""

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Prompt tokens of each question by the judge's own tokenizer, or None where there is none at hand."""

    def close(self) -> None:
        """Free what the judge holds."""


class TextModel(Protocol):
    """A source of texts: one for each prompt, in any order."""

    @property
    def name(self) -> str:
        """Model name."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides a text besides the messages, as plain JSON values; no address, no key."""

    def complete(self, prompts: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        """Write a text for the messages of each prompt as they come; its `repeat` is the seed."""

    def close(self) -> None:
        """Free what it holds."""
