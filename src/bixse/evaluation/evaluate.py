"""Evaluate a model, or BM25, on a collection folder; every figure with its run on disk."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection_files import files_of_split, load_collection
from bixse.data.collection_warnings import RELEVANCE_LEVEL, warn_of_collection
from bixse.data.io.files import file_hash, read_text, write_atomically
from bixse.data.run_record import open_run
from bixse.data.trec import read_run, write_run
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.evaluation.baseline import METRICS, search_bm25
from bixse.evaluation.metrics import PerQuery, evaluate_run, mean
from bixse.retrieval.bm25 import BM25_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.collection import Collection
    from bixse.data.collection_files import MissingDocuments
    from bixse.evaluation.dense_search import EncodedCollection
    from bixse.progress import ProgressBars
    from bixse.relevance import Qrels, Run

RUN_NAME = "run.trec"
PER_QUERY_NAME = "per_query.json"


@dataclass(frozen=True)
class Evaluation:
    """What one system reached on one split."""

    metrics: dict[str, float]
    """Metric -> mean over the judged queries."""
    per_query: PerQuery
    """Metric -> query id -> value."""
    run: Run
    """The answers: query id -> document id -> score."""
    seconds: float
    """Wall time of encoding and search."""
    reused: bool = False
    """Read from an output folder that held this very evaluation."""
    warnings: list[str] = field(default_factory=list)
    """What the user should know."""
    precision: str | None = None
    """What the model computed in; None for BM25."""


def evaluate(
    model: str,
    collection: str | Path,
    split: str = "test",
    out: str | Path | None = None,
    relevance_level: float = RELEVANCE_LEVEL,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    exclude_self: bool = False,
    task: str | None = None,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
    cache: str | Path | None = None,
    missing_documents: MissingDocuments = "refuse",
) -> Evaluation:
    """Search a collection with a model and score the answers against its graded judgements.

    Args:
        model: model folder, hub name, "demo", or "bm25".
        collection: folder in the BEIR layout.
        split: qrels file to score against.
        out: folder for run.json, run.trec and per_query.json; None writes nothing.
        relevance_level: grade from which a document counts as relevant for recall and MRR.
        max_length: tokens of a text that are read; None keeps the model's own.
        trust_remote_code: run code that comes with the model.
        exclude_self: leave the document whose id equals the query's id out of its answers, for collections whose
            queries are also documents (ArguAna, Quora).
        task: task whose instructions the model puts before the texts; None takes its default prompts.
        progress: makes a progress callback from a title and a total.
        devices: where texts are encoded: one device, or one a process, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"];
            None: here.
        cache: folder in which document embeddings are kept, or "none"; None: see `bixse.data.io.cache.cache_folder`.
        missing_documents: of judgements that name a document which the corpus lacks, see
            `bixse.data.collection_files.load_collection`.

    Raises:
        InputError: collection, split or model cannot be used.
        OutputExistsError: `out` holds another run.

    Example:
        Compare a trained model with BM25::

            evaluate("runs/quickstart/bixse/model", "runs/quickstart/collection", split="test").metrics
            evaluate("bm25", "runs/quickstart/collection", split="test").metrics
    """
    folder = Path(collection)
    data = load_collection(folder, [split], missing_documents)
    qrels = data.qrels[split]
    if not relevance_level > 0:
        raise InputError(
            f"relevance level: got {relevance_level}; expected a grade above 0; "
            "fix: give the lowest grade that counts as relevant"
        )
    if task is not None and model == BM25_NAME:
        raise InputError(
            f"task: got {task!r} for bm25, which takes no instructions; expected none; fix: leave the task out"
        )
    precision = None if model == BM25_NAME else resolve_precision(device=devices[0] if devices else None)
    warnings = warn_of_collection(data, split, relevance_level, exclude_self)
    record = None
    if out is not None:
        _check_writable_ids(data, qrels)
        inputs = {name: file_hash(folder / name) for name in files_of_split(split)}
        inputs |= model_hashes(model)
        config = {
            "model": model,
            "collection": folder,
            "split": split,
            "relevance_level": relevance_level,
            "max_length": max_length,
            "exclude_self": exclude_self,
            "task": task,
            **({} if precision is None else {"precision": precision}),
            "missing_documents": missing_documents,
        }
        record = open_run(Path(out), "evaluate", config, inputs, paths=("collection", *model_path_settings(model)))
        if record.status == "finished":
            return replace(_read(Path(out), record.results, warnings), precision=precision)
    encoder = None
    if model != BM25_NAME:
        from bixse.encoders.instructions import prompts_hash, use_task
        from bixse.encoders.loading.build import build_encoder
        from bixse.encoders.prompts import prompt_for

        encoder = build_encoder(model, max_length, trust_remote_code=trust_remote_code)
        use_task(encoder, task)
        prompt_for(encoder, "query")  # a task that is missing is said before the corpus is encoded
    if record is not None:
        record.save("running")
    started = time.perf_counter()
    if encoder is None:
        run: Run = search_bm25(data, list(qrels), exclude_self=exclude_self)
    else:
        from bixse.encoders.pool import encode_on

        with encode_on(encoder, devices):
            encoded = encode_stored(encoder, data, list(qrels), progress, cache)
        run = encoded.search(list(qrels), exclude_self=exclude_self)
    seconds = time.perf_counter() - started
    per_query = evaluate_run(qrels, run, METRICS, relevance_level)
    result = Evaluation(mean(per_query), per_query, run, seconds, precision=precision, warnings=warnings)
    if record is not None:
        write_run(record.folder / RUN_NAME, run, tag="-".join(Path(model).name.split()) or "model")
        write_atomically(record.folder / PER_QUERY_NAME, json.dumps(per_query, indent=1) + "\n")
        record.results = {"metrics": result.metrics, "seconds": seconds}
        if encoder is not None:
            record.results["prompts_hash"] = prompts_hash(encoder)
        record.timings["search"] = seconds
        record.save("finished")
    return result


def encode_stored(
    model: object,
    collection: Collection,
    query_ids: list[str],
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> EncodedCollection:
    """Embed a collection, taking document embeddings from the cache when this very model made them before.

    Args:
        model: a SentenceTransformer.
        collection: corpus and queries.
        query_ids: the queries to embed.
        progress: makes a progress callback from a title and a total.
        cache: folder in which document embeddings are kept, or "none"; None: see `bixse.data.io.cache.cache_folder`.
    """
    from bixse.encoders.encode import encode_texts
    from bixse.evaluation.dense_search import EncodedCollection
    from bixse.retrieval.store import encode_corpus

    documents = encode_corpus(model, collection.corpus, progress, cache)  # type: ignore[arg-type]
    queries = encode_texts(model, [collection.queries[q] for q in query_ids], "query")  # type: ignore[arg-type]
    return EncodedCollection(list(collection.corpus), documents, query_ids, queries)


def _check_writable_ids(data: Collection, qrels: Qrels) -> None:
    """Refuse ids that a TREC run file cannot hold before any work is done."""
    for name, ids in (("document", data.corpus), ("query", qrels)):
        for identifier in ids:
            if identifier.split() != [identifier]:
                raise InputError(
                    f"{name} id: got {identifier!r}; expected no white space (it separates the columns of run.trec); "
                    "fix: rename it, or evaluate without --out"
                )


def _read(out: Path, results: dict[str, object], warnings: list[str]) -> Evaluation:
    """A finished evaluation from its folder."""
    try:
        stored = json.loads(read_text(out / PER_QUERY_NAME))
        per_query = {name: stored[name] for name in METRICS}
        seconds = float(str(results["seconds"]))
        return Evaluation(mean(per_query), per_query, read_run(out / RUN_NAME), seconds, True, warnings)
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{out}: got missing or damaged results; expected the {PER_QUERY_NAME} and {RUN_NAME} of a finished run; "
            "fix: delete the folder and evaluate again"
        ) from error
