"""Mine pairs that are worth grading from a corpus and queries."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import as_pairs, open_pairs
from bixse.data.run import Run, open_run
from bixse.data.trec import check_word
from bixse.encoders.loading.build import model_path_settings
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import InputError
from bixse.evaluation.systems import EncoderSystem, System
from bixse.files.files import alone_in, work_folder
from bixse.files.parquet import read_table
from bixse.mining.candidates import Candidate, choose, fuse, keep_new, rank_band, text_key
from bixse.mining.mine_settings import MineConfig, hashes_of, objects_among, read_inputs
from bixse.mining.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs
from bixse.mining.retrievers import (
    SavedRun,
    named_retrievers,
    open_retriever,
    read_answers,
    retriever_hashes,
    retriever_labels,
)
from bixse.progress import progress_bar
from bixse.rendering.table import format_table
from bixse.search.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.search.tasks import Task

log = logging.getLogger(__name__)

WORK = ".searching"
"""Subfolder of the run for the best documents so far, deleted when the pairs are written."""


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
    retrievers: Any = (BM25_NAME,),
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
        retrievers: one or several: "bm25", a model (a name, a folder, or a `SentenceTransformer`), the folder of an
            index of the corpus, a run {query id: {document id: score}}, or a function. The function gets the text of
            one query, and returns document ids, best first, or (id, score) pairs.
        per_query: number of documents per query; None means 8.
        known: graded pairs in any form of `train`, which are not mined again.
        out: folder for the files of `bixse mine`, which the same call reads again; None leaves no file. With a folder,
            ids must have no white space, and a function counts as the same if its name is the same.
        verbose: show progress.
        settings: options of `bixse mine` under the same names, such as `strategy` or `seed`.

    Returns:
        Pairs to pass to `grade`: they have no relevance yet, and a mined document is no negative.

    Raises:
        InputError: queries, corpus, retrievers or settings cannot be used, or no candidate for any query.

    Example:
        >>> corpus = {"d1": "copy a folder: shutil.copytree", "d2": {"title": "os", "text": "remove a file"}}
        >>> mine({"q1": "copy a tree of files"}, corpus, retrievers=["bm25", lambda query: ["d2"]], verbose=False)
        Pairs(2 pairs, 1 queries, not graded)
    """
    held, files = objects_among(queries, corpus, known)
    named = named_retrievers(retrievers)
    config = MineConfig.of_options(settings, retrievers=list(named), per_query=per_query, **files)
    for name in ("corpus", "queries") if out is not None else ():
        for word in held.get(name, ()):  # the files of a folder cannot hold every id
            check_word(f"{name} with out: id", word)
    with work_folder(out, "mine") as run, use_precision(config.precision):
        result = _mine(config, run, progress_bar if verbose else None, named, held, is_temporary=out is None)
        for line in result.warnings:
            log.warning("%s", line)
        path = run / result.path
        return open_pairs(path) if out is not None else as_pairs(read_table(path), graded=False)


def mine_into(config: MineConfig, out: str | Path, progress: ProgressBars | None = None) -> MineResult:
    """Search with every retriever, fuse the rankings, and select the documents of each query to grade.

    The pairs have no relevance: a mined document is no negative until a judge grades it. `out` receives the pairs, the
    TREC run of each retriever and run.json. The same call continues an interrupted run and reuses a finished one.
    The corpus is read in blocks and searched as `evaluate` does; BM25 alone holds it in memory.

    Raises:
        InputError: a file, setting or retriever that cannot be used, or no candidate for any query.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.
    """
    with use_precision(config.precision):
        return _mine(config, Path(out), progress)


def _mine(
    config: MineConfig,
    out: Path,
    progress: ProgressBars | None,
    named: Mapping[str, str | System] | None = None,
    held: Mapping[str, Any] | None = None,
    is_temporary: bool = False,
) -> MineResult:
    labels = retriever_labels(config.retrievers, named or ())
    retrievers = {label: (named or {}).get(name, name) for label, name in labels.items()}
    record = _open(config, labels, {} if is_temporary else retrievers, out, hashes_of(config.files(), held or {}))
    if record.status == "finished":
        return record.result(MineResult, lambda _: [MINED_FILE])
    task, known = read_inputs(config, held)
    runs = {label: SavedRun(out / f"run.{label}.trec", is_temporary) for label in labels}
    pending = {label: open_retriever(retrievers[label], config) for label in labels if not runs[label].path.exists()}
    doubts: dict[str, list[str]] = dict(record.results.get("doubts", {}))  # of retrievers of an interrupted call
    doubts |= {label: [*system.check_answers(task, refuse=True)] for label, system in pending.items()}
    record.save("running")
    with alone_in(out / WORK):
        for label, system in pending.items():
            started = time.perf_counter()
            runs[label].save(_answers(label, system, task, config.depth, out / WORK, progress), label)
            doubts[label] += [f"{label}{note.removeprefix(system.label)}" for note in system.notes]
            record.timings[f"search with {label}"] = time.perf_counter() - started
            record.results = {"doubts": doubts}
            record.save("running")
            system.release()
        warnings = (*task.warnings, *(line for label in labels for line in doubts.get(label, ())))
        return _finish(config, runs, replace(task, warnings=warnings), known, record)


def _answers(
    label: str, system: System, task: Task, depth: int, work: Path, progress: ProgressBars | None
) -> Iterator[Ranking]:
    """Yield the answers of a retriever in blocks of queries, and report documents and queries."""
    step = count = None
    if progress is not None and isinstance(system, EncoderSystem):
        step = progress("encode documents", task.count)
    for _, run in system.answers(task, depth, work / f"{label}.npz", step):
        yield run
        if progress is not None:
            # two bars at once would move the cursor, which a notebook shows as codes
            count = count or progress(f"search with {label}", len(task.query_sets[0].queries))
            count(len(run))


def _finish(
    config: MineConfig, runs: dict[str, SavedRun], task: Task, known: Mapping[str, set[str]], record: Run
) -> MineResult:
    out, path, (asked,) = record.folder, record.folder / MINED_FILE, task.query_sets
    pairs, counts = _choose(config, runs, task, known)
    if not pairs:
        record.save("failed")
        shutil.rmtree(out / WORK, ignore_errors=True)
        raise InputError(
            f"{out}: got no candidate for any of {len(asked.queries)} queries; expected some; fix: check that "
            "corpus and queries are of one language, or add a retriever (--retriever demo)"
        )
    mined = Counter(pair.query_id for pair in pairs)
    silent = [label for label, run in runs.items() if not run.path.stat().st_size]
    for label in silent:
        runs[label].path.unlink()
    save_mined_pairs(pairs, path)
    result = MineResult(
        path=path.name,
        pairs=len(pairs),
        queries=len(asked.queries),
        bands=_bands(pairs, list(runs)),
        without_candidates=[query_id for query_id in asked.queries if query_id not in mined],
        with_fewer=sum(count < config.count for count in mined.values()),
        known=counts["known"],
        copies=counts["copies"],
        empty_documents=len(asked.left_out),
        runs={label: run.path.name for label, run in runs.items() if label not in silent},
        warnings=[*task.warnings, *(f"{label} found no document for any query" for label in silent)],
    )
    record.results = asdict(result)
    record.save("finished")
    shutil.rmtree(out / WORK, ignore_errors=True)
    return result


def _open(
    config: MineConfig,
    labels: Mapping[str, str],
    retrievers: Mapping[str, str | System],
    out: Path,
    hashes: Mapping[str, str],
) -> Run:
    """Open the record of this run; hashes of files count, their paths do not."""
    inputs = dict(hashes)
    for label, given in retrievers.items():
        inputs |= {f"{label}/{file}": digest for file, digest in retriever_hashes(given).items()}
    # The location of a folder does not decide what it finds.
    names = [label if model_path_settings(name) else name for label, name in labels.items()]
    settings = config.identity() | {"retrievers": names, "models": list(labels.values())}
    # BM25 computes without a model, so the dtype does not change its rankings.
    if any(name != BM25_NAME for name in labels.values()):
        settings["precision"] = resolve_precision()
    return open_run(out, "mine", settings, inputs, paths=("collection", "corpus", "queries", "known", "models"))


def _choose(
    config: MineConfig, runs: Mapping[str, SavedRun], task: Task, known: Mapping[str, set[str]]
) -> tuple[list[MinedPair], Counter[str]]:
    """Select the pairs per query, in query order and by rank, and count the candidates left out."""
    queries = task.query_sets[0].queries
    wanted = {name for run in runs.values() for _, hits in run for name in hits}
    wanted.update(*(known.get(query_id, ()) for query_id in queries))
    # First pass over the corpus: only hashes of texts are in memory, to tell copies apart.
    keys = {name: text_key(content) for name, content in task.documents() if name in wanted and content}
    chosen: list[tuple[str, Candidate]] = []
    counts: Counter[str] = Counter()
    for (query_id, query), answers in zip(queries.items(), read_answers(runs, queries), strict=True):
        # A given run may name documents without text, and some that the corpus lacks.
        candidates = [candidate for candidate in fuse(answers, config.depth) if candidate.document_id in keys]
        new, left_out = keep_new(candidates, query, keys, known.get(query_id, ()))
        counts.update(left_out)
        ids = [candidate.document_id for candidate in new]
        positions = choose(config.strategy, ids, config.count, config.seed, query_id)
        chosen += [(query_id, new[position]) for position in positions]
    # Second pass: texts of the selected documents alone.
    selected = {candidate.document_id for _, candidate in chosen}
    contents = {name: content for name, content in task.documents() if name in selected}
    pairs = [
        MinedPair(query_id, queries[query_id], pick.document_id, contents[pick.document_id], config.task,
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
