"""Flags, YAML files and Python set the same settings: one default, one range, one error."""

import inspect
import re
from pathlib import Path

import pydantic_core
import pytest

import bixse
from bixse.cli.main import VERBS, parse, verb_parser
from bixse.cli.verb import settings_from
from bixse.errors import ConfigError, InputError
from bixse.settings import section_of

REQUIRED = {
    "convert": ["umbrela", "judged.jsonl"],
    "mine": ["--collection", "toy"],
    "generate": ["--corpus", "corpus.jsonl", "--server", "http://localhost:1"],
    "grade": ["--judge", "http://localhost:1"],
    "grade audit": ["--judge", "judge.txt", "--human", "human.txt"],
    "grade calibrate": ["--judgements", "judge.txt", "--human", "human.txt"],
    "grade rank": ["--judge", "http://localhost:1", "--collection", "toy"],
    "train": ["--pairs", "pairs.csv"],
    "merge": ["demo", "tuned", "--weights", "0.5", "0.5"],
    "study": ["losses", "--preset", "smoke"],
    "evaluate": ["bm25", "--collection", "toy"],
    "calibrate": ["demo", "--pairs", "pairs.csv"],
    "index": ["demo", "--collection", "toy"],
    "search": ["index", "copy"],
    "ui": ["runs/grade"],
}
"""Verb -> the least that it has to be told."""
SWEEP = "base: {pairs: pairs.csv, dev: toy}\nvary: {scale: [10, 20]}"
FUNCTIONS = {
    "evaluate": (bixse.collection_task, bixse.evaluate_suite, bixse.EncoderSystem),
    "search": (bixse.search_collection, bixse.open_index),
}
"""Verb -> public functions that take its settings one by one; those of other verbs take them whole."""


def settings_of(verb, *words, file=None):
    _, found, args = parse([*verb.split(), *words])
    return settings_from(args, found.settings, file)


def yaml_file(folder, text):
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- one default


@pytest.mark.parametrize("verb", VERBS)
def test_what_no_flag_sets_is_the_default_of_the_settings(verb, tmp_path):
    file = yaml_file(tmp_path, SWEEP) if verb == "sweep" else None
    given = settings_of(verb, *REQUIRED.get(verb, []), file=file)
    for name, field in type(given).model_fields.items():
        default = field.get_default(call_default_factory=True)
        left_alone = name not in given.model_fields_set and section_of(field) is None
        assert not left_alone or getattr(given, name) == default, name
    _, _, args = parse(verb.split())
    flags = set(vars(args)) - {"config", "json", "debug"}
    assert not flags, "argparse has a default of its own"


@pytest.mark.parametrize("verb", [*REQUIRED, "sweep"])
def test_what_has_no_default_is_asked_for(verb):
    with pytest.raises((ConfigError, InputError)) as caught:
        settings_of(verb, *(["--precision", "auto"] if verb == "sweep" else []))
    assert "got no" in str(caught.value)


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_functions_have_the_defaults_of_the_settings(verb):
    _, found, _ = parse(verb.split())
    fields = found.settings.model_fields
    for function in FUNCTIONS[verb]:
        for name, parameter in inspect.signature(function).parameters.items():
            required = parameter.default is inspect.Parameter.empty
            if name in fields and not required:
                default = fields[name].default
                expected = None if default is pydantic_core.PydanticUndefined else default
                assert parameter.default == expected, f"{function.__name__}({name})"


# --- words


def test_positionals_may_stand_behind_flags():
    found = settings_of("search", "index", "--top", "3", "copy a folder")
    assert (found.model, found.query, found.top) == ("index", "copy a folder", 3)
    assert settings_of("evaluate", "bm25", "--collection", "toy", "demo").model == ("bm25", "demo")
    assert settings_of("search", "index", "--", "-x").query == "-x"


@pytest.mark.parametrize(("verb", "group"), [("train", "optimizer"), ("grade", "engine")])
def test_help_begins_with_what_everyone_needs_and_then_shows_groups(verb, group):
    verb_data = parse([verb])[1]
    text = verb_parser(verb, verb_data).format_help()
    flags = re.findall(r"^  (?:-h, )?(--[a-z][\w.-]*)", text, re.MULTILINE)
    assert len(flags) == len(set(flags))
    names = {"judge.names": "judge"}
    needed = ["--" + names.get(key, key).rpartition(".")[2].replace("_", "-") for key in verb_data.first]
    assert flags[: len(needed) + 1] == ["--help", *needed]
    assert text.index(needed[-1]) < text.index("--out") < text.index("further settings:") < text.index(f"{group}:")


# --- files


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        settings_of("evaluate", file=tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="expected lines of the form"):
        settings_of("evaluate", file=yaml_file(tmp_path, "bm25"))


def test_all_errors_together(tmp_path):
    text = "modle: x\nsplit: [a, b]\nmin_relevant_grade: high\nmax_length: 1.5\nexclude_self: maybe\nout: x\n"
    with pytest.raises(ConfigError) as caught:
        settings_of("evaluate", file=yaml_file(tmp_path, text))
    head, *lines = str(caught.value).splitlines()
    assert head.endswith("7 errors")
    found = {line.split(":")[0].strip() for line in lines}
    assert found == {"model", "modle", "split", "min_relevant_grade", "max_length", "exclude_self", "out"}
    assert any("did you mean 'model'?" in line for line in lines)


def test_paths_of_a_file_are_taken_from_its_folder_and_flags_beat_it(tmp_path):
    path = yaml_file(tmp_path, "model: [bm25]\ncollection: data\nsplit: dev\nmax_length: 64\nexclude_self: true\n")
    found = settings_of("evaluate", file=path)
    assert (found.model, found.collection, found.max_length) == (("bm25",), tmp_path / "data", 64)
    found = settings_of("evaluate", "demo", "--collection", "own", "--split", "test", file=path)
    assert (found.model, found.collection, found.split) == (("demo",), Path("own"), "test")
    assert settings_of("evaluate", "--max-length", "null", file=path).max_length is None
