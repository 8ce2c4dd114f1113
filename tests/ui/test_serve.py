"""The verb: what it refuses before it serves, and how it ends."""

import contextlib
import signal
import socket
import urllib.request

import pytest

from bixse.ui.label_log import open_labels
from helpers.command import refused
from helpers.ui_browser import running


@pytest.mark.parametrize(
    "words", [("--host", "0.0.0.0"), ("--planned", "0"), ("--labels", "x.csv"), ("--judge", "no.yaml")]
)
def test_wrong_settings_are_refused(run, capsys, words):
    refused(capsys, "ui", run, "--port", "0", *words)


def test_used_port_and_labels_of_another_server_are_refused(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert "--port" in refused(capsys, "ui", run, "--port", listener.getsockname()[1])
    with open_labels(run / "labels.jsonl"):
        message = refused(capsys, "ui", run, "--port", "0")
    assert "--out" not in message and "Ctrl-C" in message


def test_chunked_form_has_the_limit_too(run):
    with running(run) as server:
        with urllib.request.urlopen(f"{server.address}&person=Ann", timeout=10) as answer:
            cookie = answer.headers["set-cookie"].split(";")[0]
        head = (
            f"POST /person HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {server.origin}\r\nCookie: {cookie}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            "Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n"
        ).encode()
        for pieces, status in ((1, b"303"), (40, b"413")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                for part in (head, *([b"10000\r\n" + b"x" * 0x10000 + b"\r\n"] * pieces), b"0\r\n\r\n"):
                    with contextlib.suppress(OSError):  # the server may answer before all is sent, and close
                        connection.sendall(part)
                assert status in connection.recv(200).split(b"\r\n")[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_with_exit_code_0(run, number):
    with running(run) as server:
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert answer.status == 200
        server.process.send_signal(number)
        text, errors = server.process.communicate(timeout=20)
    assert server.process.returncode == 0, errors
    assert "labels.jsonl" in text and "Traceback" not in errors
