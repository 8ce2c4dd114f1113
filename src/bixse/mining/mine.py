"""`mine`: from a corpus and queries to pairs that are worth grading."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.io.files import hash_files
from bixse.data.run_record import open_run
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.mining.candidates import fuse, keep_new
from bixse.mining.mine_inputs import read_inputs
from bixse.mining.mined_pairs import MinedPair, pairs_path, save_mined_pairs
from bixse.mining.searching import load_encoder, open_search, read_answers, retriever_labels, save_answers
from bixse.mining.selection import choose, rank_band
from bixse.report.table import format_table
from bixse.retrieval.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.data.run_record import RunRecord
    from bixse.mining.mine_inputs import MineInputs
    from bixse.mining.mine_settings import MineConfig
    from bixse.progress import ProgressBars


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

    Raises:
        InputError: a file, setting or retriever that cannot be used, or no candidate for any query.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.

    Example:
        Eight documents per query, from the top down to rank 100, found by words or by meaning::

            mine(MineConfig(collection="data", split="train", retrievers=["bm25", "demo"]), "runs/mined")
    """
    out = Path(out)
    path = pairs_path(out, config.format)
    labels = retriever_labels(config.retrievers)
    record = _open(config, labels, out)
    if record.status == "finished":
        return _finished(record, path)
    inputs = read_inputs(config)
    runs = {label: out / f"run.{label}.trec" for label in labels}
    _search(config, {label: labels[label] for label in runs if not runs[label].exists()}, inputs, record, progress)
    pairs, counts = _choose(config, runs, inputs)
    if not pairs:
        record.save("failed")
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
        bands=_bands(pairs, list(labels)),
        without_candidates=[query_id for query_id in inputs.queries if query_id not in mined],
        with_fewer=sum(count < config.count for count in mined.values()),
        known=counts["known"],
        copies=counts["copies"],
        empty_documents=inputs.empty_documents,
        runs={label: run.name for label, run in runs.items() if label not in silent},
        warnings=[*inputs.warnings, *(f"{label} found no document for any query" for label in silent)],
    )
    record.results = asdict(result)
    record.save("finished")
    return result


def _open(config: MineConfig, labels: dict[str, str], out: Path) -> RunRecord:
    """The record of this run; files are hashed, and where they lie does not count."""
    inputs = hash_files(config.files())
    for label, name in labels.items():
        inputs |= {f"{label}/{file}": digest for file, digest in model_hashes(name).items()}
    settings = config.identity() | {
        "retrievers": [label if model_path_settings(name) else name for label, name in labels.items()],
        "models": list(labels.values()),
    }
    if any(name != BM25_NAME for name in labels.values()):
        settings["precision"] = resolve_precision()
    return open_run(out, "mine", settings, inputs, paths=("collection", "corpus", "queries", "known", "models"))


def _finished(record: RunRecord, path: Path) -> MineResult:
    try:
        if path.is_file():
            return MineResult(**{**record.results, "reused": True})
    except TypeError:
        pass
    raise InputError(
        f"{record.folder}: got missing or damaged results; expected the {path.name} and run.json of a finished run; "
        "fix: delete the folder and mine again"
    )


def _search(
    config: MineConfig,
    labels: dict[str, str],
    inputs: MineInputs,
    record: RunRecord,
    progress: ProgressBars | None,
) -> None:
    encoders = {label: load_encoder(name, config) for label, name in labels.items()}
    record.save("running")
    for label in labels:
        started = time.perf_counter()
        search = open_search(encoders.pop(label), inputs.corpus, config, progress)
        step = progress(f"search with {label}", len(inputs.queries)) if progress is not None else None
        save_answers(search, inputs.queries, record.folder / f"run.{label}.trec", label, step)
        record.timings[f"search with {label}"] = time.perf_counter() - started


def _choose(config: MineConfig, runs: dict[str, Path], inputs: MineInputs) -> tuple[list[MinedPair], Counter[str]]:
    """The pairs of every query in the order of the queries, each query's by rank; and what was left out."""
    pairs: list[MinedPair] = []
    counts: Counter[str] = Counter()
    for (query_id, query), answers in zip(inputs.queries.items(), read_answers(runs, inputs.queries), strict=True):
        found = fuse(answers, config.depth)
        new = keep_new(found, query, inputs.corpus, inputs.known.get(query_id, ()))
        counts.update(known=new.known, copies=new.copies)
        ids = [candidate.document_id for candidate in new.candidates]
        for place in choose(config.strategy, ids, config.count, config.seed, query_id):
            one = new.candidates[place]
            document = inputs.corpus[one.document_id].content
            pairs.append(MinedPair(query_id, query, one.document_id, document, config.task, one.source, one.rank))
    return pairs, counts


def _bands(pairs: list[MinedPair], labels: list[str]) -> dict[str, dict[str, int]]:
    bands: dict[str, dict[str, int]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.rank):
        band = bands.setdefault(rank_band(pair.rank), dict.fromkeys(["pairs", *labels], 0))
        for name in ("pairs", *pair.retrievers):
            band[name] += 1
    return bands
