import shutil

import pytest


@pytest.fixture
def model(tmp_path, tiny_model_path):
    """A copy of the tiny model that a test may spoil."""
    shutil.copytree(tiny_model_path, tmp_path / "model")
    return tmp_path / "model"
