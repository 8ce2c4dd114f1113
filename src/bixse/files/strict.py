"""JSON and YAML in which a key that is there twice is an error: the parsers would keep the last one without a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable


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

    Example:
        >>> parse_json('{"query": "copy"}')
        {'query': 'copy'}
        >>> parse_json('{"relevance": 1, "relevance": 0}')
        Traceback (most recent call last):
        ...
        bixse.files.strict.RepeatedKeyError: the key 'relevance' is there twice
    """
    return _DECODER.decode(text)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Builds every value whole, so that one that holds itself is refused."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = True) -> dict[Hashable, Any]:
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        raise RepeatedKeyError(key.value, key.start_mark.line + 1)
                    seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep=deep)

        def construct_whole_sequence(self, node: yaml.SequenceNode) -> list[Any]:
            return self.construct_sequence(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_mapping)
    Loader.add_constructor("tag:yaml.org,2002:seq", Loader.construct_whole_sequence)
    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(next(key for place, key in enumerate(keys) if key in keys[:place]))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
