"""Make a search index: encode a corpus once, in shards that a killed process leaves to the next one."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, OutputExistsError
from bixse.retrieval.approximate import check_kind
from bixse.retrieval.index_contents import Contents
from bixse.retrieval.index_documents import DocumentsFile, encoded_text
from bixse.retrieval.index_encoder import load_index_encoder, placed
from bixse.retrieval.index_files import (
    MANIFEST_FILE,
    OpenedFile,
    exclusive,
    read_manifest,
    read_pending,
    remove_leftovers,
    write_manifest,
    write_pending,
)
from bixse.retrieval.index_kind import KindSettings, with_kind
from bixse.retrieval.index_manifest import Manifest, Pending
from bixse.retrieval.index_shards import write_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from bixse.retrieval.index_encoder import IndexEncoder
    from bixse.retrieval.index_manifest import StoredShard, StoredType
    from bixse.retrieval.index_shards import StoredDocument

ProgressBars: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a progress callback from a title and a total."""
SHARD_SIZE = 1024
"""Documents encoded between two savings at least: what a killed process encodes again."""
MOST_SHARDS = 64
"""Savings while a large corpus is encoded."""
LARGEST_SHARD = 65_536
"""Documents of a shard when encoding is done: to search few shards is faster."""
NUMBERS_OF_SHARD = 1 << 25
"""Numbers of the embeddings of a shard at most: 128 MiB as float32, which are in memory while it is written."""


@dataclass(frozen=True)
class Change:
    """What was done to an index."""

    manifest: Manifest
    """Its state now."""
    documents: int
    """Documents it holds now."""
    added: int = 0
    """New documents."""
    replaced: int = 0
    """Documents whose text was replaced."""
    unchanged: int = 0
    """Documents that were there with this very text."""
    deleted: int = 0
    """Documents deleted."""
    unknown: tuple[str, ...] = ()
    """Ids that were to be deleted and are not there."""
    seconds: float = 0.0
    """Wall time."""
    reused: bool = False
    """It had been made before."""
    warnings: tuple[str, ...] = ()
    """What the user should know."""


def make_index(
    model: str | Path | IndexEncoder,
    collection: str | Path,
    out: str | Path,
    kind: KindSettings | None = None,
    dtype: StoredType = "float32",
    shard_size: int | None = None,
    task: str | None = None,
    max_length: int | None = None,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
) -> Change:
    """Encode a corpus once and keep it for searching.

    A process that is killed loses the shard it was encoding: the same call goes on with the others.

    Args:
        model: folder, hub name, "demo", or an encoder.
        collection: folder with `corpus.jsonl`.
        out: folder of the index, new or empty.
        kind: exact (None), or an approximate kind with its settings.
        dtype: of stored embeddings: "float32", or "float16" for half the disk and differences of a cosine below 0.001.
        shard_size: documents encoded between two savings; None: 1,024, or a 64th of a large corpus.
        task: task whose instructions the model puts before the texts.
        max_length: tokens of a text that are read; None keeps the model's own.
        progress: makes a progress callback from a title and a total.
        devices: where texts are encoded: one device, or one a process, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"].

    Raises:
        InputError: corpus, model, kind or settings cannot be used.
        OutputExistsError: `out` holds something else.
        StorageError: the disk is full, or another process writes the same index.
    """
    started = time.perf_counter()
    kind, out = kind or KindSettings(), Path(out)
    check_kind(kind.kind)
    file = DocumentsFile(Path(collection) / "corpus.jsonl")
    size = shard_size_for(len(file), shard_size)
    encoder = load_index_encoder(model, task, max_length) if isinstance(model, (str, Path)) else model
    computed = resolve_precision(device=devices[0] if devices else None)
    origin = content_hash(encoder.identity.model_dump(exclude={"name"}), file.hash, dtype, size, computed)
    _check_out(out, origin, kind)
    with exclusive(out):
        if (out / MANIFEST_FILE).is_file():
            with closing(Contents(out)) as contents:
                return Change(contents.manifest, len(contents), reused=True)
        with placed(encoder, devices):
            shards = encode_shards(out, origin, file, encoder, size, dtype, progress)
        manifest = Manifest(
            generation=0,
            written="",
            origin=origin,
            model=encoder.identity,
            kind="exact",
            precision=dtype,
            shard_size=size,
            shards=tuple(shard for shard in shards if shard is not None),
        )
        manifest = joined(out, manifest, None, progress)
        manifest, warnings = with_kind(out, manifest, kind, encoder, progress)
        manifest = write_manifest(out, manifest)
    warnings = [*file.warnings(), *warnings]
    return Change(manifest, len(file), added=len(file), seconds=time.perf_counter() - started, warnings=tuple(warnings))


def _check_out(out: Path, origin: str, kind: KindSettings) -> None:
    """Refuse a folder that holds something else than this index, finished or not."""
    if (out / MANIFEST_FILE).is_file():
        manifest = read_manifest(out)
        if manifest.origin == origin and manifest.kind == kind.kind:
            return
        same = manifest.origin == origin
        found = f"this index with kind {manifest.kind}" if same else "an index of another model, corpus or settings"
        mend = f"`bixse index --to {out} --kind {kind.kind}`" if same else "choose another --out, or delete the folder"
        raise OutputExistsError(f"{out}: got {found}; expected a new folder; fix: {mend}")
    pending = read_pending(out)
    visible = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    if pending is not None and pending.change == origin:
        return
    if pending is not None or visible or out.is_file():
        found = "an unfinished index of another model, corpus or settings" if pending is not None else (
            f"files that are no index ({', '.join(visible[:3])})" if visible else "a file")  # fmt: skip
        raise OutputExistsError(
            f"{out}: got {found}; expected a new or empty folder; fix: choose another --out, or delete it"
        )


def encode_shards(
    folder: Path,
    change: str,
    file: DocumentsFile,
    encoder: IndexEncoder,
    size: int,
    dtype: StoredType,
    progress: ProgressBars | None,
    old: Contents | None = None,
) -> list[StoredShard | None]:
    """Shards of the documents of a file that an index does not hold yet, one a block; goes on where it was killed."""
    pending = read_pending(folder)
    shards = _whole(folder, pending.shards) if pending is not None and pending.change == change else []
    write_pending(folder, Pending(change=change, shards=tuple(shards)))
    remove_leftovers(folder)
    advance = progress("encode documents", len(file)) if progress is not None else None
    if advance is not None:
        advance(min(len(shards) * size, len(file)))
    for block in file.blocks(size, first=len(shards)):
        new = _not_there(block, old) if old is not None else block
        if advance is not None:
            advance(len(block) - len(new))
        embeddings = encoder.encode([encoded_text(document) for document in new], "document", advance) if new else None
        shards.append(write_shard(folder, new, embeddings, dtype) if embeddings is not None else None)
        write_pending(folder, Pending(change=change, shards=tuple(shards)))
    return shards


def _whole(folder: Path, shards: Sequence[StoredShard | None]) -> list[StoredShard | None]:
    """The first ones of them whose files are as they were written."""
    kept: list[StoredShard | None] = []
    for shard in shards:
        try:
            for file in shard.files() if shard is not None else ():
                opened = OpenedFile(folder, file)
                opened.check()
                opened.close()
        except (OSError, InputError):
            break
        kept.append(shard)
    return kept


def _not_there(documents: Sequence[StoredDocument], old: Contents) -> list[StoredDocument]:
    """The documents that an index does not hold with this very title and text."""
    rows = old.find({document.document_id for document in documents})
    there = set(old.documents(list(rows.values())))
    return [document for document in documents if document not in there]


def joined(
    folder: Path,
    manifest: Manifest,
    live: npt.NDArray[np.bool_] | None = None,
    progress: ProgressBars | None = None,
    first: int = 0,
) -> Manifest:
    """A state, not written yet, whose shards from one on are as few as can be and hold only documents that count.

    Args:
        folder: the index.
        manifest: the state; its shards are on the disk.
        live: which rows of those shards count; None: all.
        progress: makes a progress callback from a title and a total.
        first: the first shard that is written anew.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    part = manifest.model_copy(update={"shards": manifest.shards[first:], "deleted": None, "graph": None})
    with closing(Contents(folder, part)) as contents:
        if live is not None:
            contents.live = live
        if len(part.shards) < 2 and contents.live.all():
            return manifest
        size = max(1, min(LARGEST_SHARD, NUMBERS_OF_SHARD // manifest.model.dimensions))
        advance = progress("join shards", len(contents)) if progress is not None else None
        shards = []
        for rows in contents.blocks(size):
            documents, embeddings = contents.documents(rows.tolist()), contents.embeddings(rows)
            shards.append(write_shard(folder, documents, embeddings, manifest.precision))
            if advance is not None:
                advance(len(rows))
    return manifest.model_copy(update={"shards": (*manifest.shards[:first], *shards)})


def shard_size_for(documents: int, wanted: int | None) -> int:
    """Documents between two savings: as asked, or so many that there are at most 64 savings."""
    if wanted is not None and wanted < 1:
        raise InputError(f"--shard-size: got {wanted}; expected at least 1; fix: leave it out")
    return wanted or max(SHARD_SIZE, math.ceil(documents / MOST_SHARDS))


def content_hash(*parts: object) -> str:
    """SHA-256 of what a change is made of, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8")).hexdigest()
