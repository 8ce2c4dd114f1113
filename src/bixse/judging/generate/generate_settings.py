"""Settings of generated queries, and the prompt that asks for them: instructions and examples as data."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from bixse.errors import ConfigError
from bixse.files.files import read_text
from bixse.judging.grade_settings import PriceSettings, ServerSettings
from bixse.scale.engines.engine_settings import EngineSettings
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.judging.judges.server_judge import ServerTextModel

FIELD = "{document}"
"""Placeholder for the text of a document in `QueryPrompt.user`."""


class GenerateConfig(Settings):
    """Documents, and the number of queries."""

    corpus: Annotated[Path, Flag(metavar="FILE")]
    """JSONL file of documents: {_id, title, text}."""
    documents: int | None = Field(default=None, ge=1)
    """Write for N documents drawn by the seed (default: all)."""
    per_document: int = Field(default=1, ge=1)
    """Queries per document."""
    document_characters: int = Field(default=4000, ge=1)
    """Show the model the first N characters of a document."""
    task: str | None = None
    """Name of the task, written beside every pair."""
    seed: int = 0
    """Of the choice of documents."""


class WriterConfig(PriceSettings, ServerSettings, GenerateConfig, EngineSettings):
    """Settings of `bixse generate`: the queries, and the model that writes them."""

    server: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="URL")]
    """Address of an OpenAI-compatible server."""
    prompt: Annotated[Path | None, Flag(metavar="FILE")] = None
    """TOML file with instructions and examples."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """0 to 2; 0 for the most probable text."""
    max_tokens: int = Field(default=64, ge=1)
    """Most tokens of a query."""
    ledger: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder of texts to share between runs and machines (default: ledger in the --out folder)."""

    def open(self) -> ServerTextModel:
        from bixse.judging.judges.server_judge import ServerTextModel

        return ServerTextModel(self.server, self, self.temperature, self.max_tokens)


class Example(Settings):
    """A document and the query of a person who looks for it."""

    document: str = Field(min_length=1)
    query: str = Field(min_length=1)


class QueryPrompt(Settings):
    """Instructions with examples (few-shot, as in Promptagator, Dai et al. 2022, arXiv:2209.11755).

    Example:
        >>> prompt = load_query_prompt()
        >>> [message["role"] for message in prompt.messages("shutil.copytree copies a folder")][:3]
        ['system', 'user', 'assistant']
    """

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
        return tuple({"role": role, "content": content} for role, content in self._turns(document))

    def _turns(self, document: str) -> Iterator[tuple[str, str]]:
        if self.system.strip():
            yield "system", self.system.strip()
        for example in self.examples:
            yield "user", self.user.replace(FIELD, example.document)
            yield "assistant", example.query
        yield "user", self.user.replace(FIELD, document)


def load_query_prompt(path: Path | None = None) -> QueryPrompt:
    """Load the prompt of a TOML file, or the prompt of the package."""
    shipped = resources.files("bixse.judging.generate") / "query_prompt.toml"
    text = shipped.read_text(encoding="utf-8") if path is None else read_text(path)
    try:
        return QueryPrompt.load(None, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: got no valid TOML ({error}); expected a prompt; fix: correct it") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
