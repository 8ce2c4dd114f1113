"""Settings of engines: what they refuse, and the engine that they name."""

import pytest

from bixse.errors import ConfigError, InputError
from bixse.scale.engine import EngineSettings


@pytest.mark.parametrize(("key", "value"), [("engine", "slurm"), ("shards", 0), ("processes", 0)])
def test_settings_that_cannot_be(key, value):
    with pytest.raises(ConfigError, match=f"{key}: got {value!r}"):
        EngineSettings.load(None, {key: value})


def test_a_launcher_without_ranks_is_refused(monkeypatch):
    """Each of its processes would do everything."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match="WORLD_SIZE=2"):
        EngineSettings().chosen_engine()
    found = EngineSettings(engine="ranks").chosen_engine()
    assert (found.rank, found.shared, found.here, list(found.share("abcd"))) == (1, True, True, ["b", "d"])
