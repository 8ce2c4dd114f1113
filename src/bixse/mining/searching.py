"""Search with each retriever, block by block on disk, so that memory is bounded and an interrupted run goes on."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bixse.data.collection import Collection
from bixse.data.io.files import storage_errors, write_atomically
from bixse.data.trec import read_run, write_run
from bixse.errors import InputError
from bixse.retrieval.bm25 import BM25, BM25_NAME
from bixse.retrieval.dense_search import encode_collection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.collection import Document
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.progress import ProgressBars
    from bixse.relevance import Run

Search: TypeAlias = Callable[[Mapping[str, str]], "Run"]
"""Answers queries (id -> text) with document ids and scores."""
BLOCK = 512
"""Queries searched, and kept in memory, at once."""
PARTS_FOLDER = ".parts"
"""Folder of finished blocks inside the output folder, removed when the run is finished."""
KNOWN_NAMES = (BM25_NAME, "demo")
"""Retrievers that are no folder and no hub name."""


def retriever_labels(names: Sequence[str]) -> dict[str, str]:
    """A short name of each retriever, for files and the column `source`.

    Returns:
        Label -> retriever, in the order given: the last part of a path, and as many parts before it as tell two apart.

    Raises:
        InputError: none is given, one is given twice, or one is nearly "bm25" or "demo".

    Example:
        >>> retriever_labels(["bm25", "runs/a/model", "runs/b/model"])
        {'bm25': 'bm25', 'a-model': 'runs/a/model', 'b-model': 'runs/b/model'}
        >>> retriever_labels(["BM25"])
        Traceback (most recent call last):
        ...
        bixse.errors.InputError: --retriever: got 'BM25'; expected bm25, demo, a model folder or a hub name; \
fix: did you mean 'bm25'?
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


def load_encoders(names: Sequence[str], max_length: int | None, task: str | None) -> dict[str, RelevanceModel]:
    """The encoders among some retrievers, each with the instructions of the task where it has instructions.

    Raises:
        ModelError: a name or folder that is no encoder.
        InputError: an encoder has instructions, but none for the task.
    """
    encoders = {}
    for name in names:
        if name != BM25_NAME:
            from bixse.encoders.instructions import use_task
            from bixse.encoders.loading.build import build_encoder
            from bixse.encoders.prompts import prompt_for

            encoders[name] = build_encoder(name, max_length)
            if encoders[name].instructions is not None:
                use_task(encoders[name], task)
            prompt_for(encoders[name], "query")  # a task that is missing is said before the corpus is encoded
    return encoders


def bm25_search(corpus: Mapping[str, Document], depth: int, exclude_self: bool) -> Search:
    """Search by words."""
    index = BM25(list(corpus), [document.content for document in corpus.values()])
    return lambda queries: index.search(queries, depth, exclude_self)


def dense_search(
    encoder: RelevanceModel,
    corpus: Mapping[str, Document],
    depth: int,
    exclude_self: bool,
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> Search:
    """Search by cosine; document embeddings are taken from, and kept in, the cache (see `encode_collection`)."""
    from bixse.encoders.encode import encode_texts

    documents = encode_collection(encoder, Collection("corpus", corpus, {}), [], progress, cache)

    def search(queries: Mapping[str, str]) -> Run:
        embeddings = encode_texts(encoder, list(queries.values()), "query")
        return replace(documents, query_ids=list(queries), queries=embeddings).search(
            list(queries), depth, exclude_self
        )

    return search


def blocks(queries: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The queries in blocks of `BLOCK`."""
    items = iter(queries.items())
    while block := dict(islice(items, BLOCK)):
        yield block


class SearchParts:
    """The answers of the retrievers in TREC files, one a block of queries.

    Args:
        folder: the output folder.
        queries: query id -> text, in an order that does not change.
    """

    def __init__(self, folder: Path, queries: Mapping[str, str]) -> None:
        self.folder = folder / PARTS_FOLDER
        self.queries = queries

    def missing(self, label: str) -> bool:
        """Whether a block of this retriever is still to be searched."""
        return any(not self._path(label, number).is_file() for number, _ in enumerate(blocks(self.queries)))

    def search(self, label: str, search: Search, progress: Callable[[int], None] | None = None) -> None:
        """Search the blocks that are not there yet.

        Raises:
            StorageError: the folder cannot be written.
        """
        for number, block in enumerate(blocks(self.queries)):
            path = self._path(label, number)
            if not path.is_file():
                found = search(block)
                if any(found.values()):
                    write_run(path, found, tag=label)
                else:
                    write_atomically(path, "")
            if progress is not None:
                progress(len(block))

    def read(self, label: str, number: int) -> Run:
        """The answers of one block; a query without any is missing."""
        path = self._path(label, number)
        return read_run(path) if path.stat().st_size else {}

    def found(self, label: str) -> bool:
        """Whether a retriever found anything."""
        return any(self._path(label, number).stat().st_size for number, _ in enumerate(blocks(self.queries)))

    def join(self, label: str, path: Path) -> None:
        """Write all blocks of a retriever as one TREC run.

        Raises:
            StorageError: the folder cannot be written.
        """
        part = path.with_name(f".{path.name}")
        with storage_errors(path):
            with part.open("wb") as whole:
                for number, _ in enumerate(blocks(self.queries)):
                    with self._path(label, number).open("rb") as file:
                        shutil.copyfileobj(file, whole)
            part.replace(path)

    def remove(self) -> None:
        """Remove the blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, label: str, number: int) -> Path:
        return self.folder / label / f"{number:06d}-of-{BLOCK}.trec"
