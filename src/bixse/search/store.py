"""The store of document embeddings on disk: each text is encoded once per model, even if several corpora hold it."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bixse.encoders.encode import by_length, embeddings_key, encode_and_count
from bixse.encoders.instructions import prompt_for
from bixse.encoders.lengths import sampled, too_long_of, warn_of_counts
from bixse.files.files import EMBEDDINGS_FOLDER, cache_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


SAVED_TOGETHER: Mapping[str, int] = defaultdict(lambda: 2048, cuda=16_384)
"""Texts encoded between two saves, per device type: a killed process encodes at most these again, for some seconds."""
LOOKED_UP_TOGETHER = 4096
"""Texts per look-up, below SQLite's limit of 32,766 parameters."""
SECONDS_WAITED = 60.0  # for the lock of another process


class EmbeddingStore:
    """The document embeddings of one model in one SQLite file, which several processes may use at once.

    Unreadable embeddings are encoded again; nothing is kept if the folder cannot be written. The model must not change
    during use. Whole embeddings are stored, and cut to the model's `truncate_dim` when they are read. `cache` is the
    choice of `bixse.files.files.cache_folder`.
    """

    def __init__(self, model: SentenceTransformer, cache: str | Path | None = None) -> None:
        self.model = model
        root = cache_folder(cache)
        with model.truncate_embeddings(None):
            self.path = None if root is None else root / EMBEDDINGS_FOLDER / f"{embeddings_key(model)}.sqlite"
        self.failure: str | None = None
        """Reason why embeddings could not be kept, or None."""
        self.encoded = 0
        """Number of texts that were encoded, not read."""
        self.too_long: Counter[str] = Counter()
        """Queries and documents, by this name, that are longer than the model reads."""
        self.number: Counter[str] = Counter()
        """Queries and documents, by this name, that were counted."""

    def count(self, name: str, is_cut: NDArray[np.float32]) -> None:
        """Add texts to `too_long`, by 1 for a text that is longer than the model reads."""
        self.too_long[name] += is_cut.sum()
        self.number[name] += len(is_cut)

    def warnings(self) -> list[str]:
        """Warn of texts that are longer than the model reads."""
        return warn_of_counts(self.model, {name: (self.too_long[name], self.number[name]) for name in self.number})

    def encode(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> NDArray[np.float32]:
        """Return (N, D) L2-normalised embeddings, encoding and storing missing ones; `progress` gets increments."""
        cut = self.model.truncate_dim
        with self.model.truncate_embeddings(None):
            complete = self._encode(texts, progress)
        if cut is None or cut >= complete.shape[1]:
            return complete
        part: NDArray[np.float32] = complete[:, :cut]
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        part /= np.where(lengths > 0, lengths, 1)  # a text without tokens stays 0
        return part

    def _encode(self, texts: Sequence[str], progress: Callable[[int], None] | None) -> NDArray[np.float32]:
        digests = [blake2b(text.encode("utf-8"), digest_size=16).digest() for text in texts]
        row_of = {digest: row for row, digest in reversed(list(enumerate(digests)))}
        embeddings = np.empty((len(texts), self.model.get_embedding_dimension() or 0), dtype=np.float32)
        is_cut = np.zeros(len(texts), dtype=np.float32)
        stored = self._read(row_of, embeddings, is_cut)
        missing = np.array([row for digest, row in row_of.items() if digest not in stored], dtype=np.int64)
        if progress is not None and len(missing) < len(texts):
            progress(len(texts) - len(missing))
        missing = np.sort(missing)  # the sort by length is stable: equal lengths stay in the order of the corpus
        missing = missing[by_length([texts[row] for row in missing])]
        self.encoded += len(missing)
        together = SAVED_TOGETHER[self.model.device.type]
        for start in range(0, len(missing), together):
            rows = missing[start : start + together]
            some = [texts[row] for row in rows]
            embeddings[rows], is_cut[rows] = encode_and_count(self.model, some, "document", progress=progress)
            self._write({digests[row]: embeddings[row].tobytes() + bytes([int(is_cut[row])]) for row in rows})
        unknown = np.flatnonzero(np.isnan(is_cut))  # stored by a version that did not count them
        sample = sampled([texts[row] for row in unknown.tolist()]).texts
        longer = too_long_of(self.model, sample, [prompt_for(self.model, "document") or ""])
        is_cut[unknown] = longer if len(longer) == len(unknown) else np.mean(longer)
        rows = np.array([row_of[digest] for digest in digests], dtype=np.int64)
        self.count("documents", is_cut[rows])
        return embeddings if len(row_of) == len(texts) else embeddings[rows]

    def _read(
        self, row_of: Mapping[bytes, int], embeddings: NDArray[np.float32], is_cut: NDArray[np.float32]
    ) -> set[bytes]:
        """Put stored embeddings into their rows and return their digests; a damaged file is removed."""
        digests: set[bytes] = set()
        if self.path is None or not self.path.is_file():
            return digests
        wanted = list(row_of)
        try:
            with closing(sqlite3.connect(self.path, timeout=SECONDS_WAITED)) as file:
                for start in range(0, len(wanted), LOOKED_UP_TOGETHER):
                    some = wanted[start : start + LOOKED_UP_TOGETHER]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT text, embedding FROM embeddings WHERE text IN ({marks})"
                    for digest, content in file.execute(query, some):
                        length = embeddings.itemsize * embeddings.shape[1]
                        if length <= len(content) <= length + 1:  # the last byte was not written at first
                            row = row_of[digest]
                            embeddings[row] = np.frombuffer(content[:length], np.float32)
                            is_cut[row] = content[length] if len(content) > length else np.nan
                            digests.add(digest)
        except sqlite3.OperationalError:  # locked, or not readable
            pass
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
        return digests

    def _write(self, contents: Mapping[bytes, bytes]) -> None:
        """Store all of the embeddings or none; after a failure nothing more is stored."""
        if self.path is None or self.failure is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # the context of a connection commits or rolls back, and does not close
            with closing(sqlite3.connect(self.path, timeout=SECONDS_WAITED)) as file, file:
                file.execute("CREATE TABLE IF NOT EXISTS embeddings (text BLOB PRIMARY KEY, embedding BLOB NOT NULL)")
                file.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?)", contents.items())
        except (sqlite3.Error, OSError) as error:
            self.failure = f"{self.path}: {error}"
