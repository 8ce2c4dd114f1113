import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def frozen_imports():
    """The runner collects garbage after each run; what libraries leave in memory is not looked through each time."""
    import bixse.lab.sweep  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
