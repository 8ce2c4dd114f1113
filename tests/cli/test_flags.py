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
    "convert": "umbrela judged.jsonl",
    "mine": "--collection toy",
    "generate": "--corpus corpus.jsonl --server http://localhost:1",
    "grade": "--judge http://localhost:1",
    "grade audit": "--judge judge.txt --human human.txt",
    "grade calibrate": "--judgements judge.txt --human human.txt",
    "grade rank": "--judge http://localhost:1 --collection toy",
    "train": "--pairs pairs.csv",
    "merge": "demo tuned --weights 0.5 0.5",
    "study": "losses --preset smoke",
    "evaluate": "bm25 --collection toy",
    "calibrate": "demo --pairs pairs.csv",
    "index": "demo --collection toy",
    "search": "index copy",
    "ui": "runs/grade",
}
"""Verb -> its required words."""
SWEEP = "base: {pairs: pairs.csv, dev: toy}\nvary: {scale: [10, 20]}"
FUNCTIONS = {
    "evaluate": (bixse.collection_task, bixse.evaluate_suite, bixse.EncoderSystem),
    "search": (bixse.search_collection, bixse.open_index),
}
"""Verb -> public functions that take single settings of it. Other functions take the settings object."""


def settings_of(words, *more, file=None):
    _, verb, args = parse([*words.split(), *more])
    return settings_from(args, verb.settings, file)


def yaml_file(folder, text):
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_a_setting_without_a_flag_has_its_default(verb, tmp_path):
    file = yaml_file(tmp_path, SWEEP) if verb == "sweep" else None
    settings = settings_of(f"{verb} {REQUIRED.get(verb, '')}", file=file)
    for name, field in type(settings).model_fields.items():
        default = field.get_default(call_default_factory=True)
        left_alone = name not in settings.model_fields_set and section_of(field) is None
        assert not left_alone or getattr(settings, name) == default, name
    flags = set(vars(parse(verb.split())[2])) - {"config", "json", "debug"}
    assert not flags, "argparse has a default of its own"


@pytest.mark.parametrize("verb", [*REQUIRED, "sweep"])
def test_a_setting_without_a_default_is_required(verb):
    with pytest.raises((ConfigError, InputError)) as caught:
        settings_of(verb, *(["--precision", "auto"] if verb == "sweep" else []))
    assert "got no" in str(caught.value)


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_functions_have_the_defaults_of_the_settings(verb):
    fields = parse([verb])[1].settings.model_fields
    for function in FUNCTIONS[verb]:
        for name, parameter in inspect.signature(function).parameters.items():
            if name in fields and parameter.default is not inspect.Parameter.empty:
                default = fields[name].default
                expected = None if default is pydantic_core.PydanticUndefined else default
                assert parameter.default == expected, f"{function.__name__}({name})"


def test_positionals_may_follow_flags():
    settings = settings_of("search index --top 3", "copy a folder")
    assert (settings.model, settings.query, settings.top) == ("index", "copy a folder", 3)
    assert settings_of("evaluate bm25 --collection toy demo").model == ("bm25", "demo")
    assert settings_of("search index -- -x").query == "-x"


@pytest.mark.parametrize(("name", "group"), [("train", "optimizer"), ("grade", "engine")])
def test_help_begins_with_the_first_settings_and_then_shows_groups(name, group):
    verb = parse([name])[1]
    text = verb_parser(name, verb).format_help()
    flags = re.findall(r"^  (?:-h, )?(--[a-z][\w.-]*)", text, re.MULTILINE)
    assert len(flags) == len(set(flags))
    renamed = {"judge.name": "judge"}
    first = ["--" + renamed.get(key, key).rpartition(".")[2].replace("_", "-") for key in verb.first]
    assert flags[: len(first) + 1] == ["--help", *first]
    assert text.index(first[-1]) < text.index("--out") < text.index("further settings:") < text.index(f"{group}:")


def test_paths_of_a_file_start_at_its_folder_and_flags_win(tmp_path):
    path = yaml_file(tmp_path, "model: [bm25]\ncollection: data\nsplit: dev\nmax_length: 64\nexclude_self: true\n")
    settings = settings_of("evaluate", file=path)
    assert (settings.model, settings.collection, settings.max_length) == (("bm25",), tmp_path / "data", 64)
    settings = settings_of("evaluate demo --collection other --split test", file=path)
    assert (settings.model, settings.collection, settings.split) == (("demo",), Path("other"), "test")
    assert settings_of("evaluate --max-length null", file=path).max_length is None
