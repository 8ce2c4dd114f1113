"""The base of judges, their questions, and their answers: one grade, text or status per question."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

if TYPE_CHECKING:
    from bixse.relevance import GradeScale

Status = Literal[
    "graded",
    "refused",
    "filtered",
    "truncated",
    "no-option",
    "off-scale",
    "no-probabilities",
    "too-long",
    "failed",
]
"""The end of an answer. Only "graded" carries relevance, since a text that no parser understands is no grade of 0.

refused: the judge declined; filtered: a content filter stopped it; truncated: the length limit came before the end;
no-option: no option was answered in the requested form; off-scale: an existing judgement or a score is outside the
scale; no-probabilities: the server gave no probabilities, and they are needed; too-long: the pair does not fit the
judge; failed: no answer after all tries.
"""
STATUSES: tuple[str, ...] = get_args(Status)
USABLE = ("graded", "written")
"""Statuses of answers that are not asked again."""
CompletionStatus = Literal["written", "filtered", "truncated", "too-long", "failed"]
"""The end of a text: complete, stopped by a content filter, cut by the length limit, not asked since the prompt does
not fit, or missing after all tries."""

Mode = Literal["token-ids", "top-logprobs", "constrained", "sample", "verbal", "score", "replay", "function"]
"""The source of a grade, recorded per row.

token-ids: probabilities of exactly the option tokens; top-logprobs: the most probable tokens, the rest bounded;
constrained: top tokens while decoding may only emit an option; sample: share of each option in n samples; verbal: the
written grade (probability 1); score: a cross-encoder's score through a map; replay: an existing judgement;
function: the number that a function of the user returned.
"""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Dtype of a local judge's weights; "auto" follows the precision of the process."""
TEXT_WIDTH = 200
"""Characters kept of an answer's text, of its detail, and of a server's message."""
MOST_TOKENS = 10_000_000  # more than any model reads or writes per question; some servers report 1e999 or -3000
_RELEASE = re.compile(r"[-@_](?:latest|v?\d{3,4}|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:-\d{4})?)$")
"""Dates and numbers of a release at the end of a model's name, not sizes ("70b") or kinds ("mini")."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    prompt: int = 0
    """Prompt tokens, cached tokens included."""
    cached: int = 0
    completion: int = 0
    """Completion tokens, reasoning tokens included."""
    reasoning: int = 0

    @classmethod
    def reported(cls, prompt: Any = 0, cached: Any = 0, completion: Any = 0, reasoning: Any = 0) -> Usage:
        """Return the usage that a server counted; 0 for an impossible number, and for a part above its total.

        Example:
            >>> Usage.reported(12.0, 40, -3, float("nan"))
            Usage(prompt=12, cached=0, completion=0, reasoning=0)
        """
        read, of_these, written, thought = map(_tokens, (prompt, cached, completion, reasoning))
        return cls(read, of_these if of_these <= read else 0, written, thought if thought <= written else 0)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, vars(self).values(), vars(other).values()))  # once per answer: astuple copies


NOTHING = Usage()
"""The usage of a request that was refused before any work."""


def _tokens(count: Any) -> int:
    number = type(count) in (int, float) and 0 <= count <= MOST_TOKENS and count == int(count)
    return int(count) if number else 0


@dataclass(frozen=True)
class Question:
    """A question to a judge: one pair in one prompt variant of a rubric."""

    query_id: str
    document_id: str
    query: str
    document: str
    variant: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    """Rendered chat messages; empty for judges that read the two texts."""
    repeat: int = 0
    """Number of the repetition, which measures self-agreement; 0 for the first question."""

    @property
    def characters(self) -> int:
        if not self.messages:
            return len(self.query) + len(self.document)
        return sum(len(message["content"]) for message in self.messages)

    def key(self, identity: Mapping[str, Any]) -> str:
        """Return the SHA-256 of everything that decides the answer."""
        asked: Any = [dict(message) for message in self.messages] or [self.query, self.document]
        if identity.get("kind") == "replay":  # existing judgements may be found by their ids
            asked = [asked, self.query_id, self.document_id]
        content = json.dumps([stored_identity(identity), asked, self.repeat], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()


class Stored:
    """The base of answers and texts: their JSON form in a ledger, and their common fields."""

    status: str
    text: str
    usage: Usage

    @property
    def usable(self) -> bool:
        return self.status in USABLE

    @property
    def usage_unknown(self) -> bool:
        """Return True if there is a text without a number of prompt tokens."""
        return bool(self.text) and not self.usage.prompt

    def to_json(self) -> str:
        """Return one line of JSON."""
        line = json.dumps(vars(self), default=vars, ensure_ascii=False)  # once per answer: asdict copies every value
        return line.encode("utf-8", "replace").decode("utf-8")  # servers may write half a surrogate pair: it becomes ?

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON of `to_json`; earlier versions kept texts of models as answers without a grade."""
        content: dict[str, Any] = json.loads(text)
        content["usage"] = Usage.reported(**content["usage"])
        content["probabilities"] = tuple(content.get("probabilities", ()))
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Answer(Stored):
    """A judge's answer to one question."""

    status: Status
    mode: Mode
    probabilities: tuple[float, ...] = ()
    """Raw probability of each label of the rubric; empty without a grade."""
    grade: float | None = None
    """Expected grade on the rubric's scale."""
    low: float | None = None
    """Lowest possible grade, given the probabilities that the judge did not return."""
    high: float | None = None
    """Highest possible grade."""
    text: str = ""
    """Text of the judge, cut to `TEXT_WIDTH` characters."""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Wall time from question to answer; for local judges the time of a batch divided by its questions."""
    judge: str = ""
    """Name of the model that answered."""
    detail: str = ""
    """The reason for a missing grade, without any API key: some servers repeat it in their messages."""
    tries: int = 1

    @property
    def mass(self) -> float:
        """Sum of the probabilities of the options."""
        return min(1.0, sum(self.probabilities))


class Grade(NamedTuple):
    """A judge's grade of one pair."""

    value: float | None
    """Grade on the judge's scale; None without a grade, and `reason` says why."""
    relevance: float | None
    """The grade in [0, 1]."""
    probabilities: Sequence[float] | None
    """Probability of each grade of the rubric; None for judges that give one number."""
    reason: str
    """The judge's text, or the reason for a missing grade."""


@dataclass(frozen=True)
class Completion(Stored):
    """A text of a model, or the status that says why there is none."""

    status: CompletionStatus
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    judge: str = ""
    """Name of the model; the field has the name of `Answer`'s, since one ledger may hold both."""
    detail: str = ""
    tries: int = 1

    mode = "text"


def stored_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of an identity in ledgers and run.json, fixed since the first version so that keys stay valid.

    Example:
        >>> stored_identity({"kind": "server", "model": "m"})
        {'judge': 'server', 'model': 'm'}
    """
    rest = {key: value for key, value in identity.items() if key != "kind"}
    return {"judge": "server", **rest} if identity.get("kind") == "server" else dict(identity)


def model_name(identifier: str) -> str:
    """Return a model's id, without the folders if the id is a path on the server's disk."""
    if identifier.startswith(("/", "./", "~")):
        return PurePosixPath(identifier).name or identifier
    return PureWindowsPath(identifier).name if identifier[1:3] in (":\\", ":/") else identifier


def same_model(asked: str, answered: str) -> bool:
    """Return whether two names may be of one model: the model that was asked, and the model that answered."""
    if not answered or asked == answered:  # an answer without a name counts as the requested model's
        return True
    # A release ("-0613", "-2024-08-06", "-latest") and a tag (":8b") count only if both names have one.
    (name, *parts), (other, *other_parts) = _parts(asked), _parts(answered)
    return name == other and all(a == b or not (a and b) for a, b in zip(parts, other_parts, strict=True))


def _parts(name: str) -> tuple[str, str, str]:
    """Return the lower-case name after the last "/", without ".gguf"; release and tag, "" if missing or "latest"."""
    bare = re.split(r"[/\\]", name.strip().rstrip("/\\").lower())[-1].removesuffix(".gguf")
    bare, _, tag = bare.partition(":")
    match = _RELEASE.search(bare)
    release = re.sub(r"\W|_|v", "", match[0]) if match else ""
    return bare[: match.start()] if match else bare, release.replace("latest", ""), tag.replace("latest", "")


class AnyJudge(ABC):
    """The base of sources of grades: a server, a local model, a cross-encoder, existing judgements or a function.

    `answers` may take questions ahead and give answers in any order. Each question is answered once, with a grade or a
    status. The next question is taken only when there is room to ask it, so the caller can stop at any time.
    """

    name: str
    """Model name, recorded with every row."""
    scale: GradeScale
    """Scale of the grades: the rubric's, or the judge's own scale if it reads no rubric."""
    identity: dict[str, Any]
    """Everything that decides an answer except the question, as plain JSON values; no address, no key."""
    at_once: int = 1
    """Number of concurrent questions; 1 if the time of a batch is already divided among its answers."""
    doubts: Sequence[str] = ()
    """Reasons against its grades, if the judge asked questions with known answers when it opened. `grade` logs them
    before the first question, when nothing is paid yet."""
    warnings: Sequence[str] = ()
    """Warnings for people who use the grades; the list may grow while the judge answers."""

    @abstractmethod
    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions as they come."""

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """Count the prompt tokens of each question with the judge's own tokenizer; None without a tokenizer."""
        return None

    def close(self) -> None:  # noqa: B027 (a judge without a file or a model has nothing to free)
        """Free the resources of the judge."""
