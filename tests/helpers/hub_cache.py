"""A model folder in a cache of the hub."""

import shutil


def put_into_hub_cache(folder, cache, name):
    """Copy a model folder into a cache as OWNER--NAME and return the folder of the snapshot."""
    commit = "0" * 40
    model = cache / f"models--{name}"
    shutil.copytree(folder, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    return model / "snapshots" / commit
