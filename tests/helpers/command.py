"""The command `bixse`, inside the test's own process or in another one."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress

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
    command, pipe = [sys.executable, "-m", "bixse", *map(str, words), "--json"], subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=pipe, stderr=pipe, text=True)


def ended(process):
    """Exit code, and errors or metrics; None of a rank that prints nothing."""
    out, errors = process.communicate(timeout=500)
    envelope = json.loads(out) if out else {"errors": errors}
    return process.returncode, envelope["errors"] or envelope.get("metrics")


def kill_amid_answers(process, ledger):
    """Kill a process that has a dozen answers in its own segment of a ledger folder, which is not sealed."""
    until = time.monotonic() + 100
    while time.monotonic() < until and process.poll() is None:
        if any(answers > 11 for answers in open_answers(ledger, process.pid)):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def open_answers(ledger, pid):
    """Yield the number of answers in each open segment of a process; a segment that is sealed meanwhile is left out."""
    for writer in ledger.glob(".*.writer") if ledger.exists() else ():
        with suppress(FileNotFoundError):
            if writer.read_text().endswith(f"/{pid}\n"):
                lines = (ledger / f"{writer.stem[1:]}.jsonl").read_text().splitlines()
                yield sum(line.count(", ") > 3 for line in lines[1:])


def odd_modes(folder):
    """Path -> mode of files and folders whose mode is not the one that the umask leaves a new one."""
    mask = os.umask(0)
    os.umask(mask)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    odd = {path: mode for path, mode in modes.items() if mode != (0o777 if path.is_dir() else 0o666) & ~mask}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in odd.items()}
