"""Run folders of `bixse grade`, and servers for them."""

import shutil
from contextlib import ExitStack

import pytest

from bixse.calibration.calibrate_files import calibrate_into
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.ui.pages.compare import TwoSystems
from bixse.ui.serve import Server
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from helpers.ui_server import PORT, Browser, graded_folder


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    return graded_folder(tmp_path_factory.mktemp("graded") / "run")


@pytest.fixture
def run(graded, tmp_path):
    return shutil.copytree(graded, tmp_path / "run")


@pytest.fixture
def open_server():
    """Servers of run folders, closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda run, **settings: Server(stack.enter_context(open_workspace(UiSettings(run=run, **settings))), PORT)


@pytest.fixture
def browser(run, open_server):
    return Browser(open_server(run), "ann")


@pytest.fixture
def compare(tmp_path, open_server):

    def make(*systems, run=tmp_path / "empty", person="ann", **settings):
        run.mkdir(exist_ok=True)
        server = open_server(run, systems=systems, **settings)
        server.workspace.once(TwoSystems).job.wait()
        return Browser(server, person)

    return make


@pytest.fixture(scope="session")
def calibrated(actions, student, tmp_path_factory):
    """A model with a head that the command calibrated, and the result of the command."""
    pairs, out = actions.parent / "pairs.jsonl", tmp_path_factory.mktemp("calibrated") / "out"
    settings = CalibrateSettings(model=str(student), pairs=pairs, at_precision=[0.5], export=[0.25])
    return str(out / "model"), calibrate_into(settings, out)
