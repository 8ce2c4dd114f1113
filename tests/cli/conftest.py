import pytest

from helpers.toy import save_toy


@pytest.fixture
def collection(tmp_path):
    return save_toy(tmp_path / "toy")
