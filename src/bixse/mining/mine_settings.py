"""Settings of a mining run, checked before any work, and their inputs: corpus, queries and known pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from bixse.data.corpus import Corpus, Document, as_collection, check_corpus, check_split, read_queries, splits_of
from bixse.data.joined import Unjoined, check_joined, unjoined_judgements, warn_of
from bixse.data.pairs_files import as_pairs, load_graded_pairs
from bixse.data.trec import read_qrels
from bixse.errors import SEEDS, InputError, shorten
from bixse.files.files import hash_files, json_hash
from bixse.mining.candidates import Strategy
from bixse.search.retrieval_settings import EncodingSettings
from bixse.search.tasks import QuerySet, Task
from bixse.settings import Flag, Reads

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs

PER_QUERY = 8
"""Default number of documents mined per query."""
LONG_QUERIES = 3
"""Mean length of queries, in mean lengths of documents, from which their order is in doubt."""
WHERE = {"cache", "precision"}
"""Settings of how texts are encoded, which do not change the pairs."""


class MineConfig(EncodingSettings):
    """Settings of `bixse mine`; also the keys of its YAML file."""

    renamed: ClassVar = {"retriever": "write retrievers"}

    collection: Annotated[Path | None, Flag(metavar="DIR"), Reads("collection")] = None
    """Folder with corpus.jsonl, queries.jsonl and perhaps qrels. The files `corpus` and `queries` can replace it."""
    corpus: Annotated[Path | None, Flag(metavar="FILE"), Reads("corpus")] = None
    """File of the documents, one JSON {_id, title, text} per line."""
    queries: Annotated[Path | None, Flag(metavar="FILE"), Reads("queries")] = None
    """File of the queries, one JSON {_id, text} per line."""
    split: str | None = None
    """Split of the collection whose judged queries are mined; null takes all queries."""
    max_queries: int | None = Field(default=None, ge=1)
    """Maximum number of queries, drawn at random; null takes all queries."""
    known: Annotated[Path | None, Flag(metavar="FILE"), Reads("graded")] = None
    """File of graded pairs. No pair in it is mined again, whatever its grade; null leaves out none."""
    retrievers: Annotated[tuple[str, ...], Flag(name="retriever"), Reads("system")] = ("bm25",)
    """bm25 (the default), demo, a model folder, a hub name, the folder of an index of the corpus, or a TREC run; one or
    several."""
    strategy: Strategy = "spread"
    """Way to select documents. spread: over all ranks down to the depth; top: the best; one: a single document of any
    rank."""
    per_query: Annotated[int | None, Field(ge=1), Flag(metavar="K")] = None
    """Number of documents per query; null means 8, or 1 with the strategy one."""
    depth: int = Field(default=100, ge=1)
    """Number of ranks used, both of the ranking of each retriever and of the fused ranking."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of the selected documents and queries."""
    max_length: Annotated[int | None, Field(ge=1), Flag(metavar="TOKENS")] = None
    """Maximum number of tokens that an encoder reads per text; null is the limit of the encoder."""
    task: str | None = None
    """Name of the task, a column of the pairs. Encoders with task instructions use the instructions of this task."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.collection is None) == (self.corpus is None) or (self.corpus is None) != (self.queries is None):
            texts = [name for name in ("collection", "corpus", "queries") if getattr(self, name) is not None]
            raise ValueError(
                f"got {' and '.join(texts) or 'no texts'}; expected collection, or corpus and queries; "
                "fix: give one of the two"
            )
        if self.collection is None and self.split:
            raise ValueError("got split without collection; expected a folder with qrels; fix: give collection")
        if self.strategy == "one" and self.count != 1:
            raise ValueError(f"got per_query {self.count} for strategy 'one'; expected 1; fix: leave per_query out")
        if self.count > self.depth:
            raise ValueError(
                f"got per_query {self.count} with depth {self.depth}; expected no more than the depth; "
                f"fix: depth {self.count} or more"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the pairs."""
        return self.model_dump(mode="json", exclude=WHERE) | {"per_query": self.count}

    @property
    def count(self) -> int:
        """Return the number of documents per query."""
        return self.per_query or (1 if self.strategy == "one" else PER_QUERY)

    def files(self) -> dict[str, Path]:
        """Return name -> file of every text and judgement to read."""
        files = {name: path for name in ("corpus", "queries", "known") if (path := getattr(self, name)) is not None}
        if self.collection is None:
            return files
        if self.split is not None:
            check_split(self.collection, self.split)
            files[f"qrels/{self.split}"] = self.collection / "qrels" / f"{self.split}.tsv"
        return {name: self.collection / f"{name}.jsonl" for name in ("corpus", "queries")} | files


def objects_among(queries: Any, corpus: Any, known: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the objects among the inputs, and settings with the files, or with names in place of the objects."""
    files = {"queries": queries, "corpus": corpus, "known": known}
    held: dict[str, Any] = {}
    if not (isinstance(queries, str | Path) and isinstance(corpus, str | Path)):
        collection = as_collection((queries, corpus), None)
        held = {"queries": collection.queries, "corpus": collection.corpus}
    if not (known is None or isinstance(known, str | Path)):
        held["known"] = as_pairs(known)
    return held, files | {name: Path(name) for name in held}


def hashes_of(files: Mapping[str, Path], held: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> hash of each input: of an object, else of its file."""
    hashes = {name: json_hash(list(part.rows()) if name == "known" else dict(part)) for name, part in held.items()}
    return hashes | hash_files({name: path for name, path in files.items() if name not in held})


def read_inputs(config: MineConfig, held: Mapping[str, Any] | None = None) -> tuple[Task, dict[str, set[str]]]:
    """Return corpus and queries as a task without judgements, and query id -> ids of documents whose grade is known.

    `held` has the objects of a call from Python, by the setting whose file they replace. The task's warnings are those
    of all inputs.
    """
    files, held = config.files(), held or {}
    queries = held.get("queries") or read_queries(files["queries"])
    graded = held.get("known")
    if config.known is not None and graded is None:
        graded = load_graded_pairs(config.known)
    judged = {} if config.split is None else read_qrels(files[f"qrels/{config.split}"])
    corpus: Corpus | Mapping[str, Document] = held.get("corpus") or Corpus(files["corpus"])
    check = check_corpus(files["corpus"], judged, corpus)
    fix = "give corpus, queries and judgements of one collection"
    parts = unjoined_judgements(judged, queries, check.missing)
    warnings = check_joined(files.get(f"qrels/{config.split}", files["queries"]), parts, fix)
    known: dict[str, set[str]] = {}
    if config.known is not None and graded is not None:
        known, doubts = _known_pairs(config.known, graded, queries, corpus)
        warnings += doubts
    if config.split is not None:
        queries = {query_id: text for query_id, text in queries.items() if query_id in judged}
    warnings += _doubts(config, queries, corpus)
    # no record holds the inputs of objects
    inputs = {"corpus.jsonl": corpus.hash} if isinstance(corpus, Corpus) else {"collection": "in memory"}
    drawn = sample_queries(queries, config.max_queries, config.seed)
    task = Task(
        "mine",
        lambda: ((name, each.content) for name, each in corpus.items()),
        check.count,
        (QuerySet("queries", drawn, {}, frozenset(check.empty)),),
        inputs=inputs,
        settings={"missing_documents": "refuse"},
        warnings=tuple(warnings),
    )
    return task, known


def _doubts(config: MineConfig, queries: Mapping[str, str], corpus: Corpus | Mapping[str, Document]) -> list[str]:
    """Warn of queries of all splits, and of documents in the place of the queries."""
    if config.split is None and config.collection is not None and len(splits := splits_of(config.collection)) > 1:
        return [
            f"all queries are mined, including those of the splits {', '.join(splits)}: pairs for training should hold "
            "no query of a test split; --split NAME takes the queries of a single split"
        ]
    if not isinstance(corpus, Corpus):  # in memory the documents may have been given in place of the queries
        sides = queries.values(), [each.content for each in corpus.values()]
        length, of_documents = (sum(map(len, texts)) / len(texts) for texts in sides)
        if length > LONG_QUERIES * of_documents:
            return [
                f"the queries have {length:.0f} characters on average and the documents {of_documents:.0f}: check the "
                "order mine(queries, corpus)"
            ]
    return []


def sample_queries(queries: Mapping[str, str], count: int | None, seed: int) -> dict[str, str]:
    """Draw `count` queries by the seed, in file order; a larger draw contains a smaller one, in any file order."""
    if count is None:
        return dict(queries)
    drawn = set(sorted(queries, key=lambda name: sha256(json.dumps([seed, name]).encode()).hexdigest())[:count])
    return {query_id: text for query_id, text in queries.items() if query_id in drawn}


def _known_pairs(
    path: Path, graded: Pairs, queries: Mapping[str, str], corpus: Corpus | Mapping[str, Document]
) -> tuple[dict[str, set[str]], list[str]]:
    """Return query id -> its graded documents, by id, else by text, and warnings.

    Refuse documents that the corpus lacks, and a file without any of the queries.
    """
    ids, bodies = set(graded.document_ids), {text.strip() for text in graded.documents}
    texts: dict[str, str] = {}  # id in the graded pairs -> text in the corpus
    with_text: dict[str, list[str]] = {}  # text in the graded pairs -> ids in the corpus
    for name, document in corpus.items():
        if name in ids:
            texts[name] = document.content
        if document.content in bodies:
            with_text.setdefault(document.content, []).append(name)
    asking: dict[str, list[str]] = {}
    for query_id, query in queries.items():
        asking.setdefault(query, []).append(query_id)
    known: dict[str, set[str]] = {}
    asked: dict[str, None] = {}
    named: dict[str, None] = {}
    pairs = other_texts = 0
    for query_id, query, document_id, document in zip(
        graded.query_ids, graded.queries, graded.document_ids, graded.documents, strict=True
    ):
        # Files without ids have ids made of their texts: the text finds the ids of the collection.
        mined = [query_id] if query_id in queries else asking.get(query, [])
        alike = [document_id] if document_id in texts else with_text.get(document.strip(), [document_id])
        asked |= dict.fromkeys(mined or [query_id])
        pairs += max(1, len(mined)) * len(alike)
        if mined:
            named |= dict.fromkeys(alike)
            other_texts += document_id in texts and document.strip() not in texts[document_id]
        for name in mined:
            known.setdefault(name, set()).update(alike)
    warning = f"{path.name}: {other_texts} of {pairs} pairs have another text than the corpus has under their id"
    # a document under another id would be mined as unknown
    in_corpus = {*texts, *chain.from_iterable(with_text.values())}
    lost = Unjoined.of("documents that the corpus lacks, by id and by text", named, in_corpus)
    check_joined(path, [lost], "use the corpus the pairs are of, or drop them", every=True)
    if not named:
        raise InputError(
            f"{path}: got no pair of these queries (such as query {shorten(min(asked))}); expected ids or texts of "
            "the queries that are mined; fix: use the file of this collection"
        )
    unasked = warn_of(path, Unjoined.of("queries that are not mined", asked, queries))
    return known, [*([warning] if other_texts else []), *unasked]
