"""Encode or search a corpus as shards of a job, so that an engine may spread them over processes and machines.

Only one shard is in memory at a time, for any number of documents. The best results of all shards are merged. The
folders of both jobs depend on all that their outputs depend on: an output that exists is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors import safe_open
from safetensors.numpy import load_file, save

from bixse.data.collection import stream_documents
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.precision import use_precision
from bixse.errors import IncompleteError, InputError, ModelError
from bixse.files.files import write_atomically
from bixse.files.parquet import read_table
from bixse.scale.engines.job import Job
from bixse.scale.index.index_files import (
    TENSOR,
    TEXTS,
    Embeddings,
    Manifest,
    embeddings_file,
    read_texts,
    write_embeddings,
    write_texts,
)
from bixse.scale.index.search import load_encoder
from bixse.search.exact import TopK, merge_best, to_run
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.scale.engines.engine import Engine

QUERIES = "queries.safetensors"
QUERIES_TOGETHER = 512
"""Queries whose answers are in memory at once."""


class ShardEncoder(NamedTuple):
    """The worker state of encoding: the encoder and its store of embeddings."""

    store: EmbeddingStore
    step: Callable[[int], None] | None = None
    """Callback that gets the number of encoded texts."""


@dataclass(frozen=True)
class EncodeShards(Job[int, int]):
    """Encode documents: shard n, from document `rows * n` on, becomes the n-th file of embeddings.

    `run` returns the number of encoded texts.
    """

    folder: Path
    """Folder of the texts and the embeddings; another for each manifest."""
    manifest: Manifest
    model: str | None
    """Folder or hub name, for other processes; None is a model in the memory of this process."""
    cache: str | None

    def setup(self) -> ShardEncoder:
        """Load the model, which must be the same as in the process that made the job."""
        if self.model is None:
            raise InputError(
                "model: got one in memory; expected a folder or hub name, which other processes load too; fix: save it "
                "to a folder, or use one process"
            )
        with use_precision(self.manifest.precision):
            recorded = self.manifest.encoder
            encoder, found = load_encoder(self.model, recorded.task, recorded.max_length)
            if (found.weights, found.prompts) != (recorded.weights, recorded.prompts):
                raise ModelError(
                    f"{self.model}: got another model than the index is of; expected the same on every machine; "
                    "fix: a folder that they share, or the same revision"
                )
            return ShardEncoder(EmbeddingStore(encoder, self.cache))

    def run(self, shard: int, state: ShardEncoder) -> int:
        before = state.store.encoded
        write_embeddings(self.output(shard), self.encode(self.texts(shard), state))
        return state.store.encoded - before

    def texts(self, shard: int) -> list[str]:
        return read_texts(self.folder / TEXTS, shard * self.manifest.rows, self.manifest.rows)

    def encode(self, texts: Sequence[str], state: ShardEncoder) -> NDArray[np.float32]:
        with use_precision(self.manifest.precision):
            return state.store.encode(texts, state.step)

    def output(self, shard: int) -> Path:
        return embeddings_file(self.folder, shard)

    def fingerprint(self) -> str:
        return ""


@dataclass(frozen=True)
class SearchShards(Job[int, int]):
    """Search documents: shard n finds the `depth` best nonempty documents per query among those of `corpus`."""

    folder: Path
    """Folder of queries and answers; another for each corpus and depth."""
    corpus: EncodeShards
    depth: int
    indexed: bool = False
    """True if `corpus` is an index, whose embeddings are read."""

    @property
    def manifest(self) -> Manifest:
        return self.corpus.manifest

    def setup(self) -> ShardEncoder | None:
        return None if self.indexed else self.corpus.setup()

    def run(self, shard: int, state: ShardEncoder | None) -> int:
        best = TopK(load_file(self.folder / QUERIES)[TENSOR], self.depth)
        texts = self.corpus.texts(shard)
        rows = np.array([row for row, text in enumerate(texts) if text], dtype=np.int64)
        encoded = 0
        if self.indexed:
            documents = Embeddings(self.corpus.folder, self.manifest, shard).tensor
            best.add(documents if len(rows) == len(texts) else documents[rows])
        elif state is not None:
            before = state.store.encoded
            best.add(self.corpus.encode([texts[row] for row in rows], state))
            encoded = state.store.encoded - before
        scores, places = best.result()
        found: dict[str, NDArray[Any]] = {"scores": scores, "rows": (shard * self.manifest.rows + rows)[places]}
        write_atomically(self.output(shard), save(found))
        return encoded

    def output(self, shard: int) -> Path:
        return self.folder / f"best-{shard:05d}.safetensors"

    def fingerprint(self) -> str:
        return ""

    def search(
        self,
        encoder: SentenceTransformer,
        queries: Sequence[str],
        engine: Engine,
        progress: ProgressBars | None,
        title: str,
    ) -> int:
        """Do this engine's share of the shards; return the number of pending shards of other ranks."""
        write_atomically(self.folder / QUERIES, save({TENSOR: encode_texts(encoder, queries, "query")}))
        return do_shards(self, engine, EmbeddingStore(encoder, self.corpus.cache), progress, title)[1]

    def runs(self, query_ids: Sequence[str], exclude_self: bool) -> Iterator[Ranking]:
        """Yield the answers per block of queries after all shards; `exclude_self` drops the query's own document."""
        ids = (
            read_table(self.corpus.folder / TEXTS, ["id"])["id"].cast(pa.large_string()).combine_chunks()
        )  # may pass 2 GiB
        depth = self.depth - exclude_self
        for start in range(0, len(query_ids), QUERIES_TOGETHER):
            block = query_ids[start : start + QUERIES_TOGETHER]
            parts = (_read(self.output(shard), start, start + len(block)) for shard in self.manifest.shards)
            scores, rows = merge_best(parts, self.depth)
            names = ids.take(pa.array(rows.ravel())).to_pylist()
            run = to_run(block, names, scores, np.arange(rows.size).reshape(rows.shape), exclude_self)
            yield {query_id: dict(islice(found.items(), depth)) for query_id, found in run.items()}


def corpus_texts(folder: Path, corpus: Path, documents: int) -> Path:
    """Write ids, titles and texts of a corpus file for the shards, unless they exist."""
    if not (folder / TEXTS).exists():
        write_texts(folder / TEXTS, stream_documents(corpus), documents)
    return folder / TEXTS


def do_shards(
    job: EncodeShards | SearchShards,
    engine: Engine,
    store: EmbeddingStore,
    progress: ProgressBars | None = None,
    title: str = "encode documents",
) -> tuple[int, int]:
    """Do this engine's share of the shards, here with `store`; return numbers of encoded texts and pending shards."""
    shards, rows = job.manifest.shards, job.manifest.rows
    sizes = {shard: min(rows, job.manifest.documents - shard * rows) for shard in engine.share(shards)}
    step = progress(title, sum(sizes.values())) if progress is not None and sizes else None
    encoded, failed = 0, []
    for ended in engine.map(job, shards, ShardEncoder(store, step)):
        encoded += ended.result or 0
        failed += [f"shard {ended.shard}: {ended.error}"] if ended.error else []
        if step is not None and (ended.known or not engine.here):
            step(sizes[ended.shard])
    if failed:
        raise IncompleteError(
            f"{job.folder.parent}: got {len(failed)} of {len(shards)} shards that failed twice "
            f"({'; '.join(failed[:3])}); expected all; fix: what is said there, then the same command again"
        )
    return encoded, sum(not job.is_complete(shard) for shard in shards)


def _read(path: Path, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with safe_open(str(path), framework="numpy") as file:
        return file.get_slice("scores")[start:stop], file.get_slice("rows")[start:stop]
