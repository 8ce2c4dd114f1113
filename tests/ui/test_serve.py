"""The verb: what it refuses before it serves, and how it ends."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from bixse.ui.label_log import open_labels
from helpers.command import refused


@pytest.mark.parametrize(
    "words", [("--host", "0.0.0.0"), ("--planned", "0"), ("--labels", "x.csv"), ("--runs", "no.trec")]
)
def test_what_cannot_be_served_is_refused(run, capsys, words):
    refused(capsys, "ui", run, "--port", "0", *words)


def test_a_folder_a_port_and_labels_have_to_be_free(run, capsys, tmp_path):
    refused(capsys, "ui", tmp_path / "nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port" in refused(capsys, "ui", run, "--port", taken.getsockname()[1])
    with open_labels(run / "labels.jsonl"):
        refused(capsys, "ui", run, "--port", "0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_well(run, number):
    command = [sys.executable, "-m", "bixse", "ui", str(run), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = re.search(r"http://\S+", process.stderr.readline())[0]
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.status == 200
    process.send_signal(number)
    text, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "labels.jsonl" in text and "Traceback" not in errors
