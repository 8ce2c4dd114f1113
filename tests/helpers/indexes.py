"""Indexes for tests."""

from pathlib import Path

from bixse.scale.index.index_settings import IndexSettings
from bixse.scale.index.make_index import make_index


def index_of(model, collection, out, **settings):
    """Make an index with a model's folder or a loaded model."""
    loaded = None if isinstance(model, (str, Path)) else model
    name = str(model) if loaded is None else "in memory"
    return make_index(IndexSettings(model=name, collection=collection, **settings), out, model=loaded)
