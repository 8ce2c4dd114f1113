"""The task of a split of a collection: of files, of objects in memory, or of ir_datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bixse.data.corpus import (
    Corpus,
    Document,
    JudgedCorpus,
    MissingDocuments,
    as_collection,
    check_corpus,
    check_qrels,
    files_of_split,
    is_path,
    judgements_of,
    read_queries,
    warn_of_empty,
)
from bixse.data.joined import warn_of
from bixse.data.trec import read_qrels
from bixse.evaluation.metrics import check_min_relevant_grade
from bixse.files.files import hash_files
from bixse.relevance import MIN_RELEVANT_GRADE, Qrels, normal_form
from bixse.search.tasks import QuerySet, Task

CollectionSource: TypeAlias = "str | Path | JudgedCorpus | tuple[Mapping[str, str], Mapping[str, Any], Qrels]"


def collection_task(
    collection: CollectionSource,
    split: str = "test",
    exclude_self: bool = False,
    min_relevant_grade: float = MIN_RELEVANT_GRADE,
    missing_documents: MissingDocuments = "refuse",
) -> Task:
    """Return the judged queries of a split of a collection; the corpus of a folder is read once, now.

    Args:
        collection: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, a `Collection`, three
            dictionaries (queries, corpus, qrels), or a data set of ir_datasets or its name, such as "irds:vaswani".
        split: qrels file to score against.
        exclude_self: leave the document with the query's id out of its answers (ArguAna, Quora).
        min_relevant_grade: grade from which a document counts as relevant for recall, MRR and MAP, above 0.
        missing_documents: treatment of judgements whose document the corpus lacks.

    Raises:
        InputError: a file is missing, there is nothing to score, or a value is out of range.
        InvalidFileError: every invalid row of a file together.

    Example:
        >>> collection_task(({"q1": "copy"}, {"d1": "shutil.copy"}, {"q1": {"d1": 2}}), min_relevant_grade=2).count
        1
    """
    check_min_relevant_grade(min_relevant_grade)
    if isinstance(collection, str | Path) and is_path(collection):
        folder = Path(collection)
        name, judgements, files = folder.resolve().name, judgements_of(folder, split), files_of_split(folder, split)
        texts, qrels = read_queries(folder / "queries.jsonl"), read_qrels(judgements)
        documents: Corpus | Mapping[str, Document] = (read := Corpus(files.pop("corpus.jsonl")))
        inputs = {"corpus.jsonl": read.hash, **hash_files(files)}
    else:
        held = as_collection(collection, split)
        name, folder, judgements = held.name, Path(), Path("qrels")
        texts, qrels = dict(held.queries), {name: dict(row) for name, row in held.qrels[split].items()}
        documents, inputs = held.corpus, {"collection": held.hash}
    corpus = check_corpus(folder / "corpus.jsonl", qrels, documents, texts)
    judged, joined = check_qrels(judgements, qrels, texts, corpus.missing, missing_documents == "drop")
    joined += warn_of(judgements, *corpus.twins)
    queries = {query_id: texts[query_id] for query_id in judged}
    warnings = [
        *warn_of_empty(corpus.empty, corpus.count),
        *_warn_of_grades(judged, min_relevant_grade),
        *_warn_of_self_matches(queries, corpus.named_as_queries, exclude_self),
    ]
    if corpus.quoted:
        warnings.append(
            f"{len(corpus.quoted):,} of {len(queries):,} queries occur word for word in a relevant document: likely "
            "leakage, or queries that ask for a known document; figures on them say little about other queries"
        )
    return Task(
        name,
        lambda: ((name, each.content) for name, each in documents.items()),
        corpus.count,
        (QuerySet(name, queries, judged),),
        exclude_self=exclude_self,
        min_relevant_grade=min_relevant_grade,
        inputs=inputs,
        settings={
            "collection": None if "collection" in inputs else folder,  # an object has no path
            "split": split,
            "missing_documents": missing_documents,
        },
        warnings=tuple(warnings),
        joined=tuple(joined),
    )


def _warn_of_grades(qrels: Qrels, lowest: float) -> list[str]:
    grades = [grade for judged in qrels.values() for grade in judged.values() if grade > 0]
    below = [grade for grade in grades if grade < lowest]
    effect = "irrelevant for recall, MRR and MAP; nDCG uses every grade"
    if below and len(below) == len(grades):
        return [
            f"no grade reaches the lowest relevant grade {lowest:g} (the highest is {max(grades):g}): all documents "
            f"are {effect}; fix: --min-relevant-grade {max(grades):g} or lower"
        ]
    fractional = [grade for grade in below if grade != int(grade)]
    if fractional and lowest == MIN_RELEVANT_GRADE:
        return [
            f"{len(fractional):,} of {len(grades):,} grades above 0 are fractions below the lowest relevant grade "
            f"{lowest:g}: these documents are {effect}; fix: --min-relevant-grade GRADE if they are relevant"
        ]
    return []


def _warn_of_self_matches(
    queries: Mapping[str, str], named_as_queries: Mapping[str, Document], exclude_self: bool
) -> list[str]:
    """Warn of queries that are documents, or of documents that only share a query's id."""
    both = {name: named_as_queries[name] for name in queries if name in named_as_queries}
    same = [
        name
        for name, document in both.items()
        if normal_form(queries[name]) in (normal_form(document.text), normal_form(document.content))
    ]
    others = [name for name in both if name not in set(same)]
    if exclude_self and others:
        return [
            f"for {len(others):,} queries, --exclude-self removes a document that has the query's id but another text "
            f"({others[0]!r}); fix: leave the flag out if ids are equal by accident"
        ]
    if exclude_self or not same:
        return []
    accident = f" ({len(others):,} others have the id of another text, and would lose a document)" if others else ""
    return [
        f"{len(same):,} queries are documents too, with the same id and the same text ({same[0]!r}), and will find "
        f"themselves; fix: --exclude-self removes the document with the query's id from the answers{accident}"
    ]
