"""What a verb hands back: text for people, an envelope for machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CommandResult:
    """Outcome of one command."""

    text: str
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    """Name -> path of what was made."""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    exit_code: int = 0
    """0 ok, 1 failed, 2 wrong usage or input, 3 done with some items failed, 130 interrupted."""

    def envelope(self) -> dict[str, Any]:
        """The JSON object of `--json`."""
        status = {0: "ok", 3: "partial", 130: "interrupted"}.get(self.exit_code, "failed")
        return {
            "status": status,
            "artifacts": self.artifacts,
            "metrics": self.metrics,
            "warnings": self.warnings,
            "errors": self.errors,
        }
