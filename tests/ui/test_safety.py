import contextlib
import io
import re
import signal
import socket
import sys
import urllib.request

import pytest

from bixse.cli.verbs import ui
from bixse.errors import ConfigError
from bixse.ui.label_log import open_labels
from bixse.ui.ui_settings import UiSettings
from helpers.command import refused
from helpers.html_page import Page
from helpers.ui_browser import running
from helpers.ui_server import ORIGIN


@pytest.fixture
def reopened(run, open_server, browser):
    """Open a second server of the folder, as after the end of the first."""

    def make():
        browser.server.workspace.labels.path.with_name(".labels.jsonl.lock").unlink()
        return open_server(run)

    return make


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (("evil.example:8765", "127.0.0.1", "127.0.0.1:80", "", "8.8.8.8:8765", "127.0.0.1.evil:8765"), 421),
        (("127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"), 200),
    ],
    ids=["foreign", "own"],
)
def test_only_hosts_of_this_machine_are_served(browser, hosts, status):
    answers = [browser.get("/static/ui.css", headers={"host": host}) for host in hosts]
    assert {answer.status_code for answer in answers} == {status}


def test_default_port_may_be_left_out(browser, monkeypatch):
    monkeypatch.setattr(browser.server.guard, "port", 80)
    hosts = ("127.0.0.1", "[::1]", "localhost:80", "127.0.0.1:8765", "evil.example")
    answers = [browser.get("/static/ui.css", headers={"host": host}).status_code for host in hosts]
    assert answers == [200, 200, 200, 421, 421]


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1:9"},
     {"origin": "https://127.0.0.1:8765"}, {"origin": ORIGIN, "sec-fetch-site": "cross-site"}],
)  # fmt: skip
def test_form_of_another_site_changes_nothing(browser, headers):
    assert browser.submit("/person", {"person": "eve"}, headers).status_code == 403
    assert browser.post("/person", data={"person": "eve"}).status_code == 403  # no Origin at all
    assert "ann" in browser.get("/overview").text and "eve" not in browser.get("/overview").text


def test_only_post_changes_anything(browser):
    assert browser.get("/person", params={"person": "eve"}).status_code == 405
    assert browser.get("/invite").status_code == 405
    for method in ("put", "delete", "patch", "options"):
        assert getattr(browser, method)("/overview").status_code == 405


def test_who_is_lost_or_signed_out_sees_a_page_that_says_so(browser):
    for path in ("/nothing", "/reports/<b>nothing.html", "/static/none.css"):
        answer = browser.get(path)
        Page(answer.text).check_served()
        assert answer.status_code == 404 and "Go to Home" in answer.text and "<b>" not in answer.text
    browser.cookies.clear()
    for path in ("/", "/overview", "/nothing", "/label"):
        answer = browser.get(path)
        Page(answer.text).check_served()
        assert answer.status_code == 403 and "query" not in answer.text
        assert "terminal" in answer.text and 'href="/label"' not in answer.text
    assert browser.submit("/person", {"person": "eve"}).status_code == 403
    assert browser.get("/enter", params={"token": "guess"}).status_code == 403


def test_token_admits_one_browser_once(browser):
    (token,) = re.findall(r"token=([\w-]+)", browser.submit("/invite").text)
    assert token not in browser.get("/overview").text  # shown once
    browser.cookies.clear()
    cookie = browser.get("/enter", params={"token": token}, follow_redirects=False).headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "bixse-8765=" in cookie
    browser.cookies.clear()
    assert browser.get("/enter", params={"token": token}).status_code == 403


def test_session_outlives_a_restart_and_forged_ones_are_refused(browser, reopened):
    cookie = browser.cookies["bixse-8765"]
    sessions = reopened().sessions
    assert sessions.find(cookie).person == "ann"
    name, person, mac = cookie.split(".")
    for forged in ("", name, f"{name}.{person}.", f"{name}.bob.{mac}", f"other.{person}.{mac}", f"{name}..{mac}"):
        assert sessions.find(forged) is None


@pytest.mark.parametrize("damage", ["read by others", "cut short"])
def test_unsafe_secret_is_replaced(run, browser, reopened, damage):
    cookie, secret = browser.cookies["bixse-8765"], run / ".ui-secret"
    before = secret.read_bytes()
    assert secret.stat().st_mode & 0o777 == 0o600
    if damage == "cut short":
        secret.write_bytes(b"")
    else:
        secret.chmod(0o644)
    assert reopened().sessions.find(cookie) is None
    assert len(secret.read_bytes()) == 32 and secret.read_bytes() != before
    assert secret.stat().st_mode & 0o777 == 0o600


def test_every_answer_has_the_security_headers(browser):
    for answer in (browser.get("/overview"), browser.get("/nothing"), browser.get("/overview", headers={"host": "x"})):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; object-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_other_machines_need_yes_expose(run, open_server):
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        with pytest.raises(ConfigError, match="yes-expose"):
            UiSettings.load(None, {"run": str(run), "host": host})
        assert not UiSettings(run=run, host=host, yes_expose=True).is_local
    assert all(UiSettings(run=run, host=host).is_local for host in ("127.0.0.1", "::1", "localhost"))
    guard = open_server(run, host="0.0.0.0", yes_expose=True).guard
    assert guard.knows("192.168.1.5:8765") and guard.knows("[fe80::1]:8765")
    assert not guard.knows("evil.example:8765") and not guard.knows("192.168.1.5:80")


def test_wrong_settings_are_refused(run, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda *words, **options: None)  # a server would not end
    wrong = "--host ::, --planned 0, --labels x.csv, --judge no.yaml, --systems a, --systems a b c, --held-out p.jsonl"
    for words in wrong.split(", "):
        refused(capsys, "ui", run, "--port", "0", *words.split())


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


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("why", ["no terminal", "--no-browser", "ssh", "no display", "other machines", None])
def test_browser_opens_for_a_person_at_a_screen_alone(run, monkeypatch, why):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", lambda *words, **options: None)
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, Terminal() if why != "no terminal" else io.StringIO())
    monkeypatch.setattr(sys, "platform", "linux")
    for name, value in (("DISPLAY", why != "no display"), ("SSH_CONNECTION", why == "ssh"), ("WAYLAND_DISPLAY", False)):
        monkeypatch.setenv(name, ":0") if value else monkeypatch.delenv(name, raising=False)
    more = {"--no-browser": {"no_browser": True}, "other machines": {"host": "0.0.0.0", "yes_expose": True}}.get(
        why, {}
    )
    ui.run(UiSettings(run=run, port=0, **more), None)
    printed = "" if why == "no terminal" else re.search(r"http://\S+", sys.stderr.getvalue())[0]
    assert bool(opened) == (why is None) and printed not in opened
    assert not opened or opened[0].partition("token=")[0] == printed.partition("token=")[0]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_ends_it_with_exit_code_0(run, number):
    with running(run) as server:
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert answer.status == 200
        server.process.send_signal(number)
        text, errors = server.process.communicate(timeout=20)
    assert server.process.returncode == 0, errors
    assert "labels.jsonl" in text and "Traceback" not in errors
