"""`--config FILE`: a verb's arguments from a YAML file, each overridden by its flag on the command line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.errors import ConfigError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_SETTINGS = ("help", "config", "json", "debug")
"""Arguments that are given on the command line only."""


def config_path(words: Sequence[str]) -> Path | None:
    """The file that `--config` names among the words of a command line, or None.

    Example:
        >>> config_path(["evaluate", "bm25", "--config", "run.yaml"]).name
        'run.yaml'
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path, nargs="?")
    found, _ = finder.parse_known_args(list(words))
    path: Path | None = found.config
    return path


def apply_config(parser: argparse.ArgumentParser, path: Path) -> None:
    """Make the settings of a file the defaults of a verb's parser.

    Keys are the names of the verb's arguments, with dashes or underscores; relative paths are taken from the file's
    own folder, as in the file of `bixse train`. A required argument that the file gives is required no more.

    Args:
        parser: the verb's parser; it is changed.
        path: YAML file.

    Raises:
        InputError: the file is missing, unreadable, or not UTF-8.
        ConfigError: the file is no YAML mapping, a key is unknown or given twice, or a value is of the wrong kind;
            all faults together.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "run.yaml"
        >>> _ = file.write_text("top: 3")
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--top", type=int, default=10)
        >>> apply_config(parser, file)
        >>> parser.parse_args([]).top, parser.parse_args(["--top", "5"]).top
        (3, 5)
    """
    from bixse.data.io.files import read_settings

    actions = {action.dest: action for action in parser._actions if action.dest not in NOT_SETTINGS}
    faults = []
    seen: set[str] = set()
    for key, value in read_settings(path).items():
        name = key.replace("-", "_")
        if name not in actions:
            hint = did_you_mean(name, actions, otherwise=f"known keys: {', '.join(actions)}")
            faults.append(f"  {key}: got an unknown key; expected a known one; fix: {hint}")
        elif name in seen:
            faults.append(f"  {key}: got the key twice; expected it once; fix: drop one of the two")
        elif value is not None:
            action = actions[name]
            expected = _expected(action, value)
            if expected is not None:
                faults.append(f"  {key}: got {shorten(value)}; expected {expected}; fix: correct the value")
                continue
            action.default = _converted(action, value, path.parent)
            action.required = False
            if not action.option_strings:
                action.nargs = "*" if _takes_several(action) else "?"
        seen.add(name)
    if faults:
        raise ConfigError("\n".join([f"{path}: {len(faults)} fault{'s' if len(faults) != 1 else ''}", *faults]))


def _takes_several(action: argparse.Action) -> bool:
    return action.nargs == "+" or (isinstance(action.nargs, int) and action.nargs > 1)


def _expected(action: argparse.Action, value: Any) -> str | None:
    """What the argument takes where the value is of another kind, else None."""
    if not _takes_several(action):
        return _expected_of_one(action, value)
    several = value if isinstance(value, list) else [value]
    if not several or (isinstance(action.nargs, int) and len(several) != action.nargs):
        return f"a list of {'at least 1' if action.nargs == '+' else action.nargs}"
    return next((found for item in several if (found := _expected_of_one(action, item)) is not None), None)


def _expected_of_one(action: argparse.Action, value: Any) -> str | None:
    if action.choices is not None:
        return None if value in action.choices else f"one of {', '.join(map(str, action.choices))}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if action.nargs == 0:
        return None if isinstance(value, bool) else "true or false"
    if action.type is int:
        return None if is_number and isinstance(value, int) else "a whole number"
    if action.type is float:
        return None if is_number and math.isfinite(value) else "a number"
    if action.type is Path:
        return None if isinstance(value, str) and value else "a path"
    return None if is_number or (isinstance(value, str) and value) else "a text (in quotes)"


def _converted(action: argparse.Action, value: Any, folder: Path) -> Any:
    if not _takes_several(action):
        return _converted_one(action, value, folder)
    return [_converted_one(action, item, folder) for item in (value if isinstance(value, list) else [value])]


def _converted_one(action: argparse.Action, value: Any, folder: Path) -> Any:
    if action.type is Path:
        return folder / value
    return value if isinstance(value, bool) or action.type in (int, float) else str(value)
