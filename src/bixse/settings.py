"""The base class of all settings, which are defined once for Python, YAML files and the command line."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bixse.errors import ConfigError, shorten
from bixse.files.files import RepeatedKeyError, Use, read_text

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from pydantic.fields import FieldInfo
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for it


EXPECTED = {
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "lines of the form `key: value`",
    "model_type": "lines of the form `key: value`",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "a text that matches {pattern}",
}
"""Error type of pydantic -> expectation; pydantic's own messages name Python classes."""


NEAREST = 10
"""Number of known keys that the error of an unknown key lists."""


class Flag(NamedTuple):
    """The form of a setting on the command line, if not the default form: `Annotated[int, Flag(metavar="K")]`."""

    metavar: str | None = None
    """Word for the value in the help; the default follows from the type."""
    name: str | None = None
    """Name of the flag without dashes; the default is the name of the field."""
    positional: bool = False
    hidden: bool = False
    """No flag is made from the setting. Python and YAML set it, or the command line in a way of its own."""
    flat: bool = False
    """Flags of this section leave out the name of the section."""


@dataclass(frozen=True)
class Reads:
    """The use of the files that a setting names, which `cli/checks.py` checks before any work."""

    use: Use


class _RaisesConfigError(ModelMetaclass):
    """The call of a settings class. An `__init__` would raise for a section before the errors are collected."""

    if not TYPE_CHECKING:  # mypy takes the keywords from the fields

        def __call__(cls, **values: Any) -> Any:  # noqa: N805 (a metaclass)
            try:
                return super().__call__(**values)
            except ValidationError as error:
                raise _refused(cls, error, values, "settings") from None


class Settings(BaseModel, metaclass=_RaisesConfigError):
    """The base of all settings. Unknown keys are refused; the text below a field is the help of its option.

    Example:
        >>> class Search(Settings):
        ...     top: int = 10
        >>> Search.load(None, {"top": "3"})
        Search(top=3)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Key of an earlier version, or that users look for -> the key of today, or a hint."""

    @classmethod
    def load(cls, path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Read settings from a YAML file, whose relative paths start at its folder; dotted overrides come on top."""
        values = cls.from_folder(read_settings(path), path.parent) if path is not None else {}
        return cls._checked(values, overrides or {}, path or "settings")

    @classmethod
    def of_options(cls, options: Mapping[str, Any], **settings: Any) -> Self:
        """Make settings of a function's keywords, whose names are those of the command line's options.

        Example:
            >>> from bixse.training.config import TrainConfig
            >>> TrainConfig.of_options({"num_train_epochs": 1}, pairs="pairs.jsonl").optimizer.num_train_epochs
            1
        """
        keys = {key.rpartition(".")[2]: key for key in known_keys(cls) if _is_flat(cls, key)}
        values = {keys.get(name, name): value for name, value in options.items()}
        return cls._checked({}, values | settings, "settings", in_python=True)

    @classmethod
    def _checked(
        cls, values: dict[str, Any], overrides: Mapping[str, Any], where: object, in_python: bool = False
    ) -> Self:
        """Validate values with dotted overrides; `in_python`: errors name the keywords of a function."""
        for key, value in overrides.items():
            if value is None and (within := [other for other in overrides if other.startswith(f"{key}.")]):
                line = f"{key}: got null together with {within[0]}; expected one of the two; fix: drop one"
                raise ConfigError(f"{where}: 1 error\n  {line}")
            _set(values, key, value)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _refused(cls, error, values, where, in_python) from error

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, values: Any) -> Any:
        """Accept a value for a list of one, and a list of one for its value if the setting takes both."""
        if not isinstance(values, dict):
            return values
        changed = {}
        for name, field in cls.model_fields.items():
            value, kinds = values.get(name), {field.annotation}
            if get_origin(field.annotation) in (Union, types.UnionType):
                kinds = set(get_args(field.annotation))
            if isinstance(value, (list, tuple)) and len(value) == 1 and kinds & {Path, str}:
                changed[name] = value[0]
            elif (
                isinstance(value, (str, Path))
                and any(get_origin(kind) is tuple for kind in kinds)
                and (not kinds & {Path, str})
            ):
                changed[name] = [value]
        return {**values, **changed}

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where a number belongs: pydantic takes them for 1 and 0."""
        kinds = types_in(cls.model_fields[info.field_name or ""].annotation)
        kinds += [kind for table in kinds if get_origin(table) is dict for kind in types_in(get_args(table)[1])]
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        if {int, float} & {*kinds} and bool not in kinds and any(isinstance(entry, bool) for entry in entries):
            raise ValueError("expected a number")
        return value

    def at_most_one(self, *names: str) -> Self:
        """Refuse more than one of these settings; for a validator."""
        present = [name for name in names if getattr(self, name) is not None]
        if len(present) > 1:
            raise ValueError(f"got {' and '.join(present)}; expected at most one of these settings; fix: leave one out")
        return self

    @classmethod
    def path_settings(cls) -> tuple[str, ...]:
        return tuple(name for name, field in cls.model_fields.items() if Path in types_in(field.annotation))

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Join the relative paths among the values, also of sections, to a folder."""
        moved = {name: map_paths(values[name], folder.joinpath) for name in cls.path_settings() if name in values}
        for name, field in cls.model_fields.items():
            section, value = section_of(field), values.get(name)
            if section is not None and isinstance(value, Mapping):
                moved[name] = section.from_folder(value, folder)
        return {**values, **moved}


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML file: a mapping whose keys are names."""
    import yaml

    try:
        loaded = parse_yaml(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # RecursionError: an alias in the value it names
        where = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{path}: got no valid YAML ({where}); expected lines of the form `key: value`; fix: correct that line"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        got = "an empty file" if loaded is None else shorten(loaded)
        raise ConfigError(
            f"{path}: got {got}; expected lines of the form `key: value`; fix: name every setting by its key"
        )
    return loaded


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; raise RepeatedKeyError for a mapping with a key twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        raise RepeatedKeyError(key.value, key.start_mark.line + 1)
                    seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

    loader = Loader(text)
    loader.deep_construct = True  # each value is built completely: a value that contains itself is refused
    return loader.get_single_data()


def named_words(value: Any) -> Any:
    """Parse words such as train=0.8 or query=search into names and values; for a validator."""
    if not isinstance(value, (list, tuple)):
        return value
    words = [str(word).partition("=") for word in value]
    if len({name for name, _, _ in words}) < len(words) or not all(text for _, _, text in words):
        raise ValueError("expected NAME=VALUE, each name once; fix: as in train=0.8 test=0.2, or query=search")
    return {name: text for name, _, text in words}


PartName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[\w-]+$")]
"""Name of a part of a split, and of its file."""
Shares: TypeAlias = Annotated[dict[PartName, float], BeforeValidator(named_words), Flag(metavar="PART=SHARE")]
"""Part of a split -> its share."""


def map_paths(value: Any, change: Callable[[Path], Path]) -> Any:
    """Apply a function to the path of a path setting, or to each path of a list."""
    if isinstance(value, (list, tuple)):
        return [map_paths(entry, change) for entry in value]
    return str(change(Path(value))) if isinstance(value, (str, Path)) else value


def paths_in(value: Any) -> list[Path]:
    """Return the paths of a path setting: none, one, or a list of paths."""
    if isinstance(value, (list, tuple)):
        return [path for entry in value for path in paths_in(entry)]
    return [Path(value)] if isinstance(value, (str, Path)) else []


def types_in(annotation: Any) -> list[Any]:
    """Return the classes inside the unions and containers of an annotation.

    Example:
        >>> types_in(int | tuple[Path, ...] | None)
        [<class 'int'>, <class 'pathlib.Path'>, <class 'NoneType'>]
    """
    if get_origin(annotation) in (Union, types.UnionType, tuple, list) or hasattr(annotation, "__metadata__"):
        return [kind for part in get_args(annotation) if part is not ... for kind in types_in(part)]
    return [annotation]


def flag_of(field: FieldInfo) -> Flag | None:
    """Return the form of a setting on the command line; None if files and Python alone set it."""
    flag = next((entry for entry in field.metadata if isinstance(entry, Flag)), Flag())
    is_open = any(kind is Any or (get_origin(kind) is dict and not flag.metavar) for kind in types_in(field.annotation))
    return None if flag.hidden or is_open else flag


def section_of(field: FieldInfo) -> type[Settings] | None:
    """Return the settings class of a field that is a section, else None."""
    kinds = types_in(field.annotation)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a null section becomes one. Validation reports a parent that is no section."""
    *parents, last = key.split(".")
    section: Any = values
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            return
    section[last] = value


def _refused(
    kind: type[Settings], error: ValidationError, values: Mapping[str, Any], where: object, in_python: bool = False
) -> ConfigError:
    """Return the error with one line per key: pydantic reports each member of a union by itself."""
    errors: dict[str, list[Mapping[str, Any]]] = {}
    for entry in error.errors():
        errors.setdefault(_key_of(entry, values), []).append(entry)
    # pydantic reports a wrong list as a wrong single value too; the error of the entry is the useful one
    keys = [key for key in errors if not any(other.startswith(f"{key}.") for other in errors)]
    lines = [_line(kind, key, errors[key], in_python) for key in keys]
    count = f"{len(lines)} error{'s' if len(lines) != 1 else ''}"
    return ConfigError("\n".join([f"{where}: {count}", *lines]))


def _key_of(error: Mapping[str, Any], values: Any) -> str:
    """Return the dotted key of an error, without pydantic's words for members of a union."""
    parts = []
    for part in error["loc"]:
        in_list = isinstance(values, (list, tuple)) and isinstance(part, int) and part < len(values)
        if in_list or (isinstance(values, dict) and part in values):
            values = values[part]
            parts.append(str(part))
    return ".".join(parts if error["type"] != "missing" else [*parts, str(error["loc"][-1])])


def _line(kind: type[Settings], key: str, errors: Sequence[Mapping[str, Any]], in_python: bool) -> str:
    error = errors[0]
    field = kind.model_fields.get(key.partition(".")[0])
    key = key.partition(".")[2] if in_python and _is_flat(kind, key) else key
    if error["type"] == "extra_forbidden":
        known = {name.rpartition(".")[2]: name for name in known_keys(kind)}
        hint = {"out": "give --out on the command line", **kind.renamed}.get(key)
        if hint is None or hint in known:
            word = hint or str(error["loc"][-1])
            shown = {name: name if in_python and _is_flat(kind, path) else path for name, path in known.items()}
            if close := difflib.get_close_matches(word, known, n=1):
                hint = f"did you mean {shown[close[0]]!r}?"
            else:
                nearest = difflib.get_close_matches(word, known, n=NEAREST, cutoff=0.0)
                hint = f"choose a known key, such as {', '.join(shown[name] for name in nearest)}"
        return f"  {key}: got an unknown key; expected a known one; fix: {hint}"
    if error["type"] == "missing":
        return f"  {key}: got nothing; expected a value; fix: set {key!r} in the file{_on_the_command_line(key, field)}"
    first, *others = dict.fromkeys(map(_expected, errors))
    message = " or ".join([first, *(other.removeprefix("expected ") for other in others)])
    if error["type"] == "model_type" and field is not None and type(None) in types_in(field.annotation):
        message += ", or null to leave it out"
    otherwise = "" if field is not None and field.is_required() else ", or leave it out for the default"
    fix = "" if "fix:" in message else f"; fix: correct it{otherwise}"
    if not key:
        return f"  {message}{fix}"
    return f"  {key}: got {shorten(error['input'])}; {message}{fix}"


def _is_flat(kind: type[Settings], key: str) -> bool:
    """Return True for a dotted key that is one keyword of a function, without the name of its section."""
    section, _, inner = key.partition(".")
    flag = flag_of(kind.model_fields[section]) if inner and section in kind.model_fields else None
    return flag is not None and flag.flat


def _on_the_command_line(key: str, field: FieldInfo | None) -> str:
    """Return how the command line gives a required setting: as a word after the verb, with a flag, or not at all."""
    flag = flag_of(field) if field is not None and "." not in key else None
    if flag is None:
        return ""
    if flag.positional:
        return f", or write {flag.metavar or key.upper()} after the verb, without a flag"
    return f", or give --{flag.name or key}".replace("_", "-")


def _expected(error: Mapping[str, Any]) -> str:
    if error["type"] in EXPECTED:
        return f"expected {EXPECTED[error['type']].format(**error.get('ctx', {}))}"
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def known_keys(kind: type[Settings]) -> Iterable[str]:
    """Yield the keys of settings, and the dotted keys of their sections."""
    for name, field in kind.model_fields.items():
        yield name
        section = section_of(field)
        yield from (f"{name}.{key}" for key in section.model_fields) if section is not None else ()
