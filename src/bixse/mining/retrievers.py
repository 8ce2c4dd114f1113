"""The retrievers of a mining run: their labels, how they are opened, and their rankings on disk."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from bixse.data.trec import run_lines
from bixse.encoders.loading.build import model_hashes
from bixse.errors import InputError
from bixse.evaluation.open_system import RUN_SUFFIXES, open_system, run_file
from bixse.evaluation.systems import EncoderSystem, System
from bixse.files.files import atomic_file
from bixse.index.index_files import is_index, read_manifest
from bixse.index.search import IndexSystem
from bixse.search.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.mining.mine_settings import MineConfig
    from bixse.relevance import Ranking

KNOWN_NAMES = (BM25_NAME, "demo")
"""Names of retrievers that are neither a folder nor a hub name."""


def named_retrievers(given: Any) -> dict[str, str | System]:
    """Return name -> retriever: names and folders as they are, objects by a number; refuse one that is named twice."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    systems = [str(each) if isinstance(each, str | Path) else open_system(each) for each in several]
    names = [x if isinstance(x, str) else f"{x.label}-{n}" for n, x in enumerate(systems, 1)]
    named = dict(zip(names, systems, strict=True))
    retriever_labels(names, {name for name, system in named.items() if isinstance(system, System)})
    return named


def retriever_labels(names: Sequence[str], objects: Container[str] = ()) -> dict[str, str]:
    """Return label -> retriever in the given order; labels appear in file names and in the column `source`.

    Names of `objects` are not looked up as files, and have no misspelling.
    """
    for name in (name for name in names if name not in objects):
        if Path(name).is_file() and run_file(Path(name)) is None:
            raise InputError(
                f"--retriever: got the file {name!r}; expected bm25, demo, a model folder, a hub name, an index or a "
                f"run file ({', '.join(RUN_SUFFIXES)}); fix: check the path, or rename the run"
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


def retriever_hashes(given: str | System) -> Mapping[str, str]:
    """Return the hashes of what a retriever's answers depend on; BM25 and hub names have none."""
    if isinstance(given, str) and is_index(Path(given)):
        manifest = read_manifest(Path(given))
        return {"index": manifest.folder, "prompts": manifest.encoder.prompts}
    system = open_system(given)
    return model_hashes(given) if isinstance(given, str) and isinstance(system, EncoderSystem) else system.inputs


def open_retriever(given: str | System, config: MineConfig) -> System:
    """Load a retriever with the settings of a run; raise InputError, before any search, if they do not suit it."""
    system = open_system(given)
    if isinstance(system, EncoderSystem):
        if config.max_length is not None and not isinstance(given, str):
            raise InputError(
                f"max_length: got {config.max_length} with a loaded model; expected None; fix: set its max_seq_length"
            )
        system = copy.copy(system)  # the caller's object stays as it is
        system.cache, system.max_length = config.cache or system.cache, config.max_length or system.max_length
        if getattr(system.encoder, "instructions", None) is not None:
            system.task = config.task
    if isinstance(system, IndexSystem):
        recorded, model = system.opened.manifest.encoder.max_length, system.opened.model
        if config.max_length not in (None, recorded):
            raise InputError(
                f"--retriever {system.label}: got an index of the first {recorded or 'all'} tokens of a text; expected "
                f"max_length {config.max_length}; fix: make it again with `bixse index`, or name the model"
            )
        if config.task is not None and getattr(model, "instructions", None) is not None:
            system.release()
            system = IndexSystem(system.label, config.task, model_at=model)
    system.check(())
    return system


@dataclass(frozen=True)
class SavedRun:
    """The ranking of a retriever in a TREC file, written and read in blocks of queries.

    Ids of a temporary file are escaped: those of objects in memory may hold white space.
    """

    path: Path
    is_temporary: bool

    def save(self, blocks: Iterable[Ranking], tag: str) -> None:
        """Write the file completely or not at all; it is empty if nothing was found."""
        with atomic_file(self.path) as file:
            for run in blocks:
                if self.is_temporary:  # its ids may have white space
                    run = {quote(q, safe=""): {quote(d, safe=""): hits[d] for d in hits} for q, hits in run.items()}
                file.writelines(line.encode() for line in run_lines(run, tag))

    def __iter__(self) -> Iterator[tuple[str, dict[str, float]]]:
        read: Callable[[str], str] = unquote if self.is_temporary else str
        with self.path.open(encoding="utf-8") as file:
            # `save` wrote the lines of a query one after the other.
            for query_id, rows in groupby(map(str.split, file), key=lambda row: row[0]):
                yield read(query_id), {read(row[2]): float(row[4]) for row in rows}


def read_answers(runs: Mapping[str, SavedRun], queries: Mapping[str, str]) -> Iterator[dict[str, dict[str, float]]]:
    """Yield per query label -> document id -> score; `queries` are in file order, and one at a time is in memory."""
    rest = {label: iter(run) for label, run in runs.items()}
    following = {label: next(run, None) for label, run in rest.items()}
    for query_id in queries:
        rankings = {}
        for label, answer in following.items():
            if answer is not None and answer[0] == query_id:  # files skip queries without an answer
                rankings[label] = answer[1]
                following[label] = next(rest[label], None)
        yield rankings
