import pytest


@pytest.fixture(params=["cpu", "gpu"])
def form(request, monkeypatch):
    """The tiles of the CPU or, run on the CPU, those of a GPU."""
    if request.param == "gpu":
        monkeypatch.setattr("bixse.losses.tiles.bce._on_host", lambda embeddings, rounded: False)
