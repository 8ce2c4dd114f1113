"""One state of a search index, opened: its shards as one list of documents, without those that were deleted."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import torch

from bixse.retrieval.exact import exact_search
from bixse.retrieval.index_files import OpenedFile, damaged, read_manifest
from bixse.retrieval.index_shards import ROWS_TENSOR, Shard, mapped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from bixse.retrieval.index_manifest import Manifest, StoredFile
    from bixse.retrieval.index_shards import StoredDocument


class Contents:
    """All that one state of an index names, opened; N rows in the order they were added.

    Args:
        folder: the index.
        manifest: a state that is not written yet; None opens the current one.

    Raises:
        InputError: no index, or a damaged one.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        self.manifest = manifest or read_manifest(folder)
        while not self._open():
            newer = manifest or read_manifest(folder)
            if newer.generation == self.manifest.generation:
                missing = [file.name for file in newer.files() if not (folder / file.name).exists()]
                raise damaged(folder / (missing or [""])[0], "no such file", "every file that was written")
            self.manifest = newer  # the former one was replaced, and its files removed, while they were being opened
        self.starts = np.cumsum([0, *(shard.rows for shard in self.shards)])

    def _open(self) -> bool:
        """Open the files of the manifest; False where one is missing."""
        with ExitStack() as opened:
            try:
                self.shards: list[Shard] = []
                for stored in self.manifest.shards:
                    self.shards.append(Shard(self.folder, stored, self.manifest.model.dimensions))
                    opened.callback(self.shards[-1].close)
                graph = self.manifest.graph
                self.graph_file = OpenedFile(self.folder, graph.file) if graph is not None else None
                if self.graph_file is not None:
                    opened.callback(self.graph_file.close)
                self.live = np.ones(self.manifest.rows, dtype=bool)
                """(N,) False for rows that were deleted or replaced."""
                if self.manifest.deleted is not None:
                    self.live[self._deleted(self.manifest.deleted)] = False
            except FileNotFoundError:
                return False
            opened.pop_all()
        return True

    def __len__(self) -> int:
        return int(self.live.sum())

    def exact(
        self, queries: npt.NDArray[np.float32], top: int, first: int = 0, last: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The documents of highest inner product among the rows from `first` up to `last`, all of which are scored.

        Args:
            queries: shape (Q, D).
            top: documents per query, at least 1.
            first: the first row of a shard.
            last: the first row of a shard that is left out, as are those behind it; None for no such shard.

        Returns:
            Scores (Q, k), highest first, and rows (Q, k); of equal scores the document that was added first.
            k is `top`, or the number of documents there are.
        """
        scores = np.empty((len(queries), 0), dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        for shard, start in zip(self.shards, self.starts, strict=False):
            live = self.live[start : start + shard.rows]
            if start < first or (last is not None and start >= last) or not live.any():
                continue
            found, indices = exact_search(queries, shard.embeddings, top + int((~live).sum()))
            kept = np.argsort(~live[indices], axis=1, kind="stable")[:, : min(top, int(live.sum()))]
            found, indices = np.take_along_axis(found, kept, axis=1), np.take_along_axis(indices, kept, axis=1)
            scores, rows = best(np.hstack([scores, found]), np.hstack([rows, indices + start]), top)
        return scores, rows

    def documents(self, rows: Sequence[int]) -> list[StoredDocument]:
        """The documents of some rows, in that order."""
        order = np.argsort(rows, kind="stable")
        ordered = np.asarray(rows, dtype=np.int64)[order]
        found: list[StoredDocument] = []
        for shard, start in zip(self.shards, self.starts, strict=False):
            low, high = np.searchsorted(ordered, (start, start + shard.rows))
            if high > low:
                found += shard.documents((ordered[low:high] - start).tolist())
        return [found[place] for place in np.argsort(order, kind="stable")]

    def find(self, ids: Collection[str]) -> dict[str, int]:
        """Id -> row of those of the ids that the index holds and that are not deleted."""
        return {
            identifier: int(start + row)
            for shard, start in zip(self.shards, self.starts, strict=False)
            for identifier, row in shard.find(ids)
            if self.live[start + row]
        }

    def blocks(self, size: int) -> Iterator[npt.NDArray[np.int64]]:
        """The rows that are not deleted, at most `size` at a time."""
        rows = np.flatnonzero(self.live)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(n, D) embeddings of some rows in ascending order."""
        parts = []
        for shard, start in zip(self.shards, self.starts, strict=False):
            low, high = np.searchsorted(rows, (start, start + shard.rows))
            if high > low:
                parts.append(shard.embeddings[torch.from_numpy(rows[low:high] - start)].float().numpy())
        return np.concatenate(parts)

    def check(self) -> None:
        """Hold every file against its checksum; raises InputError."""
        for shard in self.shards:
            shard.check()
        if self.graph_file is not None:
            self.graph_file.check()

    def close(self) -> None:
        """Close the files."""
        for file in (*self.shards, self.graph_file):
            if file is not None:
                file.close()

    def _deleted(self, file: StoredFile) -> npt.NDArray[np.int64]:
        """The deleted rows of a file; raises FileNotFoundError."""
        opened = OpenedFile(self.folder, file)
        opened.check()
        opened.close()
        rows: npt.NDArray[np.int64] = mapped(opened.path, ROWS_TENSOR).numpy()
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self.live):
            raise damaged(opened.path, f"rows up to {rows.max()}", f"rows below {len(self.live)}")
        return rows


def best(
    scores: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], top: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The `top` highest scores of each line, equal ones by row, and their rows.

    Example:
        >>> scores, rows = best(np.array([[0.5, 0.7, 0.7]]), np.array([[0, 2, 1]]), top=2)
        >>> scores.tolist(), rows.tolist()
        ([[0.7, 0.7]], [[1, 2]])
    """
    order = np.lexsort((rows, -scores), axis=1)[:, :top]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
