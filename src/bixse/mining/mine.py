"""Mine pairs that are worth grading from a corpus and queries."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection import as_collection, save_collection
from bixse.data.pairs_files import open_pairs, pairs_files
from bixse.data.run import Run, open_run
from bixse.encoders.loading.build import model_name
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import InputError
from bixse.files.files import alone_in, hash_files, work_folders
from bixse.index.search import SearchIndex
from bixse.mining.candidates import Candidate, choose, fuse, keep_new, rank_band, text_key
from bixse.mining.mine_settings import MineConfig, MineInputs, read_inputs
from bixse.mining.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs
from bixse.mining.searching import (
    contents_of,
    document_ids_of,
    index_of,
    inputs_of,
    open_dense,
    read_answers,
    retriever_labels,
    save_answers,
    search_index,
    search_words,
    settings_of,
)
from bixse.progress import progress_bar
from bixse.report.table import format_table
from bixse.search.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.progress import ProgressBars

log = logging.getLogger(__name__)

WORK = ".searching"
"""Subfolder of the run for indexes, deleted when the pairs are written."""


@dataclass(frozen=True)
class MineResult:
    """The outcome of a mining run: the pairs to grade, and the numbers of candidates left out."""

    path: str
    pairs: int
    queries: int
    bands: dict[str, dict[str, int]]
    """Band of the fused rank, from the top down -> number of pairs in total ("pairs") and per retriever."""
    without_candidates: list[str]
    with_fewer: int
    """Queries with some candidates, but fewer than requested."""
    known: int
    """Candidates left out because their grade is known."""
    copies: int
    """Candidates left out because a better candidate, or the query itself, has the same text."""
    empty_documents: int
    """Documents without text; they are not searched."""
    runs: dict[str, str]
    """Retriever -> file of its TREC run."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False
    """True if the run was finished before; nothing was searched."""

    def text(self) -> str:
        """Return a table of the pairs per band of rank, and the numbers of candidates left out."""
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


def mine(
    queries: Mapping[str, str] | str | Path,
    corpus: Mapping[str, Any] | str | Path,
    retrievers: Sequence[Any] = (BM25_NAME,),
    per_query: int | None = None,
    *,
    known: Any = None,
    out: str | Path | None = None,
    verbose: bool = True,
    **settings: Any,
) -> Pairs:
    """Mine pairs that are worth grading: documents from all ranks of the fused rankings of the retrievers.

    Args:
        queries: query id -> text, or a file.
        corpus: document id -> text or {"title", "text"}, or a file.
        retrievers: "bm25", and models: a name, a folder, or a `SentenceTransformer`.
        per_query: number of documents per query; None means 8.
        known: graded pairs in any form of `train`, which are not mined again.
        out: folder for the files of `bixse mine`, which the same call reads again; None leaves no file.
        verbose: show progress.
        settings: options of `bixse mine` under the same names, such as `strategy` or `seed`.

    Returns:
        Pairs to pass to `grade`: they have no relevance yet, and a mined document is no negative.

    Raises:
        InputError: queries, corpus, retrievers or settings cannot be used, or no candidate for any query.

    Example:
        >>> corpus = {"d1": "copy a folder: shutil.copytree", "d2": {"title": "os", "text": "remove a file"}}
        >>> mine({"q1": "copy a tree of files"}, corpus, retrievers=["bm25"], verbose=False)
        Pairs(2 pairs, 1 queries, not graded)
    """
    with work_folders(out, "mine") as (folder, run):
        files: dict[str, Any] = {"queries": queries, "corpus": corpus}
        if not all(isinstance(file, str | Path) for file in files.values()):
            save_collection(as_collection((queries, corpus), None), folder)
            files = {name: folder / f"{name}.jsonl" for name in files}
        names = [model_name(each, folder / f"model-{number}") for number, each in enumerate(retrievers, 1)]
        files["known"] = None if known is None else pairs_files(known, folder)
        result = mine_into(
            MineConfig.of_options(settings, retrievers=names, per_query=per_query, **files),
            run,
            progress_bar if verbose else None,
        )
        for line in result.warnings:
            log.warning("%s", line)
        return open_pairs(run / result.path)


def mine_into(config: MineConfig, out: str | Path, progress: ProgressBars | None = None) -> MineResult:
    """Search with every retriever, fuse the rankings, and select the documents of each query to grade.

    The pairs have no relevance: a mined document is no negative until a judge grades it. `out` receives the pairs, the
    TREC run of each retriever and run.json. The same call continues an interrupted run and reuses a finished one.
    The corpus is encoded into an index, so that memory does not depend on the number of documents.

    Raises:
        InputError: a file, setting or retriever that cannot be used, or no candidate for any query.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.
        IncompleteError: a shard of an index failed twice; the other shards are kept.
    """
    with use_precision(config.precision):
        return _mine(config, Path(out), progress)


def _mine(config: MineConfig, out: Path, progress: ProgressBars | None) -> MineResult:
    path = out / MINED_FILE
    labels = retriever_labels(config.retrievers)
    precision = resolve_precision()
    record = _open(config, labels, out, precision)
    if record.status == "finished":
        return record.result(MineResult, lambda _: [path.name])
    inputs, corpus = read_inputs(config), config.files()["corpus"]
    runs = {label: out / f"run.{label}.trec" for label in labels}
    missing = {label: labels[label] for label in runs if not runs[label].exists()}
    dense = {
        label: open_dense(name, config, record.inputs["corpus"]) for label, name in missing.items() if name != BM25_NAME
    }
    record.save("running")
    notes: list[str] = []
    with alone_in(out / WORK):
        for label, name in missing.items():
            started, index = time.perf_counter(), dense.get(label)
            if index is not None and not isinstance(index, SearchIndex):
                index = index_of(index, name, config, out / WORK / label, progress)
            step = progress(f"search with {label}", len(inputs.queries)) if progress is not None else None
            notes += [] if index is None else [f"{label}: {warning}" for warning in index.warnings]
            if index is None:
                answers = search_words(corpus, inputs.queries, config, step)
            else:
                answers = search_index(index, inputs.queries, config, inputs.empty, step)
            save_answers(answers, runs[label], label)
            record.timings[f"search with {label}"] = time.perf_counter() - started
        return _finish(config, runs, replace(inputs, warnings=(*inputs.warnings, *notes)), record, corpus)


def _finish(config: MineConfig, runs: dict[str, Path], inputs: MineInputs, record: Run, corpus: Path) -> MineResult:
    out, path = record.folder, record.folder / MINED_FILE
    pairs, counts = _choose(config, runs, inputs, corpus)
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
        empty_documents=len(inputs.empty),
        runs={label: run.name for label, run in runs.items() if label not in silent},
        warnings=[*inputs.warnings, *(f"{label} found no document for any query" for label in silent)],
    )
    record.results = asdict(result)
    record.save("finished")
    shutil.rmtree(out / WORK, ignore_errors=True)
    return result


def _open(config: MineConfig, labels: dict[str, str], out: Path, precision: str) -> Run:
    """Open the record of this run; hashes of files count, their paths do not."""
    inputs = hash_files(config.files()) | inputs_of(labels)
    settings = config.identity() | settings_of(labels)
    # BM25 computes without a model, so the dtype does not change its rankings.
    if any(name != BM25_NAME for name in labels.values()):
        settings["precision"] = precision
    return open_run(out, "mine", settings, inputs, paths=("collection", "corpus", "queries", "known", "models"))


def _choose(
    config: MineConfig, runs: dict[str, Path], inputs: MineInputs, corpus: Path
) -> tuple[list[MinedPair], Counter[str]]:
    """Select the pairs per query, in query order and by rank, and count the candidates left out."""
    wanted = document_ids_of(runs.values()).union(*(inputs.known.get(query_id, ()) for query_id in inputs.queries))
    # First pass over the corpus: only hashes of texts are in memory, to tell copies apart.
    keys = {name: text_key(content) for name, content in contents_of(corpus, wanted)}
    chosen: list[tuple[str, Candidate]] = []
    counts: Counter[str] = Counter()
    for (query_id, query), answers in zip(inputs.queries.items(), read_answers(runs, inputs.queries), strict=True):
        new = keep_new(fuse(answers, config.depth), query, keys, inputs.known.get(query_id, ()))
        counts.update(known=new.known, copies=new.copies)
        ids = [candidate.document_id for candidate in new.candidates]
        positions = choose(config.strategy, ids, config.count, config.seed, query_id)
        chosen += [(query_id, new.candidates[position]) for position in positions]
    # Second pass: texts of the selected documents alone.
    contents = dict(contents_of(corpus, {candidate.document_id for _, candidate in chosen}))
    pairs = [
        MinedPair(query_id, inputs.queries[query_id], pick.document_id, contents[pick.document_id], config.task,
                  pick.source, pick.rank)
        for query_id, pick in chosen
    ]  # fmt: skip
    return pairs, counts


def _bands(pairs: list[MinedPair], labels: list[str]) -> dict[str, dict[str, int]]:
    bands: dict[str, dict[str, int]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.rank):
        band = bands.setdefault(rank_band(pair.rank), dict.fromkeys(["pairs", *labels], 0))
        for name in ("pairs", *pair.retrievers):
            band[name] += 1
    return bands
