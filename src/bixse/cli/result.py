"""What a verb hands back: text for people, an envelope for machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def waits(number: int, warnings: Sequence[str] = (), **metrics: Any) -> CommandResult:
    """Of a rank that has done its parts of the work before other ranks have done theirs, so many."""
    text = (
        f"this rank's parts are done; {number} of other ranks are not: the last one goes on with the results, or the "
        "same command again"
    )
    return CommandResult(text, {**metrics, "waiting": number}, {}, list(warnings))
