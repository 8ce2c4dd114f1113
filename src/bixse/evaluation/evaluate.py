"""Evaluate a model, or BM25, on a collection folder; every figure with its run on disk."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bixse.data.collection_files import files_of_split, load_collection
from bixse.data.collection_warnings import RELEVANCE_LEVEL, warn_of_collection
from bixse.data.io.files import file_hash, read_text, write_atomically
from bixse.data.run_record import open_run
from bixse.data.trec import read_run, write_run
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, StorageError
from bixse.evaluation.baseline import METRICS, search_bm25
from bixse.evaluation.metrics import PerQuery, evaluate_run, mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from bixse.data.collection import Collection
    from bixse.data.collection_files import MissingDocuments
    from bixse.evaluation.dense_search import EncodedCollection
    from bixse.relevance import Qrels, Run
    from bixse.retrieval.store import EmbeddingStore

ProgressBars: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a progress callback from a title and a total."""
BM25_NAME = "bm25"
"""The word that stands for the lexical baseline where a model is asked for."""
DOCUMENTS_PER_PART = 16_384
"""Documents whose embeddings are kept together while a corpus is encoded."""
RUN_NAME = "run.trec"
PER_QUERY_NAME = "per_query.json"
MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".py", ".jinja")
"""Files of a model folder that its embeddings may depend on: weights, settings, vocabularies, code, templates."""


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
    from bixse.retrieval.store import EmbeddingStore, embeddings_key

    store = EmbeddingStore(cache)
    key = embeddings_key(model, collection.corpus)  # type: ignore[arg-type]
    documents = store.load(key)
    if documents is None or len(documents) != len(collection.corpus):
        documents = _encode_documents(model, collection, store, key, progress)
    queries = encode_texts(model, [collection.queries[q] for q in query_ids], "query")  # type: ignore[arg-type]
    return EncodedCollection(list(collection.corpus), documents, query_ids, queries)


def _encode_documents(
    model: object, collection: Collection, store: EmbeddingStore, key: str, progress: ProgressBars | None
) -> npt.NDArray[np.float32]:
    """Embed a corpus part by part; each part is kept until all are there, so that a killed process loses one."""
    import numpy as np

    from bixse.encoders.encode import encode_texts

    texts = [document.content for document in collection.corpus.values()]
    step = progress("encode documents", len(texts)) if progress is not None else None
    parts = []
    for start in range(0, len(texts), DOCUMENTS_PER_PART):
        some, name = texts[start : start + DOCUMENTS_PER_PART], f"{key}-{start}"
        part = store.load(name)
        if part is None or len(part) != len(some):
            part = encode_texts(model, some, "document", progress=step)  # type: ignore[arg-type]
            if len(some) < len(texts):
                with contextlib.suppress(StorageError):
                    store.save(name, part, list(collection.corpus)[start : start + DOCUMENTS_PER_PART])
        elif step is not None:
            step(len(some))
        parts.append(part)
    documents = np.concatenate(parts)
    with contextlib.suppress(StorageError):  # where the cache cannot be written, a corpus is encoded anew each time
        store.save(key, documents, list(collection.corpus))
        store.remove(f"{key}-")
    return documents


def model_hashes(model: str | Path) -> dict[str, str]:
    """Content hashes of what a model folder's ranking depends on (not its relevance head); {} for a hub name."""
    from bixse.encoders.head import HEAD_FILE

    if not Path(model).is_dir():
        return {}
    files = sorted(path for path in Path(model).rglob("*") if path.suffix in MODEL_SUFFIXES)
    return {f"model/{path.relative_to(model)}": file_hash(path) for path in files if path.name != HEAD_FILE}


def model_path_settings(model: str | Path) -> tuple[str, ...]:
    """("model",) where a run's setting `model` is a folder, which `model_hashes` identifies; () for a name."""
    return ("model",) if Path(model).is_dir() else ()


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
