import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import bixse
import bixse.cli.main as command
from bixse.cli.verb import CommandResult, Options, Output, Verb
from bixse.errors import InputError, InterruptedRunError, StorageError
from bixse.settings import Settings

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "matplotlib", "scipy", "pandas", "duckdb")
HARMLESS = """
import sys, bixse.cli.main as command
from bixse.cli.verb import CommandResult, Options, Settings, Verb
from types import SimpleNamespace
command.import_module = lambda name: SimpleNamespace(VERB=Verb(Settings, Options, lambda *given: RESULT))
sys.exit(command.main(["doctor"]) or command.main(WORDS))
"""
"""A program that runs a verb with a fixed result."""


class OutOfMemoryError(RuntimeError):
    """torch raises an error of this name."""


def replace_doctor(monkeypatch, action):
    """Let `bixse doctor` call another function."""
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


def raising(error):
    def action():
        raise error

    return action


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
        (OutOfMemoryError("CUDA"), 1, "failed", "--global-batch-size"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_give_their_exit_code_and_a_traceback_only_with_debug(monkeypatch, capsys, error, code, status, message):
    replace_doctor(monkeypatch, raising(error))
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
    unexpected = isinstance(error, ZeroDivisionError | MemoryError | OutOfMemoryError)
    assert ("Traceback" in capsys.readouterr().err) == unexpected


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


@pytest.mark.parametrize(("code", "status"), [(3, "partial"), (1, "failed")])
def test_a_result_with_an_exit_code(monkeypatch, capsys, code, status):
    replace_doctor(monkeypatch, lambda: CommandResult("text", errors=["one failed"], exit_code=code))
    assert command.main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["status"] == status


# --- the process


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


def test_a_reader_that_stops_early():
    code = HARMLESS.replace("RESULT", 'CommandResult("line\\n" * 100_000)').replace(" or command.main(WORDS)", "")
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$CODE" | head -1; exit ${{PIPESTATUS[0]}}'],
        capture_output=True, text=True, check=False, env={**os.environ, "CODE": code},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")


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
