"""Encode a corpus once and keep it for searching."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection import check_corpus, warn_of_empty
from bixse.data.run import Run
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import OutputExistsError
from bixse.files.files import alone_in, file_hash, storage_errors
from bixse.scale.index.corpus_shards import EncodeShards, corpus_texts, do_shards
from bixse.scale.index.index_files import FILES, Manifest, is_index, read_manifest, shard_rows
from bixse.scale.index.search import load_encoder
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.scale.index.index_settings import IndexSettings


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
        settings: model, collection, and the place of encoding.
        out: a folder that is new, empty, or holds an index of this encoder.
        progress: makes a callback from a title and a total.
        model: a loaded model, used instead of the model that the settings name.

    Raises:
        InputError: a corpus, model or setting that cannot be used.
        OutputExistsError: `out` holds an index of another encoder, or something else.
        StorageError: the disk is full, or another process writes the same index.
        IncompleteError: a shard failed twice; the other shards are kept.

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
    engine = settings.chosen_engine()
    corpus = check_corpus(path, {})
    encoder, identity = load_encoder(settings.model if model is None else model, settings.task, settings.max_length)
    manifest = Manifest(
        encoder=identity,
        corpus=file_hash(path),
        precision=resolve_precision(),
        documents=corpus.count,
        rows=shard_rows(corpus.count, settings.shards),
    )
    if (present := _present(out, manifest)) is not None:
        return IndexReport(present, reused=True)
    store = EmbeddingStore(encoder, settings.cache)
    name = identity.name if model is None else None
    job = EncodeShards((out / manifest.folder).absolute(), manifest, name, settings.cache)
    with storage_errors(out), nullcontext() if engine.shared else alone_in(out):
        corpus_texts(job.folder, path, corpus.count)
        encoded, waiting = do_shards(job, engine, store, progress)
        if not waiting:
            config = settings.model_dump(mode="json")
            record = Run(out, "index", config, {"corpus": manifest.corpus}, results=manifest.model_dump())
            record.save("finished")  # from now on the index is there; several ranks write the same
            for other in out.glob(f"{FILES}*"):
                if other.name != manifest.folder:  # its readers keep what they opened
                    shutil.rmtree(other, ignore_errors=True)
    warnings = [] if waiting else warn_of_empty(corpus.empty, corpus.count)
    if store.failure is not None:
        warnings.append(
            f"embeddings were not kept in the cache ({store.failure}): the next index encodes all texts again"
        )
    return IndexReport(manifest, encoded, time.perf_counter() - started, waiting=waiting, warnings=tuple(warnings))


def _present(out: Path, wanted: Manifest) -> Manifest | None:
    """Return the wanted index if the folder holds it; raise OutputExistsError for an index of another encoder."""
    fix = "choose another --out, or delete it"
    if is_index(out):
        found = read_manifest(out)
        if different := found.differences(wanted, {"precision"}):
            raise OutputExistsError(
                f"{out}: got an index of {found.encoder.name!r} with another {' and '.join(different)}; expected one "
                f"of the same encoder and settings; fix: {fix}"
            )
        return found if found.corpus == wanted.corpus else None
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    visible = [name for name in names if not name.startswith((".", FILES))]
    if visible or out.is_file():
        what = f"files ({', '.join(visible[:3])})" if visible else "a file"
        raise OutputExistsError(f"{out}: got {what}; expected a new or empty folder, or an index; fix: {fix}")
    return None
