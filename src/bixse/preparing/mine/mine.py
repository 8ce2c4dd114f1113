"""`mine`: from a corpus and queries to pairs that are worth grading."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection import stream_documents
from bixse.data.run import RUN_FILE, open_run
from bixse.encoders.loading.build import model_path_settings
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import InputError
from bixse.files.files import alone_in, hash_files
from bixse.preparing.mine.candidates import fuse, keep_new, text_key
from bixse.preparing.mine.mine_inputs import read_inputs
from bixse.preparing.mine.mined_pairs import MinedPair, pairs_path, save_mined_pairs
from bixse.preparing.mine.searching import (
    found_ids,
    open_dense,
    read_answers,
    retriever_hashes,
    retriever_labels,
    save_answers,
    search_words,
)
from bixse.preparing.mine.selection import choose, rank_band
from bixse.report.table import format_table
from bixse.scale.engines.job import is_marked, mark
from bixse.scale.index.index_files import stream_texts, write_texts
from bixse.scale.index.shards import TEXTS
from bixse.search.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.data.run import Run
    from bixse.preparing.mine.candidates import Candidate
    from bixse.preparing.mine.mine_inputs import MineInputs
    from bixse.preparing.mine.mine_settings import MineConfig
    from bixse.progress import ProgressBars

WORK = ".searching"
"""Folder in that of the run for texts and shards, until the pairs are there."""


@dataclass(frozen=True)
class MineResult:
    """What a mining run left."""

    path: str
    pairs: int
    queries: int
    bands: dict[str, dict[str, int]]
    """Band of the fused rank -> "pairs" and each retriever -> pairs it found, from the top down."""
    without_candidates: list[str]
    with_fewer: int
    """Queries that got some, but fewer than asked for."""
    known: int
    """Candidates left out because their grade is known."""
    copies: int
    """Candidates left out because a better one, or the query itself, has the same text."""
    empty_documents: int
    """Documents without text, which were not searched."""
    runs: dict[str, str]
    """Retriever -> its TREC run."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False
    """The run was finished before; nothing was searched."""
    waiting: int = 0
    """Shards that other ranks have not done yet: there are no pairs until they have."""

    def text(self) -> str:
        """Pairs by band of rank, and what was left out."""
        labels = list(self.runs)
        rows: list[list[str | int]] = [
            [band, counts["pairs"], *(counts[label] for label in labels)] for band, counts in self.bands.items()
        ]
        left_out = {
            "known pairs": self.known,
            "copies of a text": self.copies,
            "empty documents": self.empty_documents,
            "queries with fewer documents than asked for": self.with_fewer,
        }
        table = format_table(rows, ["rank", "pairs", *(f"found by {label}" for label in labels)])
        heading = f"{self.pairs} pairs of {self.queries} queries, to be graded"
        return "\n".join([heading, "", table, "", *(f"{what}: {count}" for what, count in left_out.items() if count)])


def mine(config: MineConfig, out: str | Path, progress: ProgressBars | None = None) -> MineResult:
    """Search with every retriever, fuse the rankings, and choose the documents of each query that are to be graded.

    The pairs have no relevance: a mined document is no negative until a judge has said so. `out` receives the pairs,
    the TREC run of each retriever and run.json. The same call continues an interrupted run and reuses a finished one.
    Encoders search shard by shard, in memory that does not depend on the number of documents; of several ranks the one
    that is last chooses the pairs.

    Raises:
        InputError: a file, setting or retriever that cannot be used, or no candidate for any query.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.
        IncompleteError: a shard failed twice; the others are kept.

    Example:
        Eight documents per query, from the top down to rank 100, found by words or by meaning::

            mine(MineConfig(collection="data", split="train", retrievers=["bm25", "demo"]), "runs/mined")
    """
    with use_precision(config.precision):
        return _mine(config, Path(out), progress)


def _mine(config: MineConfig, out: Path, progress: ProgressBars | None) -> MineResult:
    path = pairs_path(out, config.format)
    labels = retriever_labels(config.retrievers)
    devices, warnings = config.chosen_devices()
    precision = resolve_precision(device=devices[0] if devices else None)
    record = _open(config, labels, out, precision)
    if record.status == "finished":
        return record.result(MineResult, lambda _: [path.name])
    place = config.chosen_engine(here=True)
    inputs = read_inputs(config)
    runs = {label: out / f"run.{label}.trec" for label in labels}
    missing = {label: labels[label] for label in runs if not runs[label].exists()}
    texts = (out / WORK / TEXTS).absolute()
    dense = {
        label: open_dense(name, config, out / WORK / label, record.inputs["corpus"], inputs.documents, precision)
        for label, name in missing.items()
        if name != BM25_NAME
    }
    if not (place.shared and (out / RUN_FILE).exists()):
        record.save("running")
    if not is_marked(texts, record.inputs["corpus"]):
        write_texts(texts, stream_documents(config.files()["corpus"]), inputs.documents)
        mark(texts, record.inputs["corpus"])
    waiting = 0
    for label, search in dense.items():
        started = time.perf_counter()
        waiting += search.search(inputs.queries, place, devices, progress, f"search with {label}")
        record.timings[f"search with {label}"] = time.perf_counter() - started
    if waiting:
        return MineResult(path.name, 0, len(inputs.queries), {}, [], 0, 0, 0, inputs.empty_documents, {}, warnings,
                          waiting=waiting)  # fmt: skip
    with alone_in(out / WORK, wait=True) if place.shared else nullcontext():
        if place.shared and (found := _open(config, labels, out, precision)).status == "finished":
            shutil.rmtree(out / WORK, ignore_errors=True)
            return found.result(MineResult, lambda _: [path.name])  # another rank was faster
        for label in missing:
            if label in dense:
                answers = dense[label].answers(inputs.queries, config)
            else:
                step = progress(f"search with {label}", len(inputs.queries)) if progress is not None else None
                answers = search_words(texts, inputs.queries, config, step)
            save_answers(answers, runs[label], label)
        return _finish(config, runs, inputs, record, texts, warnings)


def _finish(
    config: MineConfig, runs: dict[str, Path], inputs: MineInputs, record: Run, texts: Path, warnings: list[str]
) -> MineResult:
    """Choose and write the pairs."""
    out, path = record.folder, pairs_path(record.folder, config.format)
    pairs, counts = _choose(config, runs, inputs, texts)
    if not pairs:
        record.save("failed")
        shutil.rmtree(out / WORK, ignore_errors=True)
        raise InputError(
            f"{out}: got no candidate for any of {len(inputs.queries)} queries; expected some; fix: check that "
            "corpus and queries are of one language, or add a retriever (--retriever demo)"
        )
    mined = Counter(pair.query_id for pair in pairs)
    silent = [label for label, run in runs.items() if not run.stat().st_size]
    for label in silent:
        runs[label].unlink()
    save_mined_pairs(pairs, path)
    result = MineResult(
        path=path.name,
        pairs=len(pairs),
        queries=len(inputs.queries),
        bands=_bands(pairs, list(runs)),
        without_candidates=[query_id for query_id in inputs.queries if query_id not in mined],
        with_fewer=sum(count < config.count for count in mined.values()),
        known=counts["known"],
        copies=counts["copies"],
        empty_documents=inputs.empty_documents,
        runs={label: run.name for label, run in runs.items() if label not in silent},
        warnings=[*warnings, *inputs.warnings, *(f"{label} found no document for any query" for label in silent)],
    )
    record.results = asdict(result)
    record.save("finished")
    shutil.rmtree(out / WORK, ignore_errors=True)
    return result


def _open(config: MineConfig, labels: dict[str, str], out: Path, precision: str) -> Run:
    """The record of this run; files are hashed, and where they lie does not count."""
    inputs = hash_files(config.files())
    for label, name in labels.items():
        inputs |= {f"{label}/{file}": digest for file, digest in retriever_hashes(name).items()}
    settings = config.identity() | {
        "retrievers": [label if model_path_settings(name) else name for label, name in labels.items()],
        "models": list(labels.values()),
    }
    if any(name != BM25_NAME for name in labels.values()):
        settings["precision"] = precision
    return open_run(out, "mine", settings, inputs, paths=("collection", "corpus", "queries", "known", "models"))


def _choose(
    config: MineConfig, runs: dict[str, Path], inputs: MineInputs, texts: Path
) -> tuple[list[MinedPair], Counter[str]]:
    """The pairs of every query in the order of the queries, each query's by rank; and what was left out.

    The corpus is read twice: for what tells copies of a text apart, and for the texts of the chosen documents.
    """
    asked = found_ids(runs.values()).union(*(inputs.known.get(query_id, ()) for query_id in inputs.queries))
    keys = {name: text_key(document.content) for name, document in stream_texts(texts) if name in asked}
    chosen: list[tuple[str, Candidate]] = []
    counts: Counter[str] = Counter()
    for (query_id, query), answers in zip(inputs.queries.items(), read_answers(runs, inputs.queries), strict=True):
        new = keep_new(fuse(answers, config.depth), query, keys, inputs.known.get(query_id, ()))
        counts.update(known=new.known, copies=new.copies)
        ids = [candidate.document_id for candidate in new.candidates]
        places = choose(config.strategy, ids, config.count, config.seed, query_id)
        chosen += [(query_id, new.candidates[place]) for place in places]
    asked = {one.document_id for _, one in chosen}
    contents = {name: document.content for name, document in stream_texts(texts) if name in asked}
    pairs = [
        MinedPair(query_id, inputs.queries[query_id], one.document_id, contents[one.document_id], config.task,
                  one.source, one.rank)
        for query_id, one in chosen
    ]  # fmt: skip
    return pairs, counts


def _bands(pairs: list[MinedPair], labels: list[str]) -> dict[str, dict[str, int]]:
    bands: dict[str, dict[str, int]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.rank):
        band = bands.setdefault(rank_band(pair.rank), dict.fromkeys(["pairs", *labels], 0))
        for name in ("pairs", *pair.retrievers):
            band[name] += 1
    return bands
