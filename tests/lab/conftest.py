import gc

import pytest


def pytest_ignore_collect(collection_path, config):
    """Leave the tests of mteb to the slow ones: to import it takes each process 3 s."""
    if collection_path.name == "test_mteb_suite.py" and "not slow" in config.option.markexpr:
        return True
    return None


@pytest.fixture(scope="package", autouse=True)
def frozen_imports():
    """The runner collects garbage after each run; what libraries leave in memory is not looked through each time."""
    import bixse.lab.sweep  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
