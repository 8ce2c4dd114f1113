"""The description of a verb as data: its settings, its command-line options, and its function."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

from bixse.cli.flags import settings_from
from bixse.encoders.loading.precision import Setting, use_precision
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class CommandResult:
    """The outcome of one command."""

    text: str
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    """Name -> path of a result."""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    exit_code: int = 0
    """0 ok, 1 failed, 2 wrong usage or input, 3 done with some items failed, 130 interrupted."""

    def envelope(self) -> dict[str, Any]:
        """Return the JSON object of `--json`."""
        status = {0: "ok", 3: "partial", 130: "interrupted"}.get(self.exit_code, "failed")
        return {
            "status": status,
            "artifacts": self.artifacts,
            "metrics": self.metrics,
            "warnings": self.warnings,
            "errors": self.errors,
        }


def waits(number: int, warnings: Sequence[str] = (), **metrics: Any) -> CommandResult:
    """Return the result of a rank that finished its parts while `number` parts of other ranks are pending."""
    text = (
        f"this rank's parts are done; {number} of other ranks are not: the last one goes on with the results, or the "
        "same command again"
    )
    return CommandResult(text, {**metrics, "waiting": number}, {}, list(warnings))


Folder: TypeAlias = Annotated[Path, Flag(metavar="DIR")]
"""An option that names a folder."""
FINISHED_BEFORE = "this run was finished before: its results are shown"
"""The warning if the run was finished before."""


class Options(Settings):
    """Options of the command line alone, such as the output folder and dry runs."""

    words: Annotated[tuple[str, ...], Flag(hidden=True)] = ()
    """The command line after `bixse`."""


class ComputingOptions(Options):
    """Options of a verb that computes with a model and has no such setting."""

    precision: Setting = "auto"
    """Numbers that models compute in; auto: as BIXSE_PRECISION says, else bfloat16 where the processor or GPU is fast
    at it."""


SettingsType = TypeVar("SettingsType", bound=Settings)
OptionsType = TypeVar("OptionsType", bound=Options)


@dataclass(frozen=True)
class Verb(Generic[SettingsType, OptionsType]):
    """One verb of the command."""

    settings: type[SettingsType]
    """Settings of the command line or a YAML file."""
    options: type[OptionsType]
    """Options of the command line alone."""
    run: Callable[[SettingsType, OptionsType], CommandResult]
    """The function that calls the verb's public function and describes the result."""
    instead: Mapping[str, Callable[[OptionsType], CommandResult]] = field(default_factory=dict)
    """Option -> function that replaces `run` if the option is given. It needs no settings."""
    first: tuple[str, ...] = ()
    """Settings at the beginning of the help. The other settings follow in groups. Empty: all settings."""

    def call(self, args: argparse.Namespace, words: tuple[str, ...]) -> CommandResult:
        """Run the verb with the parsed `words`."""
        options = settings_from(args, self.options).model_copy(update={"words": words})
        for name, answer in self.instead.items():
            if getattr(options, name):
                return answer(options)
        settings = settings_from(args, self.settings, getattr(args, "config", None))
        precision: Any = {**vars(options), **vars(settings)}.get("precision")
        with use_precision(precision):
            return self.run(settings, options)
