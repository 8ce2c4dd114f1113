"""Read a collection folder into memory, with its judgements joined to its documents and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.corpus import (
    Document,
    JudgedCorpus,
    MissingDocuments,
    check_folder,
    check_qrels,
    judgements_of,
    read_queries,
    refuse_all_empty,
    splits_of,
    stream_documents,
)
from bixse.data.joined import Twins, warn_of, without_relevant
from bixse.data.trec import read_qrels

if TYPE_CHECKING:
    from bixse.relevance import Qrels


def read_folder(
    folder: Path, splits: list[str] | None = None, missing_documents: MissingDocuments = "refuse"
) -> JudgedCorpus:
    """Return what `bixse.load_collection` reads from a folder."""
    check_folder(folder)
    corpus, queries = read_corpus(folder / "corpus.jsonl"), read_queries(folder / "queries.jsonl")
    files = {split: judgements_of(folder, split) for split in (splits_of(folder) if splits is None else splits)}
    qrels = {split: read_qrels(path) for split, path in files.items()}
    return joined_collection(JudgedCorpus(folder.resolve().name, corpus, queries, qrels), files, missing_documents)


def read_corpus(path: Path) -> dict[str, Document]:
    """Return document id -> document of a file with `DOCUMENT_COLUMNS`."""
    corpus = dict(stream_documents(path))
    refuse_all_empty(path, len(corpus), sum(not document.content for document in corpus.values()))
    return corpus


def joined_collection(
    collection: JudgedCorpus, files: Mapping[str, Path], missing_documents: MissingDocuments = "refuse"
) -> JudgedCorpus:
    """Return a collection with the judgements that count and warnings; see `bixse.load_collection` for what is refused.

    `files` are the names of the splits in messages.
    """
    corpus, queries = collection.corpus, collection.queries
    qrels: dict[str, Qrels] = {}
    warnings = list(collection.warnings)
    for split, judged in collection.qrels.items():
        absent = {document_id for row in judged.values() for document_id in row if document_id not in corpus}
        qrels[split], lines = check_qrels(files[split], judged, queries, absent, missing_documents == "drop")
        warnings += [*lines, *warn_of(files[split], without_relevant(qrels[split]))]
    twins = Twins(*qrels.values())
    for name, document in corpus.items():
        twins.see(name, document.content)
    for split, joined in qrels.items():
        warnings += warn_of(files[split], twins.count(joined, lambda: iter(corpus)))
    return replace(collection, qrels=qrels, warnings=tuple(warnings))
