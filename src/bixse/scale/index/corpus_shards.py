"""Encode or search a corpus as shards of a job, so that an engine may spread them over processes and machines.

Only one shard is in memory at a time, for any number of documents. The best results of all shards are merged.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors import safe_open
from safetensors.numpy import load_file, save

from bixse.data.collection import stream_documents
from bixse.encoders.encode import encode_on, encode_texts
from bixse.encoders.loading.precision import use_precision
from bixse.errors import IncompleteError, InputError, ModelError
from bixse.files.files import write_atomically
from bixse.files.parquet import read_table
from bixse.scale.engines.job import Job, is_marked, mark
from bixse.scale.index.index_files import TENSOR, embeddings_content, open_files, read_texts, write_texts
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
    from bixse.scale.engines.job import Engine
    from bixse.scale.index.index_files import EncoderIdentity
    from bixse.scale.index.index_settings import StoredType

TEXTS = "documents.parquet"
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
    """Folder of the texts and the embeddings."""
    model: str | None
    """Folder or hub name, for other processes; None is a model in the memory of this process."""
    identity: EncoderIdentity
    corpus: str
    rows: int
    dtype: StoredType
    precision: str
    cache: str | None

    def setup(self) -> ShardEncoder:
        """Load the model, which must be the same as in the process that made the job."""
        if self.model is None:
            raise InputError(
                "model: got one in memory; expected a folder or hub name, which other machines load too; fix: save it "
                "to a folder that they share"
            )
        with use_precision(self.precision):
            encoder, found = load_encoder(self.model, self.identity.task, self.identity.max_length)
            if (found.weights, found.prompts) != (self.identity.weights, self.identity.prompts):
                raise ModelError(
                    f"{self.model}: got another model than the index is of; expected the same on every machine; "
                    "fix: a folder that they share, or the same revision"
                )
            return ShardEncoder(EmbeddingStore(encoder, self.cache))

    def run(self, shard: int, kept: ShardEncoder) -> int:
        before = kept.store.encoded
        embeddings = self.encoded(read_texts(self.texts, shard * self.rows, self.rows), kept)
        write_atomically(self.output(shard), embeddings_content(embeddings, self.dtype))
        return kept.store.encoded - before

    def encoded(self, texts: Sequence[str], kept: ShardEncoder) -> NDArray[np.float32]:
        with use_precision(self.precision):
            return kept.store.encode(texts, kept.step)

    def output(self, shard: int) -> Path:
        return self.folder / f"embeddings-{shard:05d}.safetensors"

    @property
    def texts(self) -> Path:
        """Return the file of ids, titles and texts of the corpus, which `write_texts` makes."""
        return self.folder / TEXTS

    def fingerprint(self) -> str:
        encoder = self.identity.model_dump(exclude={"name"})
        known = [encoder, self.corpus, self.rows, self.dtype, self.precision]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class SearchShards(EncodeShards):
    """Search documents: shard n finds the `depth` best nonempty documents per query, from document `rows * n` on.

    The file of texts is in the folder above `folder`, so that several encoders share it.
    """

    depth: int
    index: Path | None = None
    """Folder of an index of the same corpus, whose embeddings are read; None encodes the texts."""

    def setup(self) -> ShardEncoder | None:  # type: ignore[override]
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
        return self.folder / QUERIES

    def save_queries(self, embeddings: NDArray[np.float32]) -> None:
        """Write the (Q, D) embeddings of the queries before the first shard."""
        write_atomically(self.queries, embeddings_content(embeddings, "float32"))

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{super().fingerprint()} {self.depth}".encode()).hexdigest()

    def best(self, shards: int, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and corpus rows, each (n, k), for the queries from `start` to `stop`."""
        return merge_best((_read(self.output(shard), start, stop) for shard in range(shards)), self.depth)


@dataclass(frozen=True)
class CorpusSearch:
    """An encoder that is ready to search a corpus by shards."""

    encoder: SentenceTransformer
    job: SearchShards
    documents: int

    def search(
        self,
        queries: Sequence[str],
        place: Engine,
        devices: Sequence[str] | None,
        progress: ProgressBars | None,
        title: str,
    ) -> int:
        """Do this engine's share of the shards; return the number of pending shards of other ranks."""
        with encode_on(self.encoder, devices):
            self.job.save_queries(encode_texts(self.encoder, queries, "query"))
            store = EmbeddingStore(self.encoder, self.job.cache) if self.job.index is None else None
            return do_shards(self.job, self.documents, place, store, progress, title)[1]

    def runs(self, query_ids: Sequence[str], exclude_self: bool) -> Iterator[Ranking]:
        """Yield the answers per block of queries after all shards; `exclude_self` drops the query's own document."""
        ids = read_table(self.job.texts, ["id"])["id"].cast(pa.large_string()).combine_chunks()  # may pass 2 GiB
        shards, depth = -(-self.documents // self.job.rows), self.job.depth - exclude_self
        for start in range(0, len(query_ids), QUERIES_TOGETHER):
            block = query_ids[start : start + QUERIES_TOGETHER]
            scores, rows = self.job.best(shards, start, start + len(block))
            names = ids.take(pa.array(rows.ravel())).to_pylist()
            run = to_run(block, names, scores, np.arange(rows.size).reshape(rows.shape), exclude_self)
            yield {query_id: dict(islice(found.items(), depth)) for query_id, found in run.items()}


def corpus_texts(folder: Path, corpus: Path, documents: int, fingerprint: str) -> Path:
    """Write ids, titles and texts of a corpus file for the shards, unless they exist."""
    texts = folder / TEXTS
    if not is_marked(texts, fingerprint):
        write_texts(texts, stream_documents(corpus), documents)
        mark(texts, fingerprint)
    return texts


def do_shards(
    job: EncodeShards,
    documents: int,
    place: Engine,
    store: EmbeddingStore | None,
    progress: ProgressBars | None = None,
    title: str = "encode documents",
) -> tuple[int, int]:
    """Do this engine's share of the shards, here with `store`; return numbers of encoded texts and pending shards."""
    shards = range(-(-documents // job.rows))
    sizes = {shard: min(job.rows, documents - shard * job.rows) for shard in place.share(shards)}
    step = progress(title, sum(sizes.values())) if progress is not None and sizes else None
    encoded, failed = 0, []
    for ended in place.map(job, shards, None if store is None else ShardEncoder(store, step)):
        encoded += ended.result or 0
        failed += [f"part {ended.shard}: {ended.error}"] if ended.error else []
        if step is not None and (ended.known or not place.here or store is None):
            step(sizes[ended.shard])
    if failed:
        raise IncompleteError(
            f"{job.folder.parent}: got {len(failed)} of {len(shards)} parts that failed twice "
            f"({'; '.join(failed[:3])}); expected all; fix: what is said there, then the same command again"
        )
    return encoded, sum(not job.is_complete(shard) for shard in shards)


def _read(path: Path, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with safe_open(str(path), framework="numpy") as file:
        return file.get_slice("scores")[start:stop], file.get_slice("rows")[start:stop]
