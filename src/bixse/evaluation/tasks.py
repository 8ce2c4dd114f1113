"""The tasks of an evaluation: a corpus, judged queries, and the rules of scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bixse.data.corpus import (
    Corpus,
    CorpusCheck,
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
from bixse.data.joined import Unjoined, check_joined, warn_of
from bixse.data.trec import read_qrels
from bixse.evaluation.metrics import check_min_relevant_grade
from bixse.files.files import hash_files
from bixse.relevance import MIN_RELEVANT_GRADE, Qrels, Ranking, normal_form

CollectionSource: TypeAlias = "str | Path | JudgedCorpus | tuple[Mapping[str, str], Mapping[str, Any], Qrels]"
QUERIES_PER_BLOCK = 4096
"""Number of queries whose answers are dictionaries at once; an index is read once per block."""


@dataclass(frozen=True)
class QuerySet:
    """Judged queries over a corpus."""

    name: str
    queries: Mapping[str, str]
    qrels: Qrels
    left_out: frozenset[str] = frozenset()
    """Documents that are not searched."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> documents to rank; None: the complete corpus."""
    group: str | None = None
    """The query sets of a group count as one in the mean of a suite. None makes a separate group."""


@dataclass(frozen=True)
class Task:
    """A corpus, streamed and never held in memory, and its query sets."""

    name: str
    documents: Callable[[], Iterator[tuple[str, str]]]
    """A function that yields id and text of each document, in a fixed order."""
    count: int
    query_sets: tuple[QuerySet, ...]
    exclude_self: bool = False
    min_relevant_grade: float = MIN_RELEVANT_GRADE
    instructions: tuple[str, ...] = ()
    """Names of the task in a model's table of instructions; the first known name is used."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the record of a run; "collection" is a path that `inputs` stands for."""
    warnings: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Warnings of ids: judgements left out, and unjudged copies of relevant documents."""
    is_part: bool = False
    """True if the task has only a part of its corpus: a run of the complete corpus names other documents too."""

    @cached_property
    def id_hashes(self) -> NDArray[np.int64]:
        """Hashes of all document ids: 8 bytes per document, read once for all run files."""
        return np.fromiter((hash(name) for name, _ in self.documents()), np.int64)

    def known(self, names: AbstractSet[str]) -> set[str]:
        """Return the names that are documents of the corpus."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        return set(compress(names, np.isin(hashes, self.id_hashes)))

    def check_known(self, label: str, run: Ranking) -> None:
        """Raise InvalidFileError for documents of a run that the corpus lacks."""
        names = {name for hits in run.values() for name in hits}
        lost = Unjoined.of("documents that the corpus lacks", sorted(names), self.known(names))
        check_joined(label, [lost], "answer with ids of the corpus that is searched", every=True)


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
    corpus = check_corpus(folder / "corpus.jsonl", qrels, queries=texts, corpus=documents)
    judged, joined = check_qrels(judgements, qrels, texts, corpus.missing, missing_documents == "drop")
    joined += warn_of(judgements, *corpus.twins)
    queries = {query_id: texts[query_id] for query_id in judged}
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
        warnings=tuple(_warn_of_collection(corpus, queries, judged, min_relevant_grade, exclude_self)),
        joined=tuple(joined),
    )


def _warn_of_collection(
    corpus: CorpusCheck,
    queries: Mapping[str, str],
    qrels: Qrels,
    min_relevant_grade: float,
    exclude_self: bool,
) -> list[str]:
    """Warn of documents without text, low grades, and queries that are documents."""
    return [
        *warn_of_empty(corpus.empty, corpus.count),
        *_warn_of_grades(qrels, min_relevant_grade),
        *_warn_of_self_matches(queries, corpus.named_as_queries, exclude_self),
        *_warn_of_quoted(len(corpus.quoted), len(queries)),
    ]


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


def _warn_of_quoted(quoted: int, queries: int) -> list[str]:
    warning = (
        f"{quoted:,} of {queries:,} queries occur word for word in a relevant document: likely leakage, or queries "
        "that ask for a known document; figures on them say little about other queries"
    )
    return [warning] if quoted else []


def query_blocks(queries: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield queries in blocks of `QUERIES_PER_BLOCK`, in their order."""
    rest = iter(queries.items())
    while block := dict(islice(rest, QUERIES_PER_BLOCK)):
        yield block


def best_of(run: Ranking, depth: int, left_out: AbstractSet[str], exclude_self: bool) -> dict[str, dict[str, float]]:
    """Return the first `depth` documents per query that are not left out; `exclude_self` leaves out the query's id."""
    best: dict[str, dict[str, float]] = {}
    for query, hits in run.items():
        skipped = {query} if exclude_self else frozenset[str]()
        names = (name for name in hits if name not in left_out and name not in skipped)
        best[query] = {name: hits[name] for name in islice(names, depth)}
    return best
