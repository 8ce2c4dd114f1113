import shutil

import pytest

from helpers.toy import save_toy


@pytest.fixture
def model(tmp_path, tiny_model_path):
    """A copy of the tiny model that a test may spoil."""
    shutil.copytree(tiny_model_path, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def collection(tmp_path):
    return save_toy(tmp_path / "toy")
