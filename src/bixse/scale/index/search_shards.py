"""Exact search in a corpus that is cut into shards: each is searched by itself, then the best of all are put together.

Only one shard is in memory at a time, whatever the number of documents.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save

from bixse.files.files import write_atomically
from bixse.scale.index.encode_shards import TEXTS, EncodeShards
from bixse.scale.index.index_files import TENSOR, embeddings_content, open_files, read_texts
from bixse.search.exact import TopK, merge_best

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.scale.index.encode_shards import ShardEncoder

QUERIES = "queries.safetensors"


@dataclass(frozen=True)
class SearchShards(EncodeShards):
    """Shard n: the best `depth` of the documents from `rows * n` on for every query; documents without text are not.

    The file of texts is that of `write_texts`, in the folder above `folder`, so that several encoders share it.
    """

    depth: int
    index: Path | None = None
    """Folder of an index of the same corpus, whose embeddings are read; None: the texts are encoded."""

    def setup(self) -> ShardEncoder | None:  # type: ignore[override]
        """Load the model, see `EncodeShards.setup`; nothing is encoded with an index."""
        return super().setup() if self.index is None else None

    def run(self, shard: int, kept: ShardEncoder | None) -> int:
        best = TopK(load_file(self.queries)[TENSOR], self.depth)
        texts = read_texts(self.texts, shard * self.rows, self.rows)
        rows = np.array([row for row, text in enumerate(texts) if text], dtype=np.int64)
        encoded = 0
        if kept is not None:
            before = kept.store.encoded
            best.add(self.encoded([texts[row] for row in rows], kept))
            encoded = kept.store.encoded - before
        elif self.index is not None:
            with closing(open_files(self.index)) as files:
                documents = files.shard(shard)
                best.add(documents if len(rows) == len(texts) else documents[rows])
        scores, places = best.result()
        found: dict[str, NDArray[Any]] = {"scores": scores, "rows": (shard * self.rows + rows)[places]}
        write_atomically(self.output(shard), save(found))
        return encoded

    def output(self, shard: int) -> Path:
        return self.folder / f"best-{shard:05d}.safetensors"

    @property
    def texts(self) -> Path:
        return self.folder.parent / TEXTS

    @property
    def queries(self) -> Path:
        """The (Q, D) embeddings of the queries."""
        return self.folder / QUERIES

    def save_queries(self, embeddings: NDArray[np.float32]) -> None:
        """Write what is searched for; before the first shard."""
        write_atomically(self.queries, embeddings_content(embeddings, "float32"))

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{super().fingerprint()} {self.depth}".encode()).hexdigest()

    def best(self, shards: int, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows of the corpus, each (n, k), for the queries from `start` to `stop`: as `exact_search`."""
        return merge_best((_read(self.output(shard), start, stop) for shard in range(shards)), self.depth)


def _read(path: Path, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with safe_open(str(path), framework="numpy") as file:
        return file.get_slice("scores")[start:stop], file.get_slice("rows")[start:stop]
