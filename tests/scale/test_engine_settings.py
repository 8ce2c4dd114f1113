"""Settings of engines: what they refuse, and the engine that they name."""

import sys

import pytest

from bixse.errors import ConfigError, InputError
from bixse.scale.engines.engine_settings import EngineSettings
from bixse.scale.engines.process_engines import RanksEngine


@pytest.mark.parametrize(("key", "value"), [("engine", "slurm"), ("shards", 0), ("num_cpus", 0), ("num_gpus", -1)])
def test_settings_that_cannot_be(key, value):
    with pytest.raises(ConfigError, match=f"{key}: got {value!r}"):
        EngineSettings.load(None, {key: value})


def test_a_launcher_without_ranks_is_refused(monkeypatch):
    """Each of its processes would do everything."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    for engine in ("local", "ray"):
        with pytest.raises(InputError, match="WORLD_SIZE=2"):
            EngineSettings(engine=engine).chosen_engine()
    found = EngineSettings(engine="ranks", processes=2).chosen_engine(here=True)
    assert isinstance(found, RanksEngine)
    assert (found.rank, found.shared, found.here, list(found.share("abcd"))) == (1, True, True, ["b", "d"])


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"bixse\[ray\]"):
        EngineSettings(engine="ray").chosen_engine()
