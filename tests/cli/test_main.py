from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import bixse
import bixse.cli.main as command
from bixse.cli.result import CommandResult
from bixse.errors import InputError, InterruptedRunError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = (
    "torch",
    "transformers",
    "sentence_transformers",
    "sklearn",
    "matplotlib",
)
KEYS = ["status", "artifacts", "metrics", "warnings", "errors"]


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)


def verb(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Put a verb's function in the place of `doctor`."""

    def module(name: str) -> SimpleNamespace:
        return SimpleNamespace(add_arguments=lambda parser: None, run=lambda args: action())

    monkeypatch.setattr(command, "import_module", module)


def raising(error: BaseException) -> Any:
    def action() -> NoReturn:
        raise error

    return action


# --- wrong usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "bixse: the following arguments are required: VERB"),
        (["serach", "demo", "x"], "did you mean 'search'?"),
        (["zzz"], "invalid choice: 'zzz'"),
        (["--verson"], "did you mean '--version'?"),
        (["evaluate", "bm25", "--colection", "x"], "did you mean '--collection'?"),
        (["evaluate", "bm25", "--collection", "x", "--splt=dev"], "did you mean '--split'?"),
        (["evaluate", "bm25", "--coll", "x"], "did you mean '--collection'?"),
        (["search", "demo", "x", "too", "many", "--collection", "y"], "bixse search: got too many; expected no such"),
        (["search", "demo", "x", "--collection", "y", "--top", "many"], "--top: invalid int value: 'many'"),
        (["train", "--epochs"], "--epochs: expected one argument"),
        (["train", "train"], "bixse train: got train"),
    ],
)
def test_wrong_usage_says_how_to_mend_it(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: bixse")
    assert said in shown.err
    assert "fix: " in shown.err
    assert "--help`" in shown.err
    assert "Traceback" not in shown.err


def test_wrong_usage_with_json_is_one_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["evaluate", "--json"]) == 2
    shown = capsys.readouterr()
    envelope = json.loads(shown.out)
    assert list(envelope) == KEYS
    assert (envelope["status"], shown.err) == ("failed", "")
    assert "required: MODEL" in envelope["errors"][0]


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
def test_errors_give_their_exit_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    status: str,
) -> None:
    verb(monkeypatch, raising(error))
    assert command.main(["doctor"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err
    assert command.main(["doctor", "--json"]) == code
    shown = capsys.readouterr()
    envelope = json.loads(shown.out)
    assert (envelope["status"], len(envelope["errors"]), shown.err) == (status, 1, "")


def test_an_unexpected_error_asks_for_a_report_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(monkeypatch, raising(ZeroDivisionError("division by zero")))
    assert command.main(["doctor", "--debug"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "unexpected ZeroDivisionError: division by zero; this is a fault of bixse: please report it" in shown


def test_no_memory_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch names its own."""

    verb(monkeypatch, raising(OutOfMemoryError("CUDA out of memory")))
    assert command.main(["doctor"]) == 1
    assert "a smaller --batch-size" in capsys.readouterr().err


def test_success_in_text_and_as_an_envelope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chatty() -> CommandResult:
        sys.stdout.write("a library's notice\n")
        return CommandResult("nDCG 0.5\n", {"ndcg": 0.5}, {"run": "x"}, ["a warning é"])

    verb(monkeypatch, chatty)
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
def test_a_result_with_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, status: str
) -> None:
    verb(monkeypatch, lambda: CommandResult("text", errors=["one failed"], exit_code=code))
    assert command.main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["status"] == status


# --- the process


@pytest.mark.parametrize("name", [None, *command.VERBS])
def test_help_of_every_verb_imports_nothing_heavy(name: str | None) -> None:
    words = [name, "--help"] if name else ["--help"]
    code = (
        "import sys\nfrom bixse.cli.main import main\n"
        f"try:\n    main({words})\n"
        "except SystemExit as stop:\n"
        f"    print('HEAVY', [name for name in {HEAVY} if name in sys.modules], stop.code)\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: bixse")
    assert done.stdout.endswith("HEAVY [] 0\n")
    assert done.stderr == ""


def test_version() -> None:
    done = python("import sys; from bixse.cli.main import main; main(['--version'])")
    assert done.stdout == f"bixse {bixse.__version__}\n"


def test_a_reader_that_stops_early() -> None:
    code = """
import sys, bixse.cli.main as command
from bixse.cli.result import CommandResult
from types import SimpleNamespace
result = CommandResult("line\\n" * 100_000)
command.import_module = lambda name: SimpleNamespace(add_arguments=lambda p: None, run=lambda args: result)
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


def test_a_terminal_that_is_not_utf8() -> None:
    code = """
import sys, bixse.cli.main as command
from bixse.cli.result import CommandResult
from types import SimpleNamespace
result = CommandResult("caf\\u00e9 \\u2192 x", warnings=["\\u2192"])
command.import_module = lambda name: SimpleNamespace(add_arguments=lambda p: None, run=lambda args: result)
sys.exit(command.main(["doctor"]) or command.main(["doctor", "--json"]))
"""
    done = python(code, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert done.returncode == 0, done.stderr
    text, envelope = done.stdout.splitlines()
    assert text == "café ? x"
    assert json.loads(envelope)["warnings"] == ["→"]


def test_every_verb_has_a_module(tmp_path: Path) -> None:
    parser = command.build_parser()
    for name in command.VERBS:
        with pytest.raises(SystemExit) as stop:
            parser.parse_args([name, "--help"])
        assert stop.value.code == 0
