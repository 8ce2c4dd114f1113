"""Judgements that other tools left: one reader per format, all giving the same row (`judgement_files.py`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bixse.data.sources.flagembedding import FlagEmbeddingFile as FlagEmbeddingFile
    from bixse.data.sources.judgement_files import Judgement as Judgement
    from bixse.data.sources.judgement_files import JudgementSource as JudgementSource
    from bixse.data.sources.lightblue import LightBlueFiles as LightBlueFiles
    from bixse.data.sources.qrels import QrelsFile as QrelsFile
    from bixse.data.sources.umbrela import UmbrelaFile as UmbrelaFile

_HOMES = {
    "FlagEmbeddingFile": "flagembedding",
    "Judgement": "judgement_files",
    "JudgementSource": "judgement_files",
    "LightBlueFiles": "lightblue",
    "QrelsFile": "qrels",
    "UmbrelaFile": "umbrela",
}
"""Public name -> module; imported on first use."""
FORMATS = {
    "flagembedding": "FlagEmbeddingFile",
    "lightblue": "LightBlueFiles",
    "qrels": "QrelsFile",
    "umbrela": "UmbrelaFile",
}
"""Name of a format -> its reader."""

__all__ = [
    "FORMATS",
    "FlagEmbeddingFile",
    "Judgement",
    "JudgementSource",
    "LightBlueFiles",
    "QrelsFile",
    "UmbrelaFile",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bixse.data.sources' has no attribute {name!r}")
    return getattr(import_module(f"bixse.data.sources.{_HOMES[name]}"), name)
