"""Run folders of `bixse grade`, and servers of theirs."""

import shutil
from contextlib import ExitStack

import pytest

from bixse.ui.serve import Server
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from helpers.ui_browser import started_chromium
from helpers.ui_server import PORT, graded_folder


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """Made once; tests copy it."""
    return graded_folder(tmp_path_factory.mktemp("graded") / "run")


@pytest.fixture
def run(graded, tmp_path):
    return shutil.copytree(graded, tmp_path / "run")


@pytest.fixture
def open_server():
    """Servers of run folders, closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda run, **settings: Server(stack.enter_context(open_workspace(UiSettings(run=run, **settings))), PORT)


@pytest.fixture(scope="session")
def chromium():
    with started_chromium() as browser:
        yield browser
