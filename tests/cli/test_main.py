import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pydantic_core
import pytest
import torch

import bixse
import bixse.cli.main as command
from bixse.cli.main import VERBS, _sigterm_as_interrupt, main, parse, verb_parser
from bixse.cli.verb import CommandResult, Options, Output, Verb, settings_from
from bixse.encoders.loading.precision import PRECISION_VARIABLE
from bixse.errors import ConfigError, InputError, InterruptedRunError, StorageError
from bixse.settings import Settings, section_of
from helpers.command import call, refused
from helpers.row_files import yaml_file

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "matplotlib", "scipy", "pandas", "duckdb")
HARMLESS = """
import sys, bixse.cli.main as command
from bixse.cli.verb import CommandResult, Options, Settings, Verb
from types import SimpleNamespace
command.import_module = lambda name: SimpleNamespace(VERB=Verb(Settings, Options, lambda *given: RESULT))
sys.exit(command.main(["doctor"]) or command.main(WORDS))
"""
"""A program that runs a verb with a fixed result."""


def replace_doctor(monkeypatch, action):
    module = SimpleNamespace(VERB=Verb(Settings, Options, lambda settings, options: action()))
    monkeypatch.setattr(command, "import_module", lambda name: module)


@pytest.mark.parametrize(("words", "folder"), [(["ui"], "runs/here"), (["ui", "--out", "there"], "there")])
def test_results_go_to_the_folder_of_the_verb_unless_a_flag_names_one(monkeypatch, words, folder):
    folders = []
    verb = Verb(
        Settings, Options, lambda _, options: folders.append(str(options.folder)), out=Output("it", "runs/here")
    )
    verb.call(command.verb_parser("ui", verb).parse_args(words[1:]), tuple(words))
    assert folders == [folder]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no verb"),
        (["serach", "demo", "x"], "'search'?"),
        (["zzz"], "'zzz'"),
        (["--verson"], "'--version'?"),
        (["evaluate", "bm25", "--colection", "x"], "'--collection'?"),
        (["evaluate", "bm25", "--collection", "x", "--splt=dev"], "'--split'?"),
        (["evaluate", "bm25", "--coll", "x"], "'--collection'?"),
        (["search", "demo", "x", "too", "--collection", "y"], "too"),
        (["train", "--num-train-epochs"], "--num-train-epochs"),
        (["train", "train"], "train"),
        (["train", "--config", "a.yaml", "--pairs", "p.csv", "--config", "b.yaml"], "got a.yaml and b.yaml"),
    ],
)
def test_wrong_usage_names_what_is_right(capsys, words, message):
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.startswith("error: bixse"), "Traceback" in shown.err) == ("", True, False)
    assert message in shown.err and "fix: " in shown.err and "--help`" in shown.err


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "x"), ("RANK", "-1"), ("WORLD_SIZE", "two"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "")]
)
def test_a_launchers_variable_that_is_no_number(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert command.main(["doctor", "--json"]) == 2
    (message,) = json.loads(capsys.readouterr().out)["errors"]
    error = InputError(message)
    assert (error.where, repr(value) in error.got, bool(error.fix)) == (name, True, True)


@pytest.mark.parametrize(
    ("error", "code", "status", "message"),
    [
        (InputError("got a; expected b; fix: c"), 2, "failed", "fix: c"),
        (StorageError("got a full disk"), 1, "failed", "disk"),
        (InterruptedRunError("got Ctrl-C"), 130, "interrupted", "Ctrl-C"),
        (KeyboardInterrupt(), 130, "interrupted", "Ctrl-C"),
        (ZeroDivisionError("division by zero"), 1, "failed", "ZeroDivisionError: division by zero"),
        (MemoryError(), 1, "failed", "--global-batch-size"),
        (torch.OutOfMemoryError("CUDA"), 1, "failed", "--global-batch-size"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_give_their_exit_code_and_a_traceback_only_with_debug(monkeypatch, capsys, error, code, status, message):
    def action():
        raise error

    replace_doctor(monkeypatch, action)
    assert command.main(["doctor"]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.startswith("error: "), "Traceback" in shown.err) == ("", True, False)
    assert command.main(["doctor", "--json"]) == code
    shown = capsys.readouterr()
    envelope = json.loads(shown.out)
    assert list(envelope) == ["status", "artifacts", "metrics", "warnings", "errors"]
    assert (envelope["status"], len(envelope["errors"]), shown.err) == (status, 1, "")
    assert message in envelope["errors"][0]
    assert command.main(["doctor", "--debug"]) == code
    unexpected = isinstance(error, ZeroDivisionError | MemoryError | torch.OutOfMemoryError)
    assert ("Traceback" in capsys.readouterr().err) == unexpected


NAME = "n" * 100_000


@pytest.mark.parametrize(
    "words",
    [
        "NAME", "train --NAME", "train --pairs NAME", "evaluate NAME --collection .", "evaluate bm25 --collection NAME",
        "search NAME word", "index NAME .", "calibrate NAME --pairs NAME", "convert beir NAME --scale 0 3",
        "study NAME", "convert NAME .", "grade --pairs NAME --judge NAME", "doctor NAME",
        "export NAME --out NAME", "push NAME a/b",
    ],
)  # fmt: skip
def test_endless_name_is_cut_in_the_one_line_of_its_error(capsys, words):
    code, envelope = call(capsys, *words.replace("NAME", NAME).split())
    assert code in (1, 2)
    assert envelope["errors"] and all(len(error) < 2_000 for error in envelope["errors"])
    assert "unexpected" not in str(envelope["errors"])


def test_success_in_text_and_as_an_envelope(monkeypatch, capsys):
    def chatty():
        sys.stdout.write("a library's notice\n")
        return CommandResult("nDCG 0.5\n", {"ndcg": 0.5}, {"run": "x"}, ["a warning é"])

    replace_doctor(monkeypatch, chatty)
    assert command.main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("nDCG 0.5\n", "a library's notice\nwarning: a warning é\n")
    assert command.main(["doctor", "--json"]) == 0
    outcome = {"artifacts": {"run": "x"}, "metrics": {"ndcg": 0.5}, "warnings": ["a warning é"], "errors": []}
    assert json.loads(capsys.readouterr().out) == {"status": "ok", **outcome}


def test_help_of_every_verb_imports_nothing_heavy():
    code = f"""
import sys
from bixse.cli.main import VERBS, main
for words in [["--version"], ["--help"], *([*name.split(), "--help"] for name in VERBS)]:
    try:
        main(words)
    except SystemExit as stop:
        print("ENDED", words[0], stop.code, [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert f"bixse {bixse.__version__}" in done.stdout
    ended = [line for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert len(ended) == 2 + len(command.VERBS)
    assert [line for line in ended if not line.endswith(" 0 []")] == []


def test_the_module_of_the_command_runs_as_a_program_too():
    done = subprocess.run([sys.executable, "-m", "bixse.cli.main", "zzz"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("error: bixse"), "zzz" in done.stderr) == (2, True, True)


def test_a_reader_that_stops_early():
    code = HARMLESS.replace("RESULT", 'CommandResult("line\\n" * 100_000)').replace(" or command.main(WORDS)", "")
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$CODE" | head -1; exit ${{PIPESTATUS[0]}}'],
        capture_output=True, text=True, check=False, env={**os.environ, "CODE": code},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
def test_a_result_that_cannot_be_written_is_an_error():
    code = HARMLESS.replace("RESULT", 'CommandResult("line")')
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_a_terminal_that_is_not_utf8():
    result = 'CommandResult("caf\\u00e9 \\u2192 x", warnings=["\\u2192"])'
    code = HARMLESS.replace("RESULT", result).replace("WORDS", '["doctor", "--json"]')
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, env=environment, encoding="latin-1"
    )
    assert done.returncode == 0, done.stderr
    text, envelope = done.stdout.splitlines()
    assert text == "café ? x"
    assert json.loads(envelope)["warnings"] == ["→"]


REQUIRED = {
    "collection": "--documents docs.csv --queries questions.csv",
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
    "report": "runs/mine",
    "calibrate": "demo --pairs pairs.csv",
    "adapt": "--vectors documents.csv --queries queries.csv --pairs pairs.csv --vectors-of model",
    "index": "demo --collection toy",
    "search": "index copy",
    "export": "demo",
    "push": "runs/mine owner/name",
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


BOTH = ("float32", "bfloat16")
CHANGED = "precision (was 'bfloat16', now 'float32')"
TRAIN = {"optimizer": {"max_steps": 1, "global_batch_size": 4}, "merge": None}


@pytest.fixture
def inputs(actions, tiny_model_path):
    return {"pairs": str(actions.parent / "pairs.jsonl"), "dev": str(actions), "model": str(tiny_model_path)}


def record(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def test_a_flag_or_variable_that_is_no_precision(capsys, monkeypatch):
    for verb in ("doctor", "mine"):
        assert "precision: got 'half'" in refused(capsys, verb, "--precision", "half")
    for words in (("convert", "x.jsonl"), ("generate", "--corpus", "x.jsonl", "--server", "x")):
        assert "--precision" in call(capsys, *words, "--precision", "float32")[1]["errors"][0], "it computes nothing"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp16")
    assert f"{PRECISION_VARIABLE}: got 'fp16'" in refused(capsys, "doctor")


@pytest.mark.parametrize("precision", BOTH)
def test_doctor_names_setting_and_source(capsys, monkeypatch, precision):
    monkeypatch.delenv(PRECISION_VARIABLE)
    assert call(capsys, "doctor")[1]["metrics"]["precision"] == "auto (the default)"
    shown = call(capsys, "doctor", "--precision", precision)[1]["metrics"]["precision"]
    assert shown == f"{precision} (from --precision)"
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"{precision} (from {PRECISION_VARIABLE})" in shown
    assert f"models compute in {precision}" in shown


def test_bm25_has_no_precision(capsys, collection, tmp_path):
    for precision in BOTH:
        words = ("evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out", "--precision", precision)
        code, envelope = call(capsys, *words)
        assert (code, "precision" in envelope["metrics"]) == (0, False)


@pytest.fixture
def settings(inputs, tmp_path):
    return yaml_file(tmp_path, {**inputs, **TRAIN, "dev_split": "test", "precision": "float32"})


@pytest.fixture
def words_of(inputs, settings, tmp_path):
    """Verb -> its words without --out. A flag beats the precision of the file of training."""
    data = {"pairs": [inputs["pairs"]], "dev": [inputs["dev"]], "test": [inputs["dev"]], "min_relevant_grade": 1}
    study = {"data": data, "model": inputs["model"], "train": TRAIN, "values": {"losses": ["bixse"]}, "seeds": [0]}
    sweep = {"base": str(settings), "vary": {"scale": [10, 20]}}
    return {
        "evaluate": ("evaluate", inputs["model"], "--collection", inputs["dev"]),
        "train": ("train", "--config", settings),
        "sweep": ("sweep", "--config", yaml_file(tmp_path, sweep, "sweep.yaml")),
        "study": ("study", "losses", "--config", yaml_file(tmp_path, study, "study.yaml"), "--jobs", "1"),
    }


@pytest.mark.parametrize(
    ("verb", "files"),
    [
        ("evaluate", {}),
        ("train", {}),
        pytest.param("sweep", {"sweep.csv": 2, "best.yaml": 1}, marks=pytest.mark.slow),
        pytest.param("study", {"findings.md": 2, "runs.csv": 2}, marks=pytest.mark.slow),
    ],
)
def test_precision_is_in_results_and_tables_and_another_one_is_another_run(capsys, words_of, tmp_path, verb, files):
    words, out = (*words_of[verb], "--out", tmp_path / "out"), tmp_path / "out"
    assert main([*map(str, words), "--precision", "bfloat16"]) == 0
    assert ("bfloat16" in capsys.readouterr().out) or verb == "study"
    assert {name: (out / name).read_text(encoding="utf-8").count("bfloat16") for name in files} == files
    code, envelope = call(capsys, *words, "--precision", "bfloat16")
    metrics, config = envelope["metrics"], record(out)["config"]
    rows = [] if verb == "study" else metrics.get("rows", [metrics])
    assert code == 0 and all(row["precision"] == "bfloat16" for row in rows)
    assert config.get("train", config)["precision"] == "bfloat16"
    assert CHANGED in refused(capsys, *words, "--precision", "float32")


@pytest.mark.slow
def test_a_launchers_mixed_precision_does_not_decide(monkeypatch, capsys, settings, tmp_path):
    norms = []  # of gradients: the loss of the tiny model can be the same in both precisions
    for name, words in (("plain", ()), ("launched", ()), ("bfloat16", ("--precision", "bfloat16"))):
        if name == "launched":
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        call(capsys, "train", "--config", settings, *words, "--out", tmp_path / name)
        norms.append(record(tmp_path / name)["results"]["history"][1]["grad_norm"])
    assert norms[0] == norms[1] != norms[2]


def test_a_second_sigterm_does_not_stop_the_writing():
    before, written = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(KeyboardInterrupt), _sigterm_as_interrupt(to_the_end=False):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            written.append("results")
    assert written
    signal.signal(signal.SIGTERM, before)
