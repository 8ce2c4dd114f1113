"""The dev and guard collections on which a merged model is scored: queries over a corpus or a sample of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from bixse.data.collection_files import load_collection
from bixse.data.collection_warnings import warn_of_missing
from bixse.errors import InputError
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.suites.beir_short import cut_collection
from bixse.evaluation.tasks import QuerySet, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Collection
    from bixse.data.collection_files import MissingDocuments

Role: TypeAlias = Literal["dev", "guard"]
"""dev: what should get better; guard: what must not get worse."""
Scores: TypeAlias = "dict[str, dict[str, float]]"
"""Name of a query set -> query id -> nDCG@10."""


@dataclass(frozen=True)
class WatchedQueries(QuerySet):
    """The judged queries of one split of a collection, by the collection's name (and the split's, of several)."""

    role: Role = "dev"
    """What a change of its figure means."""


@dataclass(frozen=True)
class Watched:
    """One corpus, or a declared sample of it, and the query sets that are searched over it."""

    documents: Mapping[str, str]
    """Document id -> text."""
    size: int
    """Documents of the whole corpus."""
    sets: tuple[WatchedQueries, ...]
    """Dev and guard queries of this corpus."""
    warnings: tuple[str, ...] = ()
    """What the user should know of its guard splits."""

    def scores(self, model: SentenceTransformer) -> Scores:
        """nDCG@10 of every judged query; the documents are encoded once for all query sets."""
        from bixse.evaluation.evaluate import evaluate_query_sets
        from bixse.evaluation.systems import EncoderSystem

        task = Task("watched", lambda: iter(self.documents.items()), len(self.documents), self.sets)
        found = evaluate_query_sets(EncoderSystem(model, cache="none"), task)
        return {name: own.per_query[PRIMARY_METRIC] for name, own in found.items()}


@dataclass(frozen=True)
class Split:
    """A split of a collection folder, and what it is for."""

    folder: Path
    split: str
    role: Role


def load_watched(
    splits: Sequence[Split], documents: int | None, missing_documents: MissingDocuments = "refuse"
) -> list[Watched]:
    """Read collections; splits of one folder share one corpus.

    Args:
        splits: dev and guard splits.
        missing_documents: see `load_collection`.
        documents: documents of a corpus that are searched: all judged ones, then others, the same ones each time; None
            for the whole corpus.

    Raises:
        InputError: a collection or split cannot be used, or has no relevant document, or two have one name.
    """
    names = _names(splits)
    found = []
    for folder in dict.fromkeys(entry.folder.resolve() for entry in splits):
        own = [(name, entry) for name, entry in zip(names, splits, strict=True) if entry.folder.resolve() == folder]
        collection = load_collection(folder, list(dict.fromkeys(entry.split for _, entry in own)), missing_documents)
        sets = []
        for name, entry in own:
            judged = {q: grades for q, grades in collection.qrels[entry.split].items() if max(grades.values()) > 0}
            queries = {query: collection.queries[query] for query in judged}
            sets.append(WatchedQueries(name, queries, judged, role=entry.role))
        together: dict[str, dict[str, float]] = {
            f"{own.name}/{query}": dict(grades) for own in sets for query, grades in own.qrels.items()
        }
        kept: Iterable[str] = collection.corpus
        if documents is not None and documents < len(collection.corpus):
            judged_documents = {document for grades in together.values() for document in grades}
            size = max(documents, len(judged_documents))
            kept = cut_collection(collection.name, together, collection.corpus, len(together), size).documents
        texts = {document: collection.corpus[document].content for document in kept}
        found.append(Watched(texts, len(collection.corpus), tuple(sets), tuple(_missing(collection, own))))
    return found


def _missing(collection: Collection, own: Sequence[tuple[str, Split]]) -> Iterator[str]:
    """What was left out of the guard splits; of dev it is said where the collection is loaded."""
    for _, entry in own:
        if entry.role == "guard":
            split = entry.split
            yield from warn_of_missing(collection.missing.get(split, 0), collection.qrels[split], split)


def check_not_trained_on(held_out: Mapping[str, Mapping[str, str]], queries: Iterable[str], allowed: bool) -> list[str]:
    """Refuse, or count, held-out queries that stand in the training pairs: on these a model looks better than it is.

    Args:
        held_out: name of a dev or guard collection -> query id -> text.
        queries: texts of the training queries.
        allowed: warn instead.

    Raises:
        InputError: there are such queries and they are not allowed.
    """
    said = []
    trained = {text for own in held_out.values() for text in own.values()}.intersection(queries)
    for name, own in held_out.items():
        shared = [query for query, text in own.items() if text in trained]
        if shared:
            said.append(
                f"{name}: got {len(shared)} of {len(own)} queries that stand in the training pairs too (such as "
                f"{shared[0]!r})"
            )
    if said and not allowed:
        raise InputError(
            f"{'; '.join(said)}; expected none, as a model looks better on queries it was trained on; fix: take them "
            "out of the pairs, or allow them (`allow_shared_queries: true`, --allow-shared-queries)"
        )
    return said


def queries_of(watched: Sequence[Watched], role: Role) -> dict[str, Mapping[str, str]]:
    """Role and name of each query set of a role -> its queries."""
    sets = [own for corpus in watched for own in corpus.sets if own.role == role]
    return {f"{role} {own.name}": own.queries for own in sets}


def _names(splits: Sequence[Split]) -> list[str]:
    """The folder's name where it is named once, else with the split."""
    folders = [entry.folder.resolve().name for entry in splits]
    names = [
        name if folders.count(name) == 1 else f"{name}/{entry.split}"
        for name, entry in zip(folders, splits, strict=True)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"dev and guard: got two collections named {twice[0]!r}; expected names of their own, under which their "
            "figures are shown; fix: rename a folder, or leave one out"
        )
    return names
