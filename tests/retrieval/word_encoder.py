"""A stand-in for a model, and small corpora: what indexes are tested with, in this process and in killed ones."""

from __future__ import annotations

import json
import time
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from bixse.encoders.head import RelevanceHead
from bixse.retrieval.index_manifest import ModelIdentity

if TYPE_CHECKING:
    from pathlib import Path

DIMENSIONS = 32


@cache
def word_vector(word: str) -> np.ndarray:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(DIMENSIONS)


def embed(text: str) -> np.ndarray:
    """The normalised sum of the vectors of its words."""
    total = np.sum([word_vector(word) for word in text.split()], axis=0)
    return (total / np.linalg.norm(total)).astype(np.float32)


class WordEncoder:
    """Embeds texts as bags of words; counts them, may be slow, and may fail after some."""

    def __init__(self, pause: float = 0.0, fails_after: int | None = None, **identity: object) -> None:
        self.head: RelevanceHead | None = RelevanceHead(10.0, -5.0)
        self.pause, self.fails_after = pause, fails_after
        self.encoded: list[str] = []
        values = {"name": "words", "weights": "w" * 64, "prompts": "p" * 64, "document_prompt": None, "task": None}
        self.identity = ModelIdentity(**{**values, "max_length": None, "dimensions": DIMENSIONS, **identity})

    def encode(self, texts, kind, progress=None):
        for _ in texts:
            time.sleep(self.pause)
        if kind == "document":
            if self.fails_after is not None and len(self.encoded) + len(texts) > self.fails_after:
                raise KeyboardInterrupt
            self.encoded += texts
        if progress is not None:
            progress(len(texts))
        return np.stack([embed(text) for text in texts])


def documents(first: int, last: int, version: str = "one") -> dict[str, tuple[str, str]]:
    """Document id -> (title, text); no two alike, and each near its neighbours."""
    return {f"d{n}": (f"title {n}", f"text of group{n // 10} member{n} version {version}") for n in range(first, last)}


def write_documents(path: Path, found: dict[str, tuple[str, str]]) -> Path:
    rows = ({"_id": name, "title": title, "text": text} for name, (title, text) in found.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def expected(found: dict[str, tuple[str, str]], query: str, top: int) -> list[tuple[str, float]]:
    """The best documents and their cosines, by a plain product over all of them in float64."""
    names = list(found)
    matrix = np.stack([embed(f"{title} {text}".strip()) for title, text in found.values()]).astype(np.float64)
    cosines = matrix @ embed(query).astype(np.float64)
    order = np.argsort(-cosines, kind="stable")[:top]
    return [(names[place], float(cosines[place])) for place in order]
