"""Settings of a mining run, checked before any work, and their inputs: corpus, queries and known pairs."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from bixse.data.corpus import Document, JudgedCorpus, as_collection, check_corpus, check_split, read_queries, splits_of
from bixse.data.joined import Unjoined, check_joined, unjoined_judgements, warn_of
from bixse.data.pairs_files import as_pairs, load_graded_pairs
from bixse.data.trec import check_word, read_qrels
from bixse.errors import SEEDS, InputError, shorten
from bixse.files.files import hash_files, json_hash
from bixse.mining.candidates import Strategy
from bixse.search.retrieval_settings import EncodingSettings
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
        if self.per_query is None:
            return 1 if self.strategy == "one" else PER_QUERY
        return self.per_query

    def files(self) -> dict[str, Path]:
        """Return name -> file of every text and judgement to read."""
        files = {name: path for name in ("corpus", "queries", "known") if (path := getattr(self, name)) is not None}
        if self.collection is None:
            return files
        if self.split is not None:
            check_split(self.collection, self.split)
            files[f"qrels/{self.split}"] = self.collection / "qrels" / f"{self.split}.tsv"
        return {name: self.collection / f"{name}.jsonl" for name in ("corpus", "queries")} | files


@dataclass(frozen=True)
class MineInputs:
    """The texts to mine pairs from."""

    documents: int
    """Number of documents in the corpus, empty ones included."""
    empty: frozenset[str]
    """Ids of documents without text."""
    queries: Mapping[str, str]
    """Query id -> text, in file order; may be empty."""
    known: Mapping[str, set[str]] = field(default_factory=dict)
    """Query id -> ids of documents whose grade is known."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class MineObjects:
    """The objects of a call from Python, in place of the files `corpus`, `queries` and `known` of the settings."""

    collection: JudgedCorpus | None = None
    known: Pairs | None = None

    @classmethod
    def of(cls, queries: Any, corpus: Any, known: Any) -> tuple[Self, dict[str, Any]]:
        """Return the objects among the inputs, and settings with the files, or with names in place of the objects."""
        files = {"queries": queries, "corpus": corpus, "known": known}
        collection, graded = None, None
        if not (isinstance(queries, str | Path) and isinstance(corpus, str | Path)):
            collection = as_collection((queries, corpus), None)
            files |= {"queries": Path("queries"), "corpus": Path("corpus")}
        if not (known is None or isinstance(known, str | Path)):
            graded, files["known"] = as_pairs(known), Path("known")
        return cls(collection, graded), files

    def hashes(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Return name -> hash of each input: of an object, else of its file."""
        held: dict[str, Any] = {}
        if self.collection is not None:
            held = {"corpus": dict(self.collection.corpus), "queries": dict(self.collection.queries)}
        if self.known is not None:
            held["known"] = list(self.known.rows())
        hashes = {name: json_hash(content) for name, content in held.items()}
        return hashes | hash_files({name: path for name, path in files.items() if name not in held})

    def check_words(self) -> None:
        """Raise InputError for ids that the files of a folder cannot hold."""
        for name, part in () if self.collection is None else vars(self.collection).items():
            for word in part if name in ("queries", "corpus") else ():
                check_word(f"{name} with out: id", word)


def read_inputs(config: MineConfig, objects: MineObjects | None = None) -> MineInputs:
    """Read and check all inputs of a mining run."""
    files, held, graded = config.files(), None, None
    if objects is not None:
        held, graded = objects.collection, objects.known
    queries = read_queries(files["queries"]) if held is None else held.queries
    if config.known is not None and graded is None:
        graded = load_graded_pairs(config.known)
    judged = {} if config.split is None else read_qrels(files[f"qrels/{config.split}"])
    # One pass over the corpus checks it and finds the documents of judgements and known pairs.
    documents = _Documents(graded)
    corpus = check_corpus(files["corpus"], judged, documents.see, corpus=None if held is None else held.corpus)
    fix = "give corpus, queries and judgements of one collection"
    parts = unjoined_judgements(judged, queries, corpus.missing)
    warnings = check_joined(files.get(f"qrels/{config.split}", files["queries"]), parts, fix)
    known: dict[str, set[str]] = {}
    if config.known is not None and graded is not None:
        pairs, mismatches = _graded_pairs_by_id(config.known, graded, queries, documents)
        warnings += [*mismatches, *_add_known(known, config.known, pairs, queries, documents.in_corpus)]
    if config.split is not None:
        queries = {query_id: text for query_id, text in queries.items() if query_id in judged}
    elif config.collection is not None and len(splits := splits_of(config.collection)) > 1:
        warnings.append(
            f"all queries are mined, including those of the splits {', '.join(splits)}: pairs for training should hold "
            "no query of a test split; --split NAME takes the queries of a single split"
        )
    if held is not None:  # in memory the documents may have been given in place of the queries
        sides = held.queries.values(), [each.content for each in held.corpus.values()]
        length, of_documents = (sum(map(len, texts)) / len(texts) for texts in sides)
        if length > LONG_QUERIES * of_documents:
            warnings.append(
                f"the queries have {length:.0f} characters on average and the documents {of_documents:.0f}: check the "
                "order mine(queries, corpus)"
            )
    queries = sample_queries(queries, config.max_queries, config.seed)
    return MineInputs(corpus.count, frozenset(corpus.empty), queries, known, tuple(warnings))


def sample_queries(queries: Mapping[str, str], count: int | None, seed: int) -> dict[str, str]:
    """Draw `count` queries by the seed, in file order; a larger draw contains a smaller one, in any file order."""
    if count is None:
        return dict(queries)
    drawn = set(sorted(queries, key=lambda name: sha256(json.dumps([seed, name]).encode()).hexdigest())[:count])
    return {query_id: text for query_id, text in queries.items() if query_id in drawn}


class _Documents:
    """The documents of graded pairs to find in the corpus, by id, else by text."""

    def __init__(self, graded: Pairs | None) -> None:
        self._graded = set() if graded is None else set(graded.document_ids)
        self._texts = set() if graded is None else {text.strip() for text in graded.documents}
        self.in_corpus: set[str] = set()
        """Wanted ids that the corpus has."""
        self.texts: dict[str, str] = {}
        """Id in the graded pairs -> text in the corpus."""
        self.with_text: dict[str, list[str]] = {}
        """Text in the graded pairs -> ids in the corpus."""

    def see(self, name: str, document: Document) -> None:
        text = document.content
        if name in self._graded:
            self.texts[name] = text
        if text in self._texts:
            self.with_text.setdefault(text, []).append(name)
        if name in self._graded or text in self._texts:
            self.in_corpus.add(name)


def _graded_pairs_by_id(
    path: Path, graded: Pairs, queries: Mapping[str, str], documents: _Documents
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the (query id, document id) pairs of a graded file, and warnings."""
    with_text: dict[str, list[str]] = {}
    for query_id, query in queries.items():
        with_text.setdefault(query, []).append(query_id)
    pairs = list[tuple[str, str]]()
    other_texts = 0
    for query_id, query, document_id, document in zip(
        graded.query_ids, graded.queries, graded.document_ids, graded.documents, strict=True
    ):
        # Files without ids have ids made of their texts: the text finds the ids of the collection.
        query_keys = [query_id] if query_id in queries else with_text.get(query, [query_id])
        text = documents.texts.get(document_id)
        alike = [document_id] if text is not None else documents.with_text.get(document.strip(), [document_id])
        pairs += product(query_keys, alike)
        if query_keys[0] in queries and text is not None:
            other_texts += document.strip() not in text
    warning = f"{path.name}: {other_texts} of {len(pairs)} pairs have another text than the corpus has under their id"
    return pairs, [warning] if other_texts else []


def _add_known(
    known: dict[str, set[str]],
    path: Path,
    pairs: Iterable[tuple[str, str]],
    queries: Mapping[str, str],
    documents: Container[str],
) -> list[str]:
    """Add pairs to `known`; refuse documents that the corpus lacks, and a file without any of the queries."""
    asked: dict[str, None] = {}
    named: dict[str, None] = {}
    for query_id, document_id in pairs:
        asked[query_id] = None
        if query_id in queries:
            named[document_id] = None
            known.setdefault(query_id, set()).add(document_id)
    # a document under another id would be mined as unknown
    lost = Unjoined.of("documents that the corpus lacks, by id and by text", named, documents)
    check_joined(path, [lost], "use the corpus the pairs are of, or drop them", every=True)
    if not named:
        raise InputError(
            f"{path}: got no pair of these queries (such as query {shorten(min(asked))}); expected ids or texts of "
            "the queries that are mined; fix: use the file of this collection"
        )
    return warn_of(path, Unjoined.of("queries that are not mined", asked, queries))
