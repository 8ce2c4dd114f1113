"""JSON and YAML in which a key that is there twice is a fault: the parsers would keep the last one without a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class RepeatedKeyError(ValueError):
    """An object has a key twice.

    Args:
        key: the key.
        line: line of its second place, from 1, or None.
    """

    def __init__(self, key: str, line: int | None = None) -> None:
        self.key = key
        super().__init__(f"the key {key!r} is there twice" + ("" if line is None else f", again in line {line}"))


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: the text is no JSON; `RepeatedKeyError` where an object has a key twice.
        RecursionError: it is nested too deeply.

    Example:
        >>> parse_json('{"query": "copy"}')
        {'query': 'copy'}
        >>> parse_json('{"relevance": 1, "relevance": 0}')
        Traceback (most recent call last):
        ...
        bixse.data.io.strict.RepeatedKeyError: the key 'relevance' is there twice
    """
    return _DECODER.decode(text)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.YAMLError: the text is no YAML.
        ValueError: a value is none of its kind, or holds itself; `RepeatedKeyError` where a mapping has a key twice.
        RecursionError: it is nested too deeply.
    """
    import yaml

    for node in _mappings(yaml.compose(text, Loader=yaml.SafeLoader)):
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise RepeatedKeyError(key.value, key.start_mark.line + 1)
                seen.add((key.tag, key.value))
    loaded = yaml.safe_load(text)
    if _holds_itself(loaded, (), set()):
        raise ValueError("an alias (*name) stands inside the value that it stands for")
    return loaded


def _holds_itself(value: Any, above: tuple[int, ...], seen: set[int]) -> bool:
    if not isinstance(value, (dict, list)) or (id(value) in seen and id(value) not in above):
        return False
    seen.add(id(value))
    inside = value.values() if isinstance(value, dict) else value
    return id(value) in above or any(_holds_itself(part, (*above, id(value)), seen) for part in inside)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(next(key for place, key in enumerate(keys) if key in keys[:place]))
    return found


def _mappings(root: Any) -> Iterator[Any]:
    """The mappings of a YAML document, each once, whatever refers to what."""
    import yaml

    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
