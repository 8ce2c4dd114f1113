"""Make command-line flags from settings. A verb's flags and YAML file come from its `Settings` alone."""

from __future__ import annotations

import argparse
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from bixse.settings import Flag, Settings, known_keys, section_of, types_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from pydantic.fields import FieldInfo

    Kind = TypeVar("Kind", bound=Settings)

METAVARS = {int: "N", float: "X", str: "NAME", Path: "PATH"}
"""Type of a setting -> placeholder for its value."""
MORE = "further settings"
"""Title of the group of the verb's settings that are not in `first`."""


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
    own = get_annotations(kind)
    rank = {key: number for number, key in enumerate(first)}

    def order(item: tuple[str, FieldInfo]) -> tuple[int, bool, bool, bool]:
        name, field = item
        position = rank.get(f"{keys}{name}", len(rank))  # then required, the verb's own, shared ones; sections last
        return position, section_of(field) is not None, not field.is_required(), name not in own

    groups: dict[type, Any] = {}
    for name, field in sorted(kind.model_fields.items(), key=order):
        flag = next((entry for entry in field.metadata if isinstance(entry, Flag)), Flag())
        key, word, section = f"{keys}{name}", f"{words}{flag.name or name}".replace("_", "-"), section_of(field)
        if flag.hidden:
            continue
        if section is not None:
            group = parser.add_argument_group(name, _help(field))
            if type(None) in types_in(field.annotation) and not flag.flat:
                _add_switch(group, key, word, field, on={})
            _add(parser, group, section, f"{key}.", words if flag.flat else f"{word}.", first)
        elif key in rank or into is not None:
            _add_setting(parser if key in rank else into, key, word, field, flag)
        else:
            home = next(base for base in kind.__mro__ if name in get_annotations(base))
            title = MORE if home is kind else (home.__doc__ or "").splitlines()[0].rstrip(".")
            groups[home] = groups.get(home) or parser.add_argument_group(title)
            _add_setting(groups[home], key, word, field, flag)


def _add_switch(into: Any, key: str, word: str, field: FieldInfo, on: Any = True) -> None:
    """Add `--name` for a setting off by default, `--no-name` for one on by default, both without a default."""
    default = field.get_default(call_default_factory=True)
    off = None if on == {} else False
    values = {word: on, word.replace("--", "--no-", 1): off}
    undecided = default is None and on is True
    for name, value in values.items():
        if undecided or bool(default) != (value is not off):
            text = "leave it out" if value is None else "the opposite" if name != word and undecided else _help(field)
            into.add_argument(name, dest=key, action="store_const", const=value, default=argparse.SUPPRESS, help=text)


def _add_setting(into: Any, key: str, word: str, field: FieldInfo, flag: Flag) -> None:
    kinds = [kind for kind in types_in(field.annotation) if kind is not type(None)]
    if any(kind is Any or (get_origin(kind) is dict and flag.metavar is None) for kind in kinds):
        return
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
        into.add_argument(word, dest=key, nargs="+", action=_Values, **options)
    else:
        into.add_argument(word, dest=key, nargs=several or None, **options)


class _Values(argparse.Action):
    """Collect one or more values. A repeated flag adds to the earlier values."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, [])
        setattr(namespace, self.dest, [*before, *values])


def _several(annotation: Any) -> bool | int:
    """Return True if a setting takes several values, or their number if it is fixed."""
    parts = get_args(annotation)
    if get_origin(annotation) in (tuple, list):
        return len(parts) if get_origin(annotation) is tuple and parts[-1] is not ... else True
    if get_origin(annotation) is dict:
        return True
    if get_origin(annotation) is Literal:
        return False
    return next((found for part in parts if (found := _several(part))), False)


def _help(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split()).replace("%", "%%")
    default = field.get_default(call_default_factory=True)
    plain = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool) and default != ""
    return f"{text} (default: {default})" if plain else text
