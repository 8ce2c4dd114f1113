"""Add documents to a search index, delete some, rewrite it: each change is there whole or not at all."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bixse.retrieval.approximate import check_kind
from bixse.retrieval.index_build import Change, content_hash, encode_shards, joined
from bixse.retrieval.index_contents import Contents
from bixse.retrieval.index_documents import DocumentsFile
from bixse.retrieval.index_encoder import index_encoder, placed
from bixse.retrieval.index_files import exclusive, forget_pending, read_manifest, write_manifest
from bixse.retrieval.index_kind import KindSettings, with_kind
from bixse.retrieval.index_shards import Shard, write_deleted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.retrieval.index_build import ProgressBars
    from bixse.retrieval.index_encoder import IndexEncoder
    from bixse.retrieval.index_manifest import Manifest, StoredShard


def add_documents(
    folder: str | Path,
    path: str | Path,
    model: str | Path | IndexEncoder | None = None,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
) -> Change:
    """Add the documents of a file; one whose id is in the index already takes its place.

    Args:
        folder: the index.
        path: JSONL of {_id, title, text}.
        model: the model of the index, where it has moved; None: where it was.
        progress: makes a progress callback from a title and a total.
        devices: where texts are encoded, see `make_index`.

    Raises:
        InputError: no index, unusable documents, or another model (ModelError).
        StorageError: the disk is full, or another process writes the index; it stays as it was.
    """
    started, folder = time.perf_counter(), Path(folder)
    read_manifest(folder)
    file = DocumentsFile(Path(path))
    with exclusive(folder), closing(Contents(folder)) as old:
        manifest = old.manifest
        encoder = index_encoder(folder, manifest.model, model)
        change = content_hash("add", manifest.generation, file.hash, manifest.shard_size)
        with placed(encoder, devices):
            found = encode_shards(folder, change, file, encoder, manifest.shard_size, manifest.precision, progress, old)
        new = [shard for shard in found if shard is not None]
        ids = _ids(folder, manifest, new)
        replaced = sorted(old.find(ids).values()) if ids else []
        if new:
            live = old.live.copy()
            live[replaced] = False
            manifest = _append(folder, manifest, live, new)
        else:
            forget_pending(folder)
    return Change(
        manifest,
        documents=len(old) - len(replaced) + len(ids),
        added=len(ids) - len(replaced),
        replaced=len(replaced),
        unchanged=len(file) - len(ids),
        seconds=time.perf_counter() - started,
        warnings=(*file.warnings(), *_advice(manifest, len(old) - len(replaced) + len(ids))),
    )


def delete_documents(folder: str | Path, ids: Sequence[str]) -> Change:
    """Delete documents by id; those that are not there are named in `unknown`.

    Raises:
        InputError: no index, or a damaged one.
        StorageError: the disk is full, or another process writes the index; it stays as it was.
    """
    started, folder = time.perf_counter(), Path(folder)
    read_manifest(folder)
    with exclusive(folder), closing(Contents(folder)) as contents:
        manifest, asked = contents.manifest, dict.fromkeys(ids)
        found = contents.find(asked)
        if found:
            contents.live[list(found.values())] = False
            deleted = write_deleted(folder, np.flatnonzero(~contents.live))
            manifest = write_manifest(folder, _next(manifest, deleted=deleted))
    return Change(
        manifest,
        len(contents),
        deleted=len(found),
        unknown=tuple(name for name in asked if name not in found),
        seconds=time.perf_counter() - started,
        warnings=tuple(_advice(manifest, len(contents))),
    )


def rewrite_index(
    folder: str | Path,
    compact: bool = False,
    kind: KindSettings | None = None,
    model: str | Path | IndexEncoder | None = None,
    progress: ProgressBars | None = None,
) -> Change:
    """Drop deleted documents from the disk, or search in another way; nothing is encoded again but sample queries.

    Args:
        folder: the index.
        compact: write the documents that count into new shards, and take them all into the graph.
        kind: how it is searched from now on; None as before.
        model: the model of the index, where it has moved; an exact index needs none.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: no index, a damaged one, or unusable settings.
        StorageError: the disk is full, or another process writes the index; it stays as it was.
    """
    started, folder = time.perf_counter(), Path(folder)
    read_manifest(folder)
    with exclusive(folder), closing(Contents(folder)) as contents:
        manifest = contents.manifest
        kind = kind or KindSettings.of(manifest)
        check_kind(kind.kind)
        encoder = index_encoder(folder, manifest.model, model) if kind.kind != "exact" and len(contents) else None
        if compact:
            manifest = joined(folder, _next(manifest, deleted=None, graph=None), contents.live, progress)
        manifest, warnings = with_kind(folder, manifest, kind, encoder, progress)
        manifest = write_manifest(folder, manifest.model_copy(update={"generation": contents.manifest.generation + 1}))
    seconds = time.perf_counter() - started
    return Change(manifest, len(contents), seconds=seconds, warnings=(*warnings, *_advice(manifest, len(contents))))


def _ids(folder: Path, manifest: Manifest, shards: Sequence[StoredShard]) -> set[str]:
    """The ids of the documents of some shards."""
    found: set[str] = set()
    for stored in shards:
        with closing(Shard(folder, stored, manifest.model.dimensions)) as shard:
            found.update(shard.ids())
    return found


def _append(folder: Path, manifest: Manifest, live: npt.NDArray[np.bool_], new: Sequence[StoredShard]) -> Manifest:
    """Write a state with new shards at the end, joined with the last ones there are while those are not larger.

    Each document is so written again a few times at most, and many small additions leave few shards. Shards that are in
    a graph stay.
    """
    in_graph = manifest.graph.rows if manifest.graph is not None else 0
    number = sum(shard.rows for shard in new)
    start, first = manifest.rows, len(manifest.shards)
    while first and start - manifest.shards[first - 1].rows >= in_graph:
        above = start - manifest.shards[first - 1].rows
        own = int(live[above:start].sum())
        if own > max(number, manifest.shard_size - number):
            break
        number, start, first = number + own, above, first - 1
    live = np.concatenate([live, np.ones(sum(shard.rows for shard in new), dtype=bool)])
    manifest = joined(folder, _next(manifest, shards=(*manifest.shards, *new), deleted=None), live[start:], first=first)
    return write_manifest(
        folder, manifest.model_copy(update={"deleted": write_deleted(folder, np.flatnonzero(~live[:start]))})
    )


def _next(manifest: Manifest, **changed: object) -> Manifest:
    """The state after a change."""
    return manifest.model_copy(update={"generation": manifest.generation + 1, **changed})


def _advice(manifest: Manifest, documents: int) -> list[str]:
    """What would make an index faster again."""
    behind = manifest.rows - manifest.graph.rows if manifest.graph is not None else 0
    gone = manifest.rows - documents
    return [
        f"{count} of {manifest.rows} {what}; `bixse index --to INDEX --compact` {mend}"
        for count, what, mend in (
            (gone, "stored documents are deleted or replaced ones", "drops them from the disk"),
            (behind, f"documents were added after the {manifest.kind} graph was built and are searched one by one",
             "takes them in"),
        )
        if 5 * count > manifest.rows
    ]  # fmt: skip
