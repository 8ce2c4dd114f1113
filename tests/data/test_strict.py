"""A key that is there twice is a fault wherever JSONL and YAML are read, with its place and name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bixse.data.collection import Collection, Document
from bixse.data.collection_files import load_collection, save_collection
from bixse.data.io.files import read_settings
from bixse.data.io.strict import parse_json, parse_yaml
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.sources.own_pairs import OwnPairs
from bixse.errors import ConfigError, InvalidFileError
from bixse.evaluation.folder_stream import check_corpus, read_judged_queries
from bixse.grading.audit.label_tables import table_rows
from bixse.mining.mine_inputs import read_texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAIR = '{"query": "copy", "document": "shutil", "relevance": 1}\n'
TWICE = '{"query": "move", "document": "shutil", "relevance": 1, "relevance": 0}\n'
READERS: list[Callable[[Path], Any]] = [
    load_graded_pairs,
    lambda path: list(OwnPairs(path).rows()),
    lambda path: list(table_rows(path)),
]


@pytest.mark.parametrize("read", READERS, ids=["pairs", "source", "labels"])
def test_pairs_and_labels(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(PAIR)
    read(path)
    path.write_text(PAIR + TWICE)
    with pytest.raises(InvalidFileError) as raised:
        read(path)
    (fault,) = raised.value.faults
    assert (fault.row, fault.column) == (2, "relevance")


@pytest.mark.parametrize("name", ["corpus", "queries"])
def test_collections(tmp_path: Path, name: str) -> None:
    corpus = {"d1": Document("", "copies a file")}
    save_collection(Collection("toy", corpus, {"q1": "copy"}, {"test": {"q1": {"d1": 1}}}), tmp_path)
    with (tmp_path / f"{name}.jsonl").open("a") as file:
        file.write('{"_id": "x", "text": "one", "text": "two"}\n')
    readers: list[Callable[[], Any]] = [
        lambda: load_collection(tmp_path),
        lambda: read_texts(tmp_path / f"{name}.jsonl"),
        (lambda: check_corpus(tmp_path, {})) if name == "corpus" else (lambda: read_judged_queries(tmp_path, "test")),
    ]
    for read in readers:
        with pytest.raises(InvalidFileError) as raised:
            read()
        (fault,) = raised.value.faults
        assert (fault.row, fault.column) == (2, "text")


@pytest.mark.parametrize("inner", ['{"a": 1, "b": 2, "a": 3}', '[{"a": 1, "a": 1}]', '{"b": {"a": null, "a": null}}'])
def test_json_at_any_depth(inner: str) -> None:
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
def test_settings(tmp_path: Path, text: str, key: str, line: int) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"'{key}' .* line {line}"):
        read_settings(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {a: 1}\n", "a: &x {k: 1}\nb: *x\n", "b: &x {k: 1}\nc: {<<: *x, k: 2}\n", "1: a\n'1': b\n", ""]
)
def test_what_only_looks_alike_is_read(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: &x {b: *x}\n", "a: &x [*x]\n", "&x {a: [1, *x]}\n"])
def test_a_value_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="alias"):
        parse_yaml(text)
