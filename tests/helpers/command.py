"""The command `bixse`, inside the test's own process or in another one."""

import json
import os
import subprocess
import sys

from bixse.cli.main import main, parse


def call(capsys, *words):
    """Exit code and envelope; standard output holds the envelope alone."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["status"] == {0: "ok", 3: "partial"}.get(code, "failed")
    return code, envelope


def refused(capsys, *words):
    """The one message of a command that wrong usage or input ends."""
    code, envelope = call(capsys, *words)
    assert code == 2, envelope
    (message,) = envelope["errors"]
    assert "got " in message and "expected " in message and "fix: " in message, message
    return message


def result_of(*words):
    """What a verb hands back, or the error it raises."""
    _, verb, args = parse([str(word) for word in words])
    return verb.call(args, tuple(map(str, words)))


def start(*words, **environment):
    """A process of the command; `ended` waits for it."""
    command = [sys.executable, "-m", "bixse", *map(str, words), "--json"]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    """Exit code, and errors or metrics; None of a rank that prints nothing."""
    out, said = process.communicate(timeout=500)
    found = json.loads(out) if out else {"errors": said}
    return process.returncode, found["errors"] or found.get("metrics")
