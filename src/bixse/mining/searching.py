"""Search with each retriever: BM25 in memory, encoders through an index.

The rankings are TREC runs on disk, written and read in blocks of queries.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection import stream_documents
from bixse.data.trec import run_lines
from bixse.encoders.instructions import prompt_for, use_task
from bixse.encoders.loading.build import build_encoder, model_hashes, model_path_settings
from bixse.errors import InputError
from bixse.files.files import atomic_file
from bixse.index.index_files import is_index, read_manifest
from bixse.index.index_settings import IndexSettings
from bixse.index.make_index import make_index
from bixse.index.search import SearchIndex, open_index
from bixse.search.bm25 import BM25, BM25_NAME

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.mining.mine_settings import MineConfig
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking

BLOCK = 4096
"""Queries whose answers are in memory at once; each block reads the whole index."""
MOST_EMPTY = 1000
"""Additional documents per query of an index, in place of documents without text among the best."""
KNOWN_NAMES = (BM25_NAME, "demo")
"""Names of retrievers that are neither a folder nor a hub name."""


def retriever_labels(names: Sequence[str]) -> dict[str, str]:
    """Return label -> retriever in the given order; labels appear in file names and in the column `source`."""
    for name in names:
        if Path(name).is_file():
            quoted = shlex.quote(name)
            raise InputError(
                f"--retriever: got the file {name!r}; expected bm25, demo, a model folder, a hub name or an index; "
                "fix: a run has its candidates already. Make pairs of them to grade with "
                f"`awk '{{print $1, 0, $3, 0}}' {quoted} > candidates.txt` and `bixse convert trec candidates.txt "
                "--scale 0 1 --queries queries.jsonl --corpus corpus.jsonl`, then `bixse grade --pairs`"
            )
        close = difflib.get_close_matches(name.lower(), KNOWN_NAMES, n=1)
        if name not in KNOWN_NAMES and close and not Path(name).exists():
            raise InputError(
                f"--retriever: got {name!r}; expected bm25, demo, a model folder or a hub name; "
                f"fix: did you mean {close[0]!r}?"
            )
    parts = {name: [part for part in Path(name).parts if part not in ("/", ".", "..")] or ["model"] for name in names}
    # A label is the last part of a path, with as many parts before it as two paths need to differ.
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        labels = [re.sub(r"[^\w.-]+", "-", "-".join(parts[name][-length:])).lstrip(".-") or "model" for name in names]
        if len(set(labels)) == len(names):
            return dict(zip(labels, names, strict=True))
    raise InputError(
        f"--retriever: got {', '.join(names) or 'none'}; expected one or more, each once; fix: name each once"
    )


def settings_of(labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the retrievers for the record of a run; the location of a folder does not decide what it finds."""
    known = [label if model_path_settings(name) else name for label, name in labels.items()]
    return {"retrievers": known, "models": list(labels.values())}


def inputs_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return hashes of the inputs of the rankings; words and hub names have none."""
    return {f"{label}/{file}": digest for label, name in labels.items() for file, digest in _hashes(name).items()}


def _hashes(name: str) -> dict[str, str]:
    if not is_index(Path(name)):
        return model_hashes(name)
    manifest = read_manifest(Path(name))
    return {"index": manifest.folder, "prompts": manifest.encoder.prompts}


def contents_of(corpus: Path, wanted: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield id and content of the wanted documents of a corpus file."""
    return ((name, document.content) for name, document in stream_documents(corpus) if name in wanted)


def search_words(
    corpus: Path, queries: Mapping[str, str], config: MineConfig, step: Callable[[int], None] | None
) -> Iterator[Ranking]:
    """Answer all queries with BM25 in blocks of queries; the words of the corpus are in memory."""
    filled = [(name, document.content) for name, document in stream_documents(corpus) if document.content]
    index = BM25([name for name, _ in filled], [text for _, text in filled])
    for block in _blocks(queries):
        yield index.search(block, config.depth)
        if step is not None:
            step(len(block))


def open_dense(name: str, config: MineConfig, corpus: str) -> SearchIndex | SentenceTransformer:
    """Load a retriever other than BM25, with the instructions of the task; `corpus` is the hash of the file."""
    path = Path(name)
    if not is_index(path):
        encoder = build_encoder(name, config.max_length)
        use_task(encoder, config.task if encoder.instructions is not None else None)
        prompt_for(encoder, "query")  # a missing task fails before the corpus is encoded
        return encoder
    manifest = read_manifest(path)
    length = manifest.encoder.max_length
    if manifest.corpus != corpus or config.max_length not in (None, length):
        got = "another corpus" if manifest.corpus != corpus else f"the first {length or 'all'} tokens of a text"
        raise InputError(
            f"--retriever {path}: got an index of {got}; expected an index of the mined corpus, with the given "
            "max_length, if any; fix: make it again with `bixse index`, or name the model"
        )
    opened = open_index(path)
    if config.task is not None and getattr(opened.model, "instructions", None) is not None:
        opened.close()
        return open_index(path, opened.model, config.task)
    return opened


def index_of(
    encoder: SentenceTransformer, name: str, config: MineConfig, folder: Path, progress: ProgressBars | None
) -> SearchIndex:
    """Make and open the index of an encoder; a killed run finds what was encoded."""
    task = config.task if getattr(encoder, "instructions", None) is not None else None
    settings = IndexSettings(
        model=name,
        collection=config.files()["corpus"],
        task=task,
        max_length=config.max_length,
        cache=config.cache,
        precision=config.precision,
    )
    make_index(settings, folder, progress, encoder)
    return open_index(folder, encoder)


def search_index(
    index: SearchIndex,
    queries: Mapping[str, str],
    config: MineConfig,
    empty: AbstractSet[str],
    step: Callable[[int], None] | None,
) -> Iterator[Ranking]:
    """Answer all queries by an index in blocks of queries, without `empty` documents."""
    # The index holds documents without text too; they are removed after the search.
    depth = config.depth + min(len(empty), MOST_EMPTY)
    for block in _blocks(queries):
        answers = index.search_run(block, depth)
        for query_id, answer in answers.items():
            remaining = ((name, score) for name, score in answer.items() if name not in empty)
            answers[query_id] = dict(islice(remaining, config.depth))
        yield answers
        if step is not None:
            step(len(block))


def save_answers(answers: Iterable[Ranking], path: Path, tag: str) -> None:
    """Write answers as a complete TREC run; the file is empty if nothing was found."""
    with atomic_file(path) as file:
        for run in answers:
            file.writelines(line.encode() for line in run_lines(run, tag))


def document_ids_of(paths: Iterable[Path]) -> set[str]:
    """Return the ids of all documents in TREC runs."""
    ids: set[str] = set()
    for path in paths:
        with path.open(encoding="utf-8") as file:
            ids.update(line.split()[2] for line in file)
    return ids


def read_answers(paths: Mapping[str, Path], queries: Mapping[str, str]) -> Iterator[dict[str, dict[str, float]]]:
    """Yield per query label -> document id -> score; `queries` are in file order, and one at a time is in memory."""
    runs = {label: _run_of(path) for label, path in paths.items()}
    following = {label: next(run, None) for label, run in runs.items()}
    for query_id in queries:
        rankings = {}
        for label, answer in following.items():
            if answer is not None and answer[0] == query_id:  # files skip queries without an answer
                rankings[label] = answer[1]
                following[label] = next(runs[label], None)
        yield rankings


def _run_of(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    with path.open(encoding="utf-8") as file:
        # `save_answers` wrote the lines of a query one after the other.
        for query_id, rows in groupby(map(str.split, file), key=lambda row: row[0]):
            yield query_id, {row[2]: float(row[4]) for row in rows}


def _blocks(queries: Mapping[str, str]) -> Iterator[dict[str, str]]:
    rest = iter(queries.items())
    while block := dict(islice(rest, BLOCK)):
        yield block
