"""The presets that come with bixse, by name; imports nothing heavy, since `--help` lists them."""

from __future__ import annotations

from importlib import resources


def preset_names() -> list[str]:
    """The presets that come with bixse.

    Example:
        >>> "smoke" in preset_names() and "laptop" in preset_names()
        True
    """
    folder = resources.files("bixse.studies").joinpath("presets")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
