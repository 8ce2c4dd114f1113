"""Search with each retriever, a block of queries at a time, so that memory does not grow with the rankings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bixse.data.io.files import atomic_file
from bixse.data.trec import run_lines
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import prompt_for, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.retrieval.bm25 import BM25, BM25_NAME
from bixse.retrieval.exact import exact_search, to_run
from bixse.retrieval.store import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.collection import Document
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.mining.mine_settings import MineConfig
    from bixse.progress import ProgressBars
    from bixse.relevance import Run

Search: TypeAlias = Callable[[Mapping[str, str]], "Run"]
"""Answers queries (id -> text) with document ids and scores."""
BLOCK = 512
"""Queries searched at once."""
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


def load_encoder(name: str, config: MineConfig) -> RelevanceModel | None:
    """The encoder of a retriever, with the instructions of the task where it has instructions; None of BM25."""
    if name == BM25_NAME:
        return None
    encoder = build_encoder(name, config.max_length)
    if encoder.instructions is not None:
        use_task(encoder, config.task)
    prompt_for(encoder, "query")  # a task that is missing is said before the corpus is encoded
    return encoder


def open_search(
    encoder: RelevanceModel | None, corpus: Mapping[str, Document], config: MineConfig, progress: ProgressBars | None
) -> Search:
    """Search by the cosines of an encoder, whose document embeddings are cached, or by words."""
    document_ids = list(corpus)
    if encoder is None:
        index = BM25(document_ids, [document.content for document in corpus.values()])
        return lambda queries: index.search(queries, config.depth, config.exclude_self)
    documents = encode_corpus(encoder, corpus, progress, config.cache)

    def search(queries: Mapping[str, str]) -> Run:
        embeddings = encode_texts(encoder, list(queries.values()), "query")
        scores, rows = exact_search(embeddings, documents, config.depth + config.exclude_self)
        run = to_run(list(queries), document_ids, scores, rows, config.exclude_self)
        return {query_id: dict(islice(found.items(), config.depth)) for query_id, found in run.items()}

    return search


def save_answers(
    search: Search, queries: Mapping[str, str], path: Path, tag: str, progress: Callable[[int], None] | None
) -> None:
    """Write the answers to all queries as a TREC run, whole or not at all; an empty file where nothing was found."""
    rest = iter(queries.items())
    with atomic_file(path) as file:
        while block := dict(islice(rest, BLOCK)):
            file.writelines(line.encode() for line in run_lines(search(block), tag))
            if progress is not None:
                progress(len(block))


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
