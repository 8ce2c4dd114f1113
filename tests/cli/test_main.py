import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import bixse
import bixse.cli.main as command
from bixse.cli.verb import CommandResult, Options, Verb
from bixse.errors import InputError, InterruptedRunError, StorageError
from bixse.settings import Settings

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "matplotlib", "scipy", "pandas", "duckdb")


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)


def replace_doctor(monkeypatch, action):
    """Put another function in the place of `bixse doctor`."""
    module = SimpleNamespace(VERB=Verb(Settings, Options, lambda settings, options: action()))
    monkeypatch.setattr(command, "import_module", lambda name: module)


def raising(error):
    def action():
        raise error

    return action


# --- wrong usage


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_wrong_usage_says_what_is_right(capsys, words, said):
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.startswith("error: bixse"), "Traceback" in shown.err) == ("", True, False)
    assert said in shown.err and "fix: " in shown.err and "--help`" in shown.err


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "x"), ("RANK", "-1"), ("WORLD_SIZE", "two"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "")]
)
def test_a_launchers_variable_that_is_no_number(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert command.main(["doctor", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error.startswith(f"{name}: got {value!r}") and "expected " in error and "fix: " in error


def test_wrong_usage_with_json_is_one_envelope(capsys):
    assert command.main(["evaluate", "--json"]) == 2
    shown = capsys.readouterr()
    envelope = json.loads(shown.out)
    assert list(envelope) == ["status", "artifacts", "metrics", "warnings", "errors"]
    assert (envelope["status"], shown.err) == ("failed", "")
    assert "model: got nothing" in envelope["errors"][0]


# --- outcomes


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (InputError("got a; expected b; fix: c"), 2, "failed"),
        (StorageError("got a full disk"), 1, "failed"),
        (InterruptedRunError("got Ctrl-C"), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("division by zero"), 1, "failed"),
        (MemoryError(), 1, "failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_give_their_exit_code_and_no_traceback(monkeypatch, capsys, error, code, status):
    replace_doctor(monkeypatch, raising(error))
    assert command.main(["doctor"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err
    assert command.main(["doctor", "--json"]) == code
    shown = capsys.readouterr()
    envelope = json.loads(shown.out)
    assert (envelope["status"], len(envelope["errors"]), shown.err) == (status, 1, "")


def test_an_unexpected_error_asks_for_a_report_and_debug_shows_where(monkeypatch, capsys):
    replace_doctor(monkeypatch, raising(ZeroDivisionError("division by zero")))
    assert command.main(["doctor", "--debug"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "ZeroDivisionError: division by zero" in shown.splitlines()[-1]


def test_no_memory_is_no_error_of_ours(monkeypatch, capsys):
    class OutOfMemoryError(RuntimeError):
        """As torch names its own."""

    replace_doctor(monkeypatch, raising(OutOfMemoryError("CUDA out of memory")))
    assert command.main(["doctor"]) == 1
    assert "a smaller --global-batch-size" in capsys.readouterr().err


def test_success_in_text_and_as_an_envelope(monkeypatch, capsys):
    def chatty():
        sys.stdout.write("a library's notice\n")
        return CommandResult("nDCG 0.5\n", {"ndcg": 0.5}, {"run": "x"}, ["a warning é"])

    replace_doctor(monkeypatch, chatty)
    assert command.main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "nDCG 0.5\n"
    assert shown.err == "a library's notice\nwarning: a warning é\n"
    assert command.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "status": "ok",
        "artifacts": {"run": "x"},
        "metrics": {"ndcg": 0.5},
        "warnings": ["a warning é"],
        "errors": [],
    }


@pytest.mark.parametrize(("code", "status"), [(3, "partial"), (1, "failed")])
def test_a_result_with_an_exit_code_of_its_own(monkeypatch, capsys, code, status):
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
    done = python(code)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert f"bixse {bixse.__version__}" in done.stdout
    ended = [line for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert len(ended) == 2 + len(command.VERBS)
    assert [line for line in ended if not line.endswith(" 0 []")] == []


def test_a_reader_that_stops_early():
    code = """
import sys, bixse.cli.main as command
from bixse.cli.verb import CommandResult
from bixse.cli.verb import Options, Settings, Verb
from types import SimpleNamespace
result = CommandResult("line\\n" * 100_000)
command.import_module = lambda name: SimpleNamespace(VERB=Verb(Settings, Options, lambda *given: result))
sys.exit(command.main(["doctor"]))
"""
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$CODE" | head -1; exit ${{PIPESTATUS[0]}}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CODE": code},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")


def test_a_terminal_that_is_not_utf8():
    code = """
import sys, bixse.cli.main as command
from bixse.cli.verb import CommandResult
from bixse.cli.verb import Options, Settings, Verb
from types import SimpleNamespace
result = CommandResult("caf\\u00e9 \\u2192 x", warnings=["\\u2192"])
command.import_module = lambda name: SimpleNamespace(VERB=Verb(Settings, Options, lambda *given: result))
sys.exit(command.main(["doctor"]) or command.main(["doctor", "--json"]))
"""
    done = python(code, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert done.returncode == 0, done.stderr
    text, envelope = done.stdout.splitlines()
    assert text == "café ? x"
    assert json.loads(envelope)["warnings"] == ["→"]
