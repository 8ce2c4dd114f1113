"""A process that does to a ledger what a test tells it line by line, so that it can be halted, killed or confined."""

import ctypes
import errno
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")  # of processes alone, as a container has
FLOCK = {"x86_64": 73, "aarch64": 32}.get(platform.machine())  # number of the system call


def namespaces_allowed():
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


here = pytest.param((), id="here")
elsewhere = pytest.param(
    NAMESPACE, id="namespace", marks=pytest.mark.skipif(not namespaces_allowed(), reason="needs the right to unshare")
)
slow_elsewhere = pytest.param(NAMESPACE, id="namespace", marks=[*elsewhere.marks, pytest.mark.slow])
"""What to start a process with, as a parameter of tests."""


def refuse_locks():
    """Have the kernel answer this process's `flock` as a file system without locks does (a seccomp filter)."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, FLOCK), (0x06, 0, 0, 0x00050000 | errno.ENOLCK), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


class Worker:
    def __init__(self, ledger, prefix=(), options=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, str(ledger), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def do(self, *words):
        """Have a line done: `claim KEY`, `write KEY`, `fork`, `seal`, `close`; gives what it answers."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.read()  # ends when all that were forked have ended too, or died with their namespace
        self.process.stdout.close()


@contextmanager
def worker(ledger, *options, prefix=()):
    """A process that is killed at the end."""
    running = Worker(ledger, prefix, options)
    try:
        yield running
    finally:
        if running.process.returncode is None:
            running.kill()


def main():
    """`python ledger_worker.py LEDGER [no-locks] [limit=BYTES] [touch=SECONDS]`."""
    from bixse.errors import StorageError
    from bixse.judging import ledger as module
    from bixse.judging.judge import Answer
    from bixse.judging.ledgers import writers

    path = Path(sys.argv[1])
    module.LOOK_AFTER = 0.0
    for option in sys.argv[2:]:
        name, _, value = option.partition("=")
        if name == "no-locks":
            refuse_locks()
        elif name == "limit":  # of a file, as a full disk has one
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
        else:
            setattr(writers, name.upper(), float(value))
    ledger = module.Ledger(path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        name, *words = line.split()
        if name == "claim":
            ledger.find(words[0])
            answer = ledger.claim(words[0])
        elif name == "write":
            try:
                answer = ledger.write(words[0], Answer("graded", "verbal", grade=float(words[1])))
            except StorageError:
                answer = "full"
        elif name == "fork":
            if not (answer := os.fork()):  # the child closes what it has of the ledger, and outlives its parent
                if words:
                    ledger.write(words[0], Answer("graded", "verbal", grade=float(words[1])))
                ledger.close()
                os.close(1)
                time.sleep(20)
                os._exit(0)
        elif name == "seal":
            answer = len(writers.seal_left(path))
        else:
            answer = ledger.close()
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
