"""Encode a corpus once and keep it for searching."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bixse.data.corpus import Corpus, check_corpus, warn_of_empty
from bixse.data.run import Run
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.engine import Engine, Job
from bixse.errors import IncompleteError, InputError, OutputExistsError
from bixse.files.files import alone_in, storage_errors
from bixse.index.index_files import (
    FILES,
    TEXTS,
    Manifest,
    embeddings_file,
    is_index,
    open_files,
    read_manifest,
    read_texts,
    shard_rows,
    write_embeddings,
    write_texts,
)
from bixse.index.search import load_encoder, warn_of_long
from bixse.index.vector_store import connect
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.index.index_settings import IndexSettings
    from bixse.progress import ProgressBars


class ShardEncoder(NamedTuple):
    """The worker state of encoding: the encoder and its store of embeddings."""

    store: EmbeddingStore
    step: Callable[[int], None] | None = None
    """Callback that gets the number of encoded texts."""


@dataclass(frozen=True)
class EncodeShards(Job[int, tuple[int, float]]):
    """Encode documents: shard n, from document `rows * n` on, becomes the n-th file of embeddings.

    Only one shard is in memory at a time. `run` returns the number of encoded texts, and of documents that are longer
    than the encoder reads (NaN if it is not known).
    """

    folder: Path
    """Folder of the texts and the embeddings; another for each manifest."""
    manifest: Manifest
    model: str | None
    """Folder or hub name, for other processes; None is a model in the memory of this process."""
    cache: str | None

    def setup(self) -> ShardEncoder:
        if self.model is None:
            raise InputError(
                "model: got one in memory; expected a folder or hub name, which other processes load too; fix: save it "
                "to a folder, or use one process"
            )
        with use_precision(self.manifest.precision):
            made = self.manifest.encoder
            encoder, _ = load_encoder(self.model, made.task, made.max_length, made.dimensions)
            return ShardEncoder(EmbeddingStore(encoder, self.cache))

    def run(self, shard: int, state: ShardEncoder) -> tuple[int, float]:
        before, rows = state.store.encoded, self.manifest.rows
        state.store.too_long.clear()
        with use_precision(self.manifest.precision):
            embeddings = state.store.encode(read_texts(self.folder / TEXTS, shard * rows, rows), state.step)
        write_embeddings(self.output(shard), embeddings)
        return state.store.encoded - before, float(state.store.too_long["documents"])

    def output(self, shard: int) -> Path:
        return embeddings_file(self.folder, shard)


@dataclass(frozen=True)
class IndexReport:
    """The outcome of `make_index`."""

    manifest: Manifest
    encoded: int = 0
    """Number of texts encoded now; the others were stored."""
    seconds: float = 0.0
    reused: bool = False
    waiting: int = 0
    """Pending shards of other ranks; the index exists when they are done."""
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
    the last one makes the index; the reports of the others count the pending shards.

    Args:
        settings: model, collection, and the engine that encodes.
        out: a folder that is new, empty, or holds an index of this encoder.
        progress: makes a callback from a title and a total.
        model: a loaded model, used instead of the model that the settings name.

    Raises:
        InputError: a corpus, model or setting that cannot be used.
        OutputExistsError: `out` holds something else, or another process writes there.
        IncompleteError: a shard failed twice; the other shards are kept.

    Example:
        ::

            make_index(IndexSettings(model="demo", collection="my-collection"), "runs/index")
    """
    started, out, path, engine = time.perf_counter(), Path(out), settings.corpus, settings.chosen_engine()
    with use_precision(settings.precision):
        documents = Corpus(path)
        corpus = check_corpus(path, {}, documents)
        named = settings.model if model is None else model
        encoder, identity = load_encoder(named, settings.task, settings.max_length, settings.dimensions)
        if settings.dimensions not in (None, identity.dimensions):
            raise InputError(
                f"dimensions: got {settings.dimensions} and a model in memory that gives {identity.dimensions}; "
                "expected the same; fix: build_encoder(NAME, dimensions=...)"
            )
        manifest = Manifest(
            encoder=identity,
            corpus=documents.hash,
            precision=resolve_precision(),
            documents=corpus.count,
            rows=shard_rows(corpus.count, settings.shards),
        )
        if (present := _present(out, manifest)) is not None:
            return IndexReport(present, reused=True, warnings=tuple(warn_of_long(encoder, present)))
        store = EmbeddingStore(encoder, settings.cache)
        name = identity.name if model is None else None
        job = EncodeShards((out / manifest.folder).absolute(), manifest, name, settings.cache)
        with storage_errors(out), nullcontext() if engine.shared else alone_in(out):
            # The folder is named by a hash of the corpus, so an existing file is complete and right.
            if not (job.folder / TEXTS).exists():
                write_texts(job.folder / TEXTS, documents.items())
            del documents  # its file would fill the disk while the texts are encoded
            encoded, too_long = _encode(job, engine, store, progress)
            if not math.isnan(too_long):
                manifest = manifest.model_copy(update={"too_long": int(too_long)})
            waiting = sum(not job.is_complete(shard) for shard in manifest.shards)
            if not waiting:
                config = settings.model_dump(mode="json")
                record = Run(out, "index", config, {"corpus": manifest.corpus}, results=manifest.model_dump())
                record.save("finished")  # from here on the index exists; several ranks write the same
                for other in {*out.glob(f"{FILES}*")} - {out / manifest.folder}:
                    shutil.rmtree(other, ignore_errors=True)  # readers keep the files that they opened
    warnings = [] if waiting else [*warn_of_empty(corpus.empty, corpus.count), *warn_of_long(encoder, manifest)]
    if store.failure is not None:
        warnings.append(
            f"embeddings were not kept in the cache ({store.failure}): the next index encodes all texts again"
        )
    return IndexReport(manifest, encoded, time.perf_counter() - started, waiting=waiting, warnings=tuple(warnings))


def _encode(
    job: EncodeShards, engine: Engine, store: EmbeddingStore, progress: ProgressBars | None
) -> tuple[int, float]:
    """Do this engine's share of the shards, here with `store`; return the sums of `EncodeShards.run`."""
    rows, shards = job.manifest.rows, job.manifest.shards
    sizes = {shard: min(rows, job.manifest.documents - shard * rows) for shard in engine.share(shards)}
    step = progress("encode documents", sum(sizes.values())) if progress is not None and sizes else None
    encoded, too_long, failed = 0, 0.0, []
    for ended in engine.map(job, shards, ShardEncoder(store, step)):
        numbers = ended.result or (0, math.nan)  # another rank or an earlier call encoded the shard
        encoded, too_long = encoded + numbers[0], too_long + numbers[1]
        failed += [f"shard {ended.shard}: {ended.error}"] if ended.error else []
        if step is not None and (ended.known or not engine.here):
            step(sizes[ended.shard])
    if failed:
        raise IncompleteError(
            f"{job.folder.parent}: got {len(failed)} of {len(shards)} shards that failed twice "
            f"({'; '.join(failed[:3])}); expected all; fix: correct the cause, then run the same command again"
        )
    return encoded, too_long


def _present(out: Path, wanted: Manifest) -> Manifest | None:
    """Return the wanted index if the folder holds it; raise OutputExistsError for an index of another encoder."""
    fix = "choose another --out, or delete it"
    if is_index(out):
        manifest = read_manifest(out)
        if different := manifest.differences(wanted, {"precision"}):
            raise OutputExistsError(
                f"{out}: got an index of {manifest.encoder.name!r} with another {' and '.join(different)}; expected "
                f"one of the same encoder and settings; fix: {fix}"
            )
        return manifest if manifest.corpus == wanted.corpus else None
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    visible = [name for name in names if not name.startswith((".", FILES))]
    if visible or out.is_file():
        what = f"files ({', '.join(visible[:3])})" if visible else "a file"
        raise OutputExistsError(f"{out}: got {what}; expected a new or empty folder, or an index; fix: {fix}")
    return None


def export_index(index: str | Path, to: str, progress: ProgressBars | None = None) -> int:
    """Write embeddings, ids, titles and texts of an index into a vector database; return the number written now.

    Existing documents stay: a stopped export continues, and a finished one does nothing. `to` is
    "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION". InputError: the database cannot be used. OutputExistsError: the
    database holds something else.
    """
    folder = Path(index)
    with closing(open_files(folder)) as files, closing(connect(to)) as store, alone_in(folder):
        wanted = files.manifest
        if not store.exists:
            store.create(wanted)
        elif different := store.manifest.differences(wanted, {"corpus", "documents", "precision"}):
            raise OutputExistsError(
                f"{to}: got an index of {store.manifest.encoder.name!r} with another {' and '.join(different)}; "
                "expected one of the same corpus, encoder and settings; fix: choose another name, or delete it"
            )
        if (first := store.count()) < wanted.documents:
            first -= first % store.together  # a killed write may be there in part
        step = progress(f"write to {to}", wanted.documents - first) if progress is not None else None
        for start in range(first, wanted.documents, store.together):
            stop = min(start + store.together, wanted.documents)
            store.write(start, files.documents(range(start, stop)), files.embeddings(start, stop))
            if step is not None:
                step(stop - start)
        store.check()
        store.build()
    return wanted.documents - first
