"""A language model that writes texts: what is below judges that ask one, and below what writes queries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bixse.grading.judge import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

    from bixse.grading.judge import Question

CompletionStatus = Literal["written", "filtered", "truncated", "too-long", "failed"]
"""How a text ended: whole, stopped by a content filter, cut by the length limit, not asked since the prompt does not
fit, or not there after all tries."""


@dataclass(frozen=True)
class Completion:
    """A text that a model wrote, or why there is none."""

    status: CompletionStatus
    """"written", or why there is no whole text."""
    text: str = ""
    """The text."""
    usage: Usage = field(default_factory=Usage)
    """Tokens."""
    seconds: float = 0.0
    """Wall time."""
    judge: str = ""
    """Model that wrote it; named as in `Answer`, since one ledger may hold both."""
    detail: str = ""
    """Why there is none, for people."""
    tries: int = 1
    """Requests made for it."""

    mode = "text"
    """In the place of an answer's mode."""

    @property
    def usable(self) -> bool:
        """Whether the text is whole."""
        return self.status == "written"

    @property
    def usage_unknown(self) -> bool:
        """Whether something was written, and nobody said how many tokens it took."""
        return bool(self.text) and not self.usage.prompt

    def to_json(self) -> str:
        """One line of JSON; half a surrogate pair, which a server may write, becomes a question mark."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote, or an earlier version, which kept texts as answers without a grade."""
        content = json.loads(text)
        found = {name: content[name] for name in cls.__dataclass_fields__}
        return cls(**{**found, "usage": Usage.reported(**content["usage"])})


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
