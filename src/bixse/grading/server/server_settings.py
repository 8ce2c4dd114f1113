"""How a chat server is asked, for every verb that asks one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from bixse.settings import Flag, Settings


class ServerSettings(Settings):
    """Settings of the client of a server."""

    model: str | None = None
    """Model to ask the server for (default: the one it serves)."""
    revision: str | None = None
    """Revision of the model."""
    concurrency: int = Field(default=64, ge=1)
    """Most requests in flight an address."""
    timeout: Annotated[float, Field(gt=0), Flag(metavar="SECONDS")] = 120.0
    """Seconds for one request."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""

    def connection(self) -> dict[str, Any]:
        """The arguments of `ChatClient`."""
        return self.model_dump(include={"api_key_variable", "concurrency", "timeout"})
