from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bixse.cli.config_file import config_path
from bixse.cli.main import CONFIG_VERBS, build_parser
from bixse.errors import ConfigError, InputError


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def parse(path: Path, *words: str) -> argparse.Namespace:
    return build_parser(words[0], path).parse_args([*words, "--config", str(path)])


def faults(path: Path, verb: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(path, verb)
    return str(caught.value).splitlines()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        parse(tmp_path / "run.yaml", "evaluate")


def test_no_value(tmp_path: Path) -> None:
    assert config_path(["evaluate", "--config"]) is None
    with pytest.raises(InputError, match="--config: expected one argument"):
        build_parser("evaluate").parse_args(["evaluate", "bm25", "--config"])


def test_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected lines of the form"):
        parse(yaml_file(tmp_path, "bm25"), "evaluate")


def test_all_faults_together(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "modle: x\nsplit: [a]\nmin-relevant-grade: high\nmax_length: 1.5\nout: 5\nconfig: x\n")
    assert faults(path, "evaluate") == [
        f"{path}: 6 faults",
        "  modle: got an unknown key; expected a known one; fix: did you mean 'model'?",
        "  split: got ['a']; expected a text (in quotes); fix: correct the value",
        "  min-relevant-grade: got 'high'; expected a number; fix: correct the value",
        "  max_length: got 1.5; expected a whole number; fix: correct the value",
        "  out: got 5; expected a path; fix: correct the value",
        "  config: got an unknown key; expected a known one; fix: known keys: "
        "model, suite, collection, split, min_relevant_grade, task, max_length, exclude_self, missing_documents, data, "
        "tasks, download, protocol, cache, processes, devices, out, precision",
    ]


@pytest.mark.parametrize(
    "line", ["exclude_self: 1", "exclude_self: 'yes'", "max_length: true", "max_length: '3'", "out: ''", "json: true"]
)
def test_values_of_another_kind(tmp_path, line):
    assert faults(yaml_file(tmp_path, line), "evaluate")[0].endswith("1 fault")


@pytest.mark.parametrize("value", ["yes", ".nan", ".inf"])
def test_numbers_and_texts_that_yaml_reads_otherwise(tmp_path: Path, value: str) -> None:
    assert "expected a number" in faults(yaml_file(tmp_path, f"threshold: {value}"), "search")[1]
    assert "got True" in faults(yaml_file(tmp_path, "query: yes"), "search")[1]


def test_a_key_twice_in_two_spellings(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "max-length: 5\nmax_length: 6\n")
    assert "got the key twice" in faults(path, "evaluate")[1]


def test_required_arguments_may_come_from_the_file(tmp_path: Path) -> None:
    args = parse(
        yaml_file(tmp_path, "model: bm25\ncollection: data\nmax-length: 64\nmin_relevant_grade: 2\n"), "evaluate"
    )
    assert (args.model, args.collection, args.max_length, args.min_relevant_grade) == (
        ["bm25"],
        tmp_path / "data",
        64,
        2,
    )
    assert (args.split, args.out) == ("test", None)


def test_several_values_of_an_argument_without_a_flag(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "model: [bm25, demo]\ncollection: data\n")
    assert parse(path, "evaluate").model == ["bm25", "demo"]
    words = ["evaluate", "one", "two", "three", "--config", str(path)]
    assert build_parser("evaluate", path).parse_args(words).model == ["one", "two", "three"]


def test_what_the_file_lacks_is_still_required(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="required: MODEL"):
        parse(yaml_file(tmp_path, "collection: data\nmodel: null\n"), "evaluate")


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "model: bm25\ncollection: data\nsplit: dev\n")
    args = parse(path, "evaluate", "demo", "--collection", "elsewhere", "--split", "test")
    assert (args.model, args.collection, args.split) == (["demo"], Path("elsewhere"), "test")


def test_a_query_beside_a_model_from_the_file(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "model: demo\ncollection: /data\ntop: 3\n")
    args = parse(path, "search", "copy a file", "--threshold", "0.5")
    assert (args.model, args.query, args.collection, args.top) == ("demo", "copy a file", Path("/data"), 3)
    assert parse(yaml_file(tmp_path, "model: demo\ncollection: c\nquery: 2024\n"), "search").query == "2024"


def test_switches(tmp_path):
    required = "model: m\ncollection: c\n"
    assert parse(yaml_file(tmp_path, f"{required}exclude_self: true\n"), "evaluate").exclude_self is True
    assert parse(yaml_file(tmp_path, f"{required}exclude_self: false\n"), "evaluate", "--exclude-self").exclude_self


@pytest.mark.parametrize("verb", CONFIG_VERBS)
def test_every_verb_takes_all_of_its_arguments_as_keys(tmp_path: Path, verb: str) -> None:
    path = yaml_file(tmp_path, "xyzzy: 1")
    (known,) = [line.split("known keys: ")[1].split(", ") for line in faults(path, verb)[1:]]
    actions = {action.dest: action for action in arguments_of(verb)}
    args = parse(yaml_file(tmp_path, "".join(f"{key}: {some_value(actions[key])}\n" for key in known)), verb)
    assert all(getattr(args, key) is not None for key in known)


def arguments_of(verb: str) -> list[argparse.Action]:
    (verbs,) = [action for action in build_parser(verb)._actions if isinstance(action, argparse._SubParsersAction)]
    return list(verbs.choices[verb]._actions)


def some_value(action: argparse.Action) -> str:
    """A value of the kind an argument takes, as YAML."""
    if action.nargs == 0:
        return "true"
    one = action.choices[0] if action.choices else {int: "1", float: "0.5"}.get(action.type, "text")
    count = action.nargs if isinstance(action.nargs, int) else 1
    return f"[{', '.join([one] * count)}]" if action.nargs == "+" or count > 1 else one
