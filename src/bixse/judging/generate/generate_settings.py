"""Settings of generated queries, and of the model that writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from bixse.judging.grade_settings import Prices, ServerSettings
from bixse.settings import Flag, Reads, Settings

if TYPE_CHECKING:
    from bixse.judging.judges.server_judge import ServerTextModel
    from bixse.judging.spending import Spending


class WriterSettings(ServerSettings):
    """The model that writes queries, and the settings of its requests."""

    server: Annotated[str, Flag(metavar="URL")]
    """Address of an OpenAI-compatible server."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """Sampling temperature, 0 to 2; 0 writes the most probable text."""
    max_tokens: int = Field(default=64, ge=1)
    """Maximum number of tokens per query."""

    def open(self, spending: Spending | None = None) -> ServerTextModel:
        from bixse.judging.judges.server_judge import ServerTextModel

        return ServerTextModel(self.server, self, self.temperature, self.max_tokens, spending)


class GenerateConfig(Settings):
    """Settings of `bixse generate`: the queries, and the model that writes them."""

    corpus: Annotated[Path, Flag(metavar="FILE"), Reads("corpus")]
    """JSONL file of documents: {_id, title, text}."""
    writer: Annotated[WriterSettings, Flag(flat=True)]
    """The model that writes queries, and the settings of its requests."""
    documents: int | None = Field(default=None, ge=1)
    """Number of random documents that get queries (default: all)."""
    per_document: int = Field(default=1, ge=1)
    """Number of queries per document."""
    task: str | None = None
    """Name of the task, written into each pair."""
    prompt: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Text file with instructions for the model (default: instructions and examples of the package)."""
    prices: Annotated[Prices, Flag(flat=True)] = Prices()
    """Prices of tokens, and the maximum cost of a run."""
    ledger: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder of texts to share between runs and machines (default: ledger in the --out folder)."""
