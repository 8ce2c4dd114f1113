"""The verb: what it refuses before it serves, and how it ends."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from bixse.ui.label_log import open_labels
from helpers.command import refused
from helpers.ui_browser import running


@pytest.mark.parametrize(
    "words", [("--host", "0.0.0.0"), ("--planned", "0"), ("--labels", "x.csv"), ("--judge", "no.yaml")]
)
def test_what_cannot_be_served_is_refused(run, capsys, words):
    refused(capsys, "ui", run, "--port", "0", *words)


def test_a_folder_a_port_and_labels_have_to_be_free(run, capsys, tmp_path):
    refused(capsys, "ui", tmp_path / "nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port" in refused(capsys, "ui", run, "--port", taken.getsockname()[1])
    with open_labels(run / "labels.jsonl"):
        said = refused(capsys, "ui", run, "--port", "0")
    assert "--out" not in said and "Ctrl-C" in said


def sent(connection, *parts):
    """What a server answers to raw bytes: the status line."""
    for part in parts:
        with contextlib.suppress(OSError):  # it may answer before all is sent, and close
            connection.sendall(part)
    return connection.recv(200).split(b"\r\n")[0]


def test_a_chunked_form_has_the_limit_too(run):
    with running(run) as server:
        request = urllib.request.Request(f"{server.address}&person=Ann")
        with urllib.request.urlopen(request, timeout=10) as answer:
            cookie = answer.headers["set-cookie"].split(";")[0]
        head = (
            f"POST /person HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {server.origin}\r\nCookie: {cookie}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            "Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n"
        ).encode()
        for pieces, status in ((1, b"303"), (40, b"413")):
            piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                assert status in sent(connection, head, *([piece] * pieces), b"0\r\n\r\n")


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
