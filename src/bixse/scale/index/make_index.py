"""Encode a corpus once and keep it for searching."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection import check_corpus, warn_of_empty
from bixse.encoders.encode import encode_on
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import InputError, OutputExistsError
from bixse.files.files import alone_in, file_hash, storage_errors, write_atomically
from bixse.scale.engines.job import MARK, is_marked
from bixse.scale.index.corpus_shards import EncodeShards, corpus_texts, do_shards
from bixse.scale.index.index_files import FILE_NAME, MANIFEST_FILE, Manifest, StoredFile, read_manifest, shard_rows
from bixse.scale.index.search import load_encoder
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.scale.index.index_settings import IndexSettings

BUILD_FOLDER = ".building"


@dataclass(frozen=True)
class IndexReport:
    """The outcome of `make_index`."""

    manifest: Manifest
    encoded: int = 0
    """Number of texts encoded now; the others were stored."""
    seconds: float = 0.0
    reused: bool = False
    waiting: int = 0
    """Pending parts of other ranks; the index exists when they are done."""
    elsewhere: bool = False
    """True if another rank made or first found the index; further steps are for that rank."""
    warnings: tuple[str, ...] = ()


def make_index(
    settings: IndexSettings,
    out: str | Path,
    progress: ProgressBars | None = None,
    model: SentenceTransformer | None = None,
) -> IndexReport:
    """Encode a corpus once and keep it for searching.

    An index never changes: a new index for another corpus replaces it completely or not at all. The cache keeps
    embeddings by text, so texts encoded before are not encoded again, even after a killed process. With several ranks,
    the last one makes the index; the reports of the others count the pending parts.

    Args:
        settings: model, collection, and the place of encoding.
        out: a folder that is new, empty, or holds an index of this encoder.
        progress: makes a callback from a title and a total.
        model: a loaded model, used instead of the model that the settings name.

    Raises:
        InputError: a corpus, model or setting that cannot be used.
        OutputExistsError: `out` holds an index of another encoder, or something else.
        StorageError: the disk is full, or another process writes the same index.
        IncompleteError: a part failed twice; the other parts are kept.

    Example:
        ::

            make_index(IndexSettings(model="demo", collection="my-collection"), "runs/index")
    """
    with use_precision(settings.precision):
        return _make_index(settings, Path(out), progress, model)


def _make_index(
    settings: IndexSettings, out: Path, progress: ProgressBars | None, model: SentenceTransformer | None
) -> IndexReport:
    started, path = time.perf_counter(), settings.collection / "corpus.jsonl"
    devices, warnings = settings.chosen_devices()
    corpus = check_corpus(path, {})
    encoder, identity = load_encoder(settings.model if model is None else model, settings.task, settings.max_length)
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        encoder=identity,
        corpus=file_hash(path),
        dtype=settings.dtype,
        precision=resolve_precision(device=devices[0] if devices else None),
        documents=corpus.count,
    )
    place = settings.chosen_engine(here=True)
    if (present := _present(out, manifest)) is not None:
        return IndexReport(present, reused=True, elsewhere=place.rank > 0, warnings=tuple(warnings))
    store = EmbeddingStore(encoder, settings.cache)
    job = EncodeShards(
        folder=(out / BUILD_FOLDER).absolute(),
        model=identity.name if model is None else None,
        identity=identity,
        corpus=manifest.corpus,
        rows=shard_rows(identity.dimensions, corpus.count, settings.shards or 1),
        dtype=settings.dtype,
        precision=manifest.precision,
        cache=settings.cache,
    )
    encoded = 0

    def report(found: Manifest, **more: Any) -> IndexReport:
        return IndexReport(found, encoded, time.perf_counter() - started, warnings=tuple(warnings), **more)

    with _building(out, job, place.shared), storage_errors(out), encode_on(encoder, devices):
        corpus_texts(job.folder, path, corpus.count, job.fingerprint())
        encoded, waiting = do_shards(job, corpus.count, place, store, progress)
        with alone_in(out, wait=True) if place.shared and not waiting else nullcontext():
            if place.shared and (present := _present(out, manifest)) is not None:  # another rank was faster
                shutil.rmtree(job.folder, ignore_errors=True)
                return report(present, reused=True, elsewhere=True)
            if waiting:
                return report(manifest, waiting=waiting)
            folder, manifest = _gathered(job, manifest)
            _publish(folder, out, manifest)
            shutil.rmtree(job.folder, ignore_errors=True)
    warnings += warn_of_empty(corpus.empty, corpus.count)
    if store.failure is not None:
        warnings.append(
            f"embeddings were not kept in the cache ({store.failure}): the next index encodes all texts again"
        )
    return report(manifest)


def _present(out: Path, wanted: Manifest) -> Manifest | None:
    """Return the wanted index if the folder holds it; raise OutputExistsError for an index of another encoder."""
    visible = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    fix = "choose another --out, or delete it"
    if MANIFEST_FILE in visible:
        found = read_manifest(out)
        found.check_same(wanted, out, fix)
        return found if found.corpus == wanted.corpus else None
    if visible or out.is_file():
        what = f"files ({', '.join(visible[:3])})" if visible else "a file"
        raise OutputExistsError(f"{out}: got {what}; expected a new or empty folder, or an index; fix: {fix}")
    return None


@contextmanager
def _building(out: Path, job: EncodeShards, shared: bool) -> Iterator[None]:
    """Work in a folder inside the index, as the only writer or for all ranks; complete parts stay for the next call."""
    if shared:
        yield
        return
    was_there = out.exists()
    with alone_in(out):
        try:
            if not is_marked(job.texts, job.fingerprint()):  # left by a call with another corpus or encoder
                shutil.rmtree(job.folder, ignore_errors=True)
            yield
        except InputError:  # the same call would be refused again
            shutil.rmtree(job.folder, ignore_errors=True)
            raise
        finally:
            if not list(job.folder.glob(f"embeddings-*{MARK}")):
                shutil.rmtree(job.folder, ignore_errors=True)
            if not was_there and not job.folder.exists() and not (out / MANIFEST_FILE).exists():
                shutil.rmtree(out, ignore_errors=True)


def _gathered(job: EncodeShards, manifest: Manifest) -> tuple[Path, Manifest]:
    """Link embeddings and texts under their names in the index; the job's files stay until the index exists."""
    shards = range(-(-manifest.documents // job.rows))
    folder = job.folder / "whole"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = []
    for path in (*map(job.output, shards), job.texts):
        copy = folder / path.name
        try:
            copy.hardlink_to(path)
        except OSError:  # a disk without links
            shutil.copyfile(path, copy)
        files.append(StoredFile.of(copy))
    return folder, manifest.model_copy(update={"embeddings": tuple(files[:-1]), "texts": files[-1]})


def _publish(folder: Path, out: Path, manifest: Manifest) -> None:
    """Move the files into place; the manifest, which names them, is written last."""
    for file in manifest.files:
        (folder / file.name).replace(out / file.name)
    write_atomically(out / MANIFEST_FILE, manifest.model_dump_json(indent=1) + "\n")
    named = {file.name for file in manifest.files}
    for path in out.iterdir():
        if path.name not in named and re.fullmatch(FILE_NAME, path.name):
            with suppress(OSError):  # Windows keeps a file that is open; the next index deletes it
                path.unlink()
