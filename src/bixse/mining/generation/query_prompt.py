"""How a model is asked to write queries: instructions and examples as data."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bixse.data.io.files import read_text
from bixse.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FIELD = "{document}"
"""Stands for the text of a document in `user`."""


class Example(BaseModel):
    """A document and the query somebody would type to find it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: str = Field(min_length=1)
    """Text of the document."""
    query: str = Field(min_length=1)
    """The query."""


class QueryPrompt(BaseModel):
    """Instructions with examples (few-shot, as in Promptagator, Dai et al. 2022, arXiv:2209.11755).

    Example:
        >>> prompt = load_query_prompt()
        >>> [message["role"] for message in prompt.messages("shutil.copytree copies a folder")][:3]
        ['system', 'user', 'assistant']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = ""
    """System message; empty for none."""
    user: str = "Text: {document}"
    """User message; holds `{document}` once."""
    examples: tuple[Example, ...] = ()
    """Shown before the document, each as a question and its answer."""

    @field_validator("user")
    @classmethod
    def _whole(cls, user: str) -> str:
        if user.count(FIELD) != 1:
            raise ValueError(f"expected {FIELD} once")
        return user

    def messages(self, document: str) -> tuple[dict[str, str], ...]:
        """Chat messages that ask for the query of one document."""
        shown = [({"role": "system", "content": self.system.strip()},)] if self.system.strip() else []
        for example in self.examples:
            asked = {"role": "user", "content": self.user.replace(FIELD, example.document)}
            shown.append((asked, {"role": "assistant", "content": example.query}))  # type: ignore[arg-type]
        shown.append(({"role": "user", "content": self.user.replace(FIELD, document)},))
        return tuple(message for turn in shown for message in turn)


def load_query_prompt(path: Path | None = None) -> QueryPrompt:
    """The prompt of a TOML file, or the one that comes with the package.

    Raises:
        InputError: the file cannot be read.
        ConfigError: it is no prompt; says which key and what was expected.
    """
    shipped = resources.files("bixse.mining.generation") / "query_prompt.toml"
    text = shipped.read_text(encoding="utf-8") if path is None else read_text(path)
    try:
        return QueryPrompt(**tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: got no valid TOML ({error}); expected a prompt; fix: correct it") from error
    except ValidationError as error:
        first = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}; fix: see docs/mining.md"
        ) from error
