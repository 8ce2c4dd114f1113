"""A key that is there twice is an error in JSON and in YAML, with its place and name."""

from __future__ import annotations

import pytest
import yaml

from bixse.errors import ConfigError
from bixse.files.files import parse_json, parse_yaml, read_settings


@pytest.mark.parametrize("inner", ['{"a": 1, "b": 2, "a": 3}', '[{"a": 1, "a": 1}]', '{"b": {"a": null, "a": null}}'])
def test_json_at_any_depth(inner):
    with pytest.raises(ValueError, match="'a'"):
        parse_json(f'{{"outer": {inner}}}')


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("seed: 1\nloss: bixse\nseed: 2\n", "seed", 3),
        ("optimizer:\n  epochs: 1\n  epochs: 2\n", "epochs", 3),
        ("x: [{a: 1, a: 1}]\n", "a", 1),
        ('"seed": 1\nseed: 1\n', "seed", 2),
    ],
)
def test_settings(tmp_path, text, key, line):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"'{key}' .* line {line}"):
        read_settings(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {a: 1}\n", "a: &x {k: 1}\nb: *x\n", "b: &x {k: 1}\nc: {<<: *x, k: 2}\n", "1: a\n'1': b\n", ""]
)
def test_what_only_looks_alike_is_read(text):
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: &x {b: *x}\n", "a: &x [*x]\n", "&x {a: [1, *x]}\n"])
def test_a_value_that_holds_itself_is_refused(text):
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
