"""The dev and guard collections on which a merged model is scored: queries over a corpus or a sample of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from bixse.data.collection_files import load_collection
from bixse.data.collection_warnings import warn_of_missing
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection as Container
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    from bixse.data.collection_files import MissingDocuments
    from bixse.relevance import Qrels

Role: TypeAlias = Literal["dev", "guard"]
"""dev: what should get better; guard: what must not get worse."""
Scores: TypeAlias = "dict[str, dict[str, float]]"
"""Name of a query set -> query id -> nDCG@10."""
METRIC = "ndcg@10"


@dataclass(frozen=True)
class QuerySet:
    """The judged queries of one split of a collection."""

    name: str
    """Shown in tables: the collection's name, with the split where a name stands for several."""
    role: Role
    """What a change of its figure means."""
    queries: Mapping[str, str]
    """Query id -> text."""
    qrels: Qrels
    """Their judgements."""


@dataclass(frozen=True)
class Watched:
    """One corpus, or a declared sample of it, and the query sets that are searched over it."""

    documents: Mapping[str, str]
    """Document id -> text."""
    size: int
    """Documents of the whole corpus."""
    sets: tuple[QuerySet, ...]
    """Dev and guard queries of this corpus."""
    warnings: tuple[str, ...] = ()
    """What the user should know of its guard splits."""

    def scores(self, model: SentenceTransformer) -> Scores:
        """nDCG@10 of every judged query; the documents are encoded once for all query sets."""
        from bixse.encoders.encode import encode_texts
        from bixse.evaluation.dense_search import EncodedCollection
        from bixse.evaluation.metrics import evaluate_run

        queries = {(own.name, query): text for own in self.sets for query, text in own.queries.items()}
        documents = encode_texts(model, list(self.documents.values()), "document")
        vectors = encode_texts(model, list(queries.values()), "query")
        found: Scores = {}
        for own in self.sets:
            rows = [row for row, (name, _) in enumerate(queries) if name == own.name]
            encoded = EncodedCollection(list(self.documents), documents, list(own.queries), vectors[rows])
            found[own.name] = evaluate_run(own.qrels, encoded.search(list(own.queries)), [METRIC])[METRIC]
        return found


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
    from bixse.evaluation.suites.beir_short import cut_collection

    names = _names(splits)
    found = []
    for folder in dict.fromkeys(entry.folder.resolve() for entry in splits):
        own = [(name, entry) for name, entry in zip(names, splits, strict=True) if entry.folder.resolve() == folder]
        collection = load_collection(folder, list(dict.fromkeys(entry.split for _, entry in own)), missing_documents)
        sets = []
        for name, entry in own:
            judged = {q: grades for q, grades in collection.qrels[entry.split].items() if max(grades.values()) > 0}
            queries = {query: collection.queries[query] for query in judged}
            sets.append(QuerySet(name, entry.role, queries, judged))
        together: dict[str, dict[str, float]] = {
            f"{own.name}/{query}": dict(grades) for own in sets for query, grades in own.qrels.items()
        }
        kept: Iterable[str] = collection.corpus
        if documents is not None and documents < len(collection.corpus):
            judged_documents = {document for grades in together.values() for document in grades}
            size = max(documents, len(judged_documents))
            kept = cut_collection(collection.name, together, collection.corpus, len(together), size).documents
        texts = {document: collection.corpus[document].content for document in kept}
        missing = [said for _, e in own if e.role == "guard" for said in warn_of_missing(collection, e.split)]
        found.append(Watched(texts, len(collection.corpus), tuple(sets), tuple(missing)))
    return found


def check_not_trained_on(
    held_out: Mapping[str, Mapping[str, str]], queries: Container[str], allowed: bool
) -> list[str]:
    """Refuse, or count, held-out queries that stand in the training pairs: on these a model looks better than it is.

    Args:
        held_out: name of a dev or guard collection -> query id -> text.
        queries: texts of the training queries.
        allowed: warn instead.

    Raises:
        InputError: there are such queries and they are not allowed.
    """
    said = []
    for name, own in held_out.items():
        shared = [query for query, text in own.items() if text in queries]
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
