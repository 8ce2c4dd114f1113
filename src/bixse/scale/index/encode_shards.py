"""The embeddings of an index as shards of a job, so that an engine may spread them over processes and machines."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bixse.encoders.loading.precision import use_precision
from bixse.errors import IncompleteError, InputError, ModelError
from bixse.files.files import write_atomically
from bixse.scale.engines.job import Job
from bixse.scale.index.index_files import embeddings_content, read_texts
from bixse.scale.index.search import load_encoder
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy import float32
    from numpy.typing import NDArray

    from bixse.progress import ProgressBars
    from bixse.scale.engines.job import Engine
    from bixse.scale.index.manifest import EncoderIdentity, StoredType

TEXTS = "documents.parquet"


class ShardEncoder(NamedTuple):
    """What encodes the shards of a process."""

    store: EmbeddingStore
    step: Callable[[int], None] | None = None
    """Told how many texts are done."""


@dataclass(frozen=True)
class EncodeShards(Job[int, int]):
    """Shard n: the documents from `rows * n` on become the n-th file of embeddings; gives how many were encoded."""

    folder: Path
    """Holds the texts, and gets the embeddings."""
    model: str | None
    """Folder or hub name, for other processes; None: a model in the memory of this one."""
    identity: EncoderIdentity
    corpus: str
    """Hash of the corpus file."""
    rows: int
    """Documents of a shard."""
    dtype: StoredType
    precision: str
    cache: str | None

    def setup(self) -> ShardEncoder:
        """Load the model, which must be the one it is where the job comes from."""
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

    def encoded(self, texts: Sequence[str], kept: ShardEncoder) -> NDArray[float32]:
        """(N, D) embeddings of some texts."""
        with use_precision(self.precision):
            return kept.store.encode(texts, kept.step)

    def output(self, shard: int) -> Path:
        return self.folder / f"embeddings-{shard:05d}.safetensors"

    @property
    def texts(self) -> Path:
        """Ids, titles and texts of the corpus."""
        return self.folder / TEXTS

    def fingerprint(self) -> str:
        encoder = self.identity.model_dump(exclude={"name"})
        known = [encoder, self.corpus, self.rows, self.dtype, self.precision]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def do_shards(
    job: EncodeShards,
    documents: int,
    place: Engine,
    store: EmbeddingStore | None,
    progress: ProgressBars | None = None,
    title: str = "encode documents",
) -> tuple[int, int]:
    """Have this engine's share of the shards of a corpus done, where this process can by the encoder of `store`.

    Returns:
        How many texts were encoded, and how many shards other ranks have not done yet.

    Raises:
        IncompleteError: a shard failed twice; the others are done.
    """
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
