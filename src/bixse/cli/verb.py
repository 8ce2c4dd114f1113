"""A verb as data: its settings, its options and its function; settings as flags of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

from bixse.cli.checks import check_inputs, inputs_of, with_files_of_runs
from bixse.cli.overwrite import overwritten
from bixse.encoders.loading.precision import Setting, use_precision
from bixse.errors import InputError
from bixse.settings import Flag, Settings, flag_of, known_keys, paths_in, section_of, types_in
from bixse.training.distributed import is_main_process, world_size

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    Kind = TypeVar("Kind", bound=Settings)


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
        f"this rank's parts are done; {number} of other ranks are not: the last rank, or the same command again, makes "
        "the results"
    )
    return CommandResult(text, {**metrics, "waiting": number}, {}, list(warnings))


FINISHED_BEFORE = "this run was finished before: its results are shown"
"""The warning if the run was finished before."""


class Options(Settings):
    """Options of the command line alone, such as the output folder and dry runs."""

    words: Annotated[tuple[str, ...], Flag(hidden=True)] = ()
    """The command line after `bixse`."""
    out: Annotated[Path | None, Flag(hidden=True)] = None
    """The value of `--out`, which the verb's `Output` describes."""
    overwrite: Annotated[str | None, Flag(hidden=True)] = None
    """The value of `--overwrite`: the name of the output folder, to delete it."""
    dry_run: Annotated[bool, Flag(hidden=True)] = False
    """True after `--dry-run`, which `Verb.dry_run` describes."""
    report: Annotated[bool, Flag(hidden=True)] = False
    """True after `--report`, which verbs with `Verb.report` have."""

    @property
    def folder(self) -> Path:
        """Return the output folder of a verb that has a default for it."""
        return self.out or Path()


class ComputingOptions(Options):
    """Options of a verb that computes with a model and has no such setting."""

    precision: Setting = "auto"
    """The dtype that models compute in. auto: the value of BIXSE_PRECISION, else bfloat16 if the GPU or CPU is fast at
    it."""


SettingsType = TypeVar("SettingsType", bound=Settings)
OptionsType = TypeVar("OptionsType", bound=Options)


@dataclass(frozen=True)
class Output:
    """The flag `--out` of a verb."""

    text: str
    """Its help."""
    default: str | None = None
    """None: without the flag, the verb decides whether and where to write."""
    metavar: str = "DIR"


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
    out: Output | None = None
    """Its results. None: the verb has no flag `--out`."""
    dry_run: str | None = None
    """The help of `--dry-run`. None: the verb has no such flag."""
    report: bool = False
    """True if `--report` writes the page of `bixse.report` into the folder of `--out`."""
    first: tuple[str, ...] = ()
    """Settings at the beginning of the help. The other settings follow in groups. Empty: all settings."""

    def call(self, args: argparse.Namespace, words: tuple[str, ...]) -> CommandResult:
        """Run the verb with the parsed `words`."""
        options = settings_from(args, self.options)
        default = None if self.out is None or self.out.default is None else Path(self.out.default)
        options = options.model_copy(update={"words": words, "out": options.out or default})
        for name, answer in self.instead.items():
            if getattr(options, name):
                return answer(options)
        file = next(iter(getattr(args, "config", None) or ()), None)
        settings = settings_from(args, self.settings, file)
        settings = with_files_of_runs(settings)
        if options.report and options.out is None:
            raise InputError("--report: got no --out; expected the folder of the run; fix: add --out DIR")
        if world_size() == 1:  # processes that train together read their inputs together
            check_inputs(settings)
        precision: Any = {**vars(options), **vars(settings)}.get("precision")
        with use_precision(precision), self._overwritten(settings, options, file):
            result = self.run(settings, options)
        if not options.report or options.dry_run or not is_main_process():
            return result
        is_done = result.exit_code in (0, 1, 3) and "waiting" not in result.metrics  # 1: a gate or a check failed
        return _with_report(result, options.folder) if is_done else result

    def _overwritten(
        self, settings: SettingsType, options: OptionsType, file: Path | None
    ) -> AbstractContextManager[None]:
        """Put the output folder aside during the work, if asked for; it holds none of the inputs."""
        if options.overwrite is None or options.dry_run:
            return nullcontext()
        shared = getattr(settings, "engine", "") == "ranks"  # each rank would delete the work of the others
        if options.out is None or shared or world_size() > 1:
            several = "--engine ranks" if shared else f"{world_size()} processes"
            got = "no --out" if options.out is None else several
            raise InputError(
                f"--overwrite: got {got}; expected --out and one process; fix: delete the folder before"
            ).of_all_processes()
        inputs = [*inputs_of(settings), *paths_in(file), *inputs_of(options.model_copy(update={"out": None}))]
        return overwritten(options.out, options.overwrite, inputs)


def _with_report(result: CommandResult, folder: Path) -> CommandResult:
    from bixse.reporting import report

    try:
        page = str(report(folder).save(folder / "report.html"))
    except InputError as error:  # the page must not take the figures of the run with it
        return replace(result, warnings=[*result.warnings, f"no report was written: {error}"])
    return replace(result, text=f"{result.text}\nreport: {page}", artifacts={**result.artifacts, "report": page})


METAVARS = {int: "N", float: "X", str: "NAME", Path: "PATH"}
"""Type of a setting -> placeholder for its value."""


def add_settings(parser: argparse.ArgumentParser, kind: type[Settings], first: Sequence[str] = ()) -> None:
    """Add one flag per setting; in the help the keys of `first` come first (if none, all outside sections).

    A setting of a section is `--section.setting`, or `--setting` in a flat section. A section that may be null has a
    switch with its name, unless it is flat. A mapping takes words such as NAME=SHARE if its `Flag` has a metavar, and
    a validator reads them. Other mappings are set in YAML and Python alone. Positional settings may come anywhere
    (`parse_intermixed_args`). All are optional for argparse, because validation reports missing settings.
    """
    _add(parser, None if first else parser, kind, "", "--", first)


def settings_from(args: argparse.Namespace, kind: type[Kind], file: Path | None = None) -> Kind:
    """Load the settings of a YAML file with the flags on top. The word null means no value."""
    given = {key: getattr(args, key) for key in known_keys(kind) if hasattr(args, key)}
    return kind.load(file, {key: None if value == "null" else value for key, value in given.items()})


def _add(
    parser: argparse.ArgumentParser, into: Any, kind: type[Settings], keys: str, words: str, first: Sequence[str]
) -> None:
    """Add the settings of `kind` to `into`, or to one group per class if None. `keys` and `words` are prefixes."""
    annotated = get_annotations(kind)
    rank = {key: number for number, key in enumerate(first)}

    def order(item: tuple[str, FieldInfo]) -> tuple[int, bool, bool, bool]:
        name, info = item
        position = rank.get(f"{keys}{name}", len(rank))  # then required settings, own, shared; last, sections
        return position, section_of(info) is not None, not info.is_required(), name not in annotated

    groups: dict[type, Any] = {}
    for name, info in sorted(kind.model_fields.items(), key=order):
        flag, key, section = flag_of(info), f"{keys}{name}", section_of(info)
        if flag is None:
            continue
        word = f"{words}{flag.name or name}".replace("_", "-")
        if section is not None:
            group = parser.add_argument_group(name, _help(info))
            if type(None) in types_in(info.annotation) and not flag.flat:
                _add_switch(group, key, word, info, on={})
            _add(parser, group, section, f"{key}.", words if flag.flat else f"{word}.", first)
        elif key in rank or into is not None:
            _add_setting(parser if key in rank else into, key, word, info, flag)
        else:
            home = next(base for base in kind.__mro__ if name in get_annotations(base))
            title = "further settings" if home is kind else (home.__doc__ or "").splitlines()[0].rstrip(".")
            groups[home] = groups.get(home) or parser.add_argument_group(title)
            _add_setting(groups[home], key, word, info, flag)


def _add_switch(into: Any, key: str, word: str, field: FieldInfo, on: Any = True) -> None:
    """Add `--name` for a setting off by default, `--no-name` for one on by default, both without a default."""
    default = field.get_default(call_default_factory=True)
    off = None if on == {} else False
    values = {word: on, word.replace("--", "--no-", 1): off}
    undecided = default is None and on is True
    for name, value in values.items():
        if undecided or bool(default) != (value is not off):
            text = _help(field)
            if name != word and (undecided or value is None):  # then the text is in the help of --name or of the group
                text = f"Set {key} to {'null' if value is None else 'false'}."
            into.add_argument(name, dest=key, action="store_const", const=value, default=argparse.SUPPRESS, help=text)


def _add_setting(into: Any, key: str, word: str, field: FieldInfo, flag: Flag) -> None:
    kinds = [kind for kind in types_in(field.annotation) if kind is not type(None)]
    if kinds == [bool]:
        _add_switch(into, key, word, field)
        return
    choices = [str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    metavar = flag.metavar or (f"{{{','.join(choices)}}}" if choices else METAVARS.get(kinds[0], "VALUE"))
    several = _several(field.annotation)
    options: dict[str, Any] = {"metavar": metavar, "help": _help(field), "default": argparse.SUPPRESS}
    if flag.positional:
        into.add_argument(key, nargs="*" if several else "?", **options)
    elif several is True:
        into.add_argument(word, dest=key, nargs="+", action="extend", **options)
    else:
        into.add_argument(word, dest=key, nargs=several or None, **options)


def _several(annotation: Any) -> bool | int:
    """Return True if a setting takes several values, or their number if it is fixed."""
    parts = get_args(annotation)
    if get_origin(annotation) in (tuple, list):
        return len(parts) if get_origin(annotation) is tuple and parts[-1] is not ... else True
    if get_origin(annotation) is dict:
        return True
    if get_origin(annotation) is Literal:
        return False
    return next((number for part in parts if (number := _several(part))), False)


def _help(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split()).replace("%", "%%")
    default = field.get_default(call_default_factory=True)
    plain = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool) and default != ""
    return f"{text} (default: {default})" if plain else text
