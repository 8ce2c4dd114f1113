"""`bixse ui` in a process of its own, and tabs of a real Chromium that have a session."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE_PACKAGE = find_spec("axe_playwright_python")
AXE_FOLDER = Path(AXE_PACKAGE.origin).parent if AXE_PACKAGE else Path(__file__).parents[2] / "node_modules" / "axe-core"
AXE = AXE_FOLDER / "axe.min.js"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="pip install --no-deps axe-playwright-python brings axe-core")


class Chromium:
    """A Chromium that starts again when it has died, so that it fails one test and not all later ones."""

    def __init__(self, playwright):
        self.engine, self.browser = playwright.chromium, None

    def new_context(self, **options):
        if self.browser is None or not self.browser.is_connected():
            words = ["--no-sandbox"] if os.geteuid() == 0 else []
            self.browser = self.engine.launch(executable_path=CHROMIUM, args=words)
        return self.browser.new_context(**options)


@contextmanager
def started_chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        yield Chromium(playwright)


class Running:
    def __init__(self, run, *words, port=0):
        command = [sys.executable, "-m", "bixse", "ui", str(run), "--port", str(port), *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        assert "http://" in line, line + self.process.stderr.read()
        self.address = re.search(r"http://\S+", line)[0]
        self.origin = self.address.partition("/enter")[0]
        self.port = int(self.origin.rpartition(":")[2])

    def kill(self):
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(run, *words, port=0):
    server = Running(run, *words, port=port)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def tab(chromium, server, person, **options):
    """A page of a browser of its own; the test fails if something is refused or fails in its scripts."""
    context = chromium.new_context(**options)
    page = context.new_page()
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{server.address}&person={person}")
    page.wait_for_url(f"{server.origin}/overview")
    yield page
    context.close()
    errors = [text for text in errors if "ERR_CONNECTION" not in text and "status of 400" not in text]
    assert not errors, errors


def faults(page):
    """What axe-core finds on a page as it stands; the page's own policy against foreign scripts stays on."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("() => axe.run()")
    return [
        (issue["id"], issue["impact"], issue["nodes"][0]["html"][:300])
        for issue in result["violations"]
        if issue["impact"] in ("serious", "critical", "moderate")
    ]
