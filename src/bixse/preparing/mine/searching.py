"""Search with each retriever: BM25 in memory, encoders in shards of the corpus that an engine spreads.

The rankings are TREC runs on disk, written and read a block of queries at a time.
"""

from __future__ import annotations

import difflib
import re
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bixse.data.trec import run_lines
from bixse.encoders.encode import encode_on, encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.errors import InputError
from bixse.files.files import atomic_file
from bixse.files.parquet import read_table
from bixse.scale.index.index_files import is_index, open_files, read_manifest, shard_rows, stream_texts
from bixse.scale.index.search import load_encoder, open_index
from bixse.scale.index.shards import SearchShards, do_shards
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.exact import to_run
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.preparing.mine.mine_settings import MineConfig
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.scale.engines.job import Engine

BLOCK = 512
"""Queries whose answers are in memory at once."""
KNOWN_NAMES = (BM25_NAME, "demo")
"""Retrievers that are no folder and no hub name."""


def retriever_labels(names: Sequence[str]) -> dict[str, str]:
    """A short name of each retriever, for files and the column `source`: label -> retriever, in the order given.

    It is the last part of a path, and as many parts before it as tell two apart.

    Example:
        >>> retriever_labels(["bm25", "runs/a/model", "runs/b/model"])
        {'bm25': 'bm25', 'a-model': 'runs/a/model', 'b-model': 'runs/b/model'}
    """
    for name in names:
        close = difflib.get_close_matches(name.lower(), KNOWN_NAMES, n=1)
        if name not in KNOWN_NAMES and close and not Path(name).exists():
            raise InputError(
                f"--retriever: got {name!r}; expected bm25, demo, a model folder or a hub name; "
                f"fix: did you mean {close[0]!r}?"
            )
    parts = {name: [part for part in Path(name).parts if part not in ("/", ".", "..")] or ["model"] for name in names}
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        labels = [re.sub(r"[^\w.-]+", "-", "-".join(parts[name][-length:])).lstrip(".-") or "model" for name in names]
        if len(set(labels)) == len(names):
            return dict(zip(labels, names, strict=True))
    raise InputError(
        f"--retriever: got {', '.join(names) or 'none'}; expected one or more, each once; fix: drop the repeat"
    )


def retriever_hashes(name: str) -> dict[str, str]:
    """Content hashes of what a retriever's ranking depends on; {} for a word or hub name."""
    if not is_index(Path(name)):
        return model_hashes(name)
    manifest = read_manifest(Path(name))
    return {file.name: file.sha256 for file in manifest.embeddings} | {"prompts": manifest.encoder.prompts}


def search_words(
    texts: Path, queries: Mapping[str, str], config: MineConfig, step: Callable[[int], None] | None
) -> Iterator[Ranking]:
    """The answers of BM25, which holds the words of the corpus in memory, to all queries, a block of them at a time."""
    filled = [(name, document.content) for name, document in stream_texts(texts) if document.content]
    index = BM25([name for name, _ in filled], [text for _, text in filled])
    for block in _blocks(queries):
        yield index.search(block, config.depth, config.exclude_self)
        if step is not None:
            step(len(block))


@dataclass(frozen=True)
class DenseSearch:
    """An encoder that is ready to search a corpus shard by shard."""

    encoder: SentenceTransformer
    job: SearchShards
    documents: int

    def search(
        self,
        queries: Mapping[str, str],
        place: Engine,
        devices: Sequence[str] | None,
        progress: ProgressBars | None,
        title: str,
    ) -> int:
        """Have this engine's share of the shards done; gives how many other ranks have not done yet."""
        with encode_on(self.encoder, devices):
            self.job.save_queries(encode_texts(self.encoder, list(queries.values()), "query"))
            store = EmbeddingStore(self.encoder, self.job.cache) if self.job.index is None else None
            return do_shards(self.job, self.documents, place, store, progress, title)[1]

    def answers(self, queries: Mapping[str, str], config: MineConfig) -> Iterator[Ranking]:
        """The answers to all queries, a block of them at a time, once every shard is done."""
        ids = read_table(self.job.texts, ["id"])["id"].cast(pa.large_string()).combine_chunks()  # may pass 2 GiB
        shards, start = -(-self.documents // self.job.rows), 0
        for block in _blocks(queries):
            scores, rows = self.job.best(shards, start, start + len(block))
            start += len(block)
            names = ids.take(pa.array(rows.ravel())).to_pylist()
            run = to_run(list(block), names, scores, np.arange(rows.size).reshape(rows.shape), config.exclude_self)
            yield {query_id: dict(islice(found.items(), config.depth)) for query_id, found in run.items()}


def open_dense(name: str, config: MineConfig, folder: Path, corpus: str, documents: int, precision: str) -> DenseSearch:
    """Load the encoder of a retriever that is not BM25, with the instructions of the task where it has instructions.

    Args:
        name: model folder, hub name, "demo", or folder of an index of this corpus.
        config: settings.
        folder: for what the shards leave.
        corpus: hash of the corpus file.
        documents: how many it holds.
        precision: what the model computes in.

    Raises:
        InputError: no instruction for the task; an index of another corpus, or of another `max_length`.
        ModelError: the model cannot be loaded, or is not that of the index.
    """
    path, depth = Path(name), config.depth + config.exclude_self
    if is_index(path):
        return _open_index(path, config, folder, corpus, depth)
    encoder = build_encoder(name, config.max_length)
    task = config.task if encoder.instructions is not None else None
    _, identity = load_encoder(encoder, task, config.max_length)
    prompt_for(encoder, "query")  # a task that is missing is said before the corpus is encoded
    job = SearchShards(
        folder=folder.absolute(),
        model=str(path.resolve()) if name != "demo" and path.is_dir() else name,
        identity=identity,
        corpus=corpus,
        rows=shard_rows(identity.dimensions, documents, config.shards or 1),
        dtype="float32",
        precision=precision,
        cache=config.cache,
        depth=depth,
    )
    return DenseSearch(encoder, job, documents)


def _open_index(path: Path, config: MineConfig, folder: Path, corpus: str, depth: int) -> DenseSearch:
    manifest, task = read_manifest(path), config.task
    length = manifest.encoder.max_length
    if manifest.corpus != corpus or config.max_length not in (None, length):
        found = "another corpus" if manifest.corpus != corpus else f"the first {length or 'all'} tokens of a text"
        raise InputError(
            f"--retriever {path}: got an index of {found}; expected one of the corpus that is mined, and of max_length "
            "where it is given; fix: make it again with `bixse index`, or name the model"
        )
    with open_index(path, exact=True) as opened:
        encoder = opened.model
    if task is not None and getattr(encoder, "instructions", None) is not None:
        open_index(path, encoder, task, exact=True).close()
    with closing(open_files(path)) as files:
        job = SearchShards(
            folder=folder.absolute(),
            model=None,
            identity=manifest.encoder,
            corpus=corpus,
            rows=files.rows,
            dtype=manifest.dtype,
            precision=manifest.precision,
            cache=None,
            depth=depth,
            index=path.absolute(),
        )
    return DenseSearch(encoder, job, manifest.documents)


def save_answers(answers: Iterable[Ranking], path: Path, tag: str) -> None:
    """Write answers as a TREC run, whole or not at all; an empty file where nothing was found."""
    with atomic_file(path) as file:
        for run in answers:
            file.writelines(line.encode() for line in run_lines(run, tag))


def found_ids(paths: Iterable[Path]) -> set[str]:
    """The ids of all documents in such runs."""
    ids: set[str] = set()
    for path in paths:
        with path.open(encoding="utf-8") as file:
            ids.update(line.split()[2] for line in file)
    return ids


def read_answers(paths: Mapping[str, Path], queries: Mapping[str, str]) -> Iterator[dict[str, dict[str, float]]]:
    """For each query what every retriever found: its label -> document id -> score; one query is in memory at a time.

    `queries` are in the order of the files, which skip the queries without an answer.
    """
    runs = {label: _run_of(path) for label, path in paths.items()}
    following = {label: next(run, None) for label, run in runs.items()}
    for query_id in queries:
        found = {}
        for label, answer in following.items():
            if answer is not None and answer[0] == query_id:
                found[label] = answer[1]
                following[label] = next(runs[label], None)
        yield found


def _run_of(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    with path.open(encoding="utf-8") as file:
        for query_id, rows in groupby(map(str.split, file), key=lambda row: row[0]):
            yield query_id, {row[2]: float(row[4]) for row in rows}


def _blocks(queries: Mapping[str, str]) -> Iterator[dict[str, str]]:
    rest = iter(queries.items())
    while block := dict(islice(rest, BLOCK)):
        yield block
