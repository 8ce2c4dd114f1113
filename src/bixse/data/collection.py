"""`Collection`: a corpus, queries and graded judgements, read from what people have or from a folder, and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from bixse.data.collection_folder import joined_collection, read_folder
from bixse.data.corpus import JudgedCorpus, MissingDocuments
from bixse.data.draws import check_shares, split_queries
from bixse.data.given import check_columns, read_given
from bixse.data.run import open_run
from bixse.data.trec import write_qrels
from bixse.errors import InputError
from bixse.files.files import atomic_folder, hash_files
from bixse.files.rows import write_rows
from bixse.settings import Flag, Settings, Shares, named_words


class Collection(JudgedCorpus):
    """A corpus, queries and judgements by split."""

    @classmethod
    def of(
        cls,
        documents: Any,
        queries: Any,
        labels: Any = None,
        *,
        columns: Mapping[str, str] | None = None,
        split: str = "test",
        missing_documents: MissingDocuments = "refuse",
    ) -> Collection:
        """Make a collection of what people have, and check that labels name only its documents and queries.

        Args:
            documents: a file (.csv, .tsv, .jsonl, .parquet), a folder of .txt, .md or .html files, a folder that
                `datasets` saved, a frame, a `Dataset`, an Arrow table, a list of dictionaries, or id -> text (or
                {"title", "text"}).
            queries: the same forms, or id -> text.
            labels: the same forms, qrels of TREC, or query id -> document id -> grade, a number. None: no labels yet.
            columns: key -> name of a column. The keys are documents.id, documents.title, documents.text, queries.id,
                queries.text, labels.query, labels.document and labels.grade. A column without a key is guessed if only
                one has a usual name; `warnings` names the guesses.
            split: name of the split of the labels; the method `split` makes several.
            missing_documents: "refuse" or "drop" labels of documents that are not there.

        Raises:
            InputError: a form, file or column that cannot be used, ids in the place of texts, or nothing relevant.
            InvalidFileError: all wrong rows of a file, or ids without a partner.

        Example:
            >>> documents = [{"id": "d1", "text": "copy a tree"}, {"id": "d2", "text": "remove a file"}]
            >>> labels = [{"qid": "q1", "pid": "d1", "grade": 3}, {"qid": "q1", "pid": "d2", "grade": 0}]
            >>> Collection.of(documents, {"q1": "copy a folder"}, labels).qrels["test"]
            {'q1': {'d1': 3.0, 'd2': 0.0}}
        """
        given = read_given(documents, queries, labels, columns or {}, split)
        where = Path(labels) if isinstance(labels, str | Path) else Path("labels")
        return cls(**vars(joined_collection(given, {split: where}, missing_documents)))

    def split(self, *, seed: int = 0, **shares: float) -> Collection:
        """Divide the judged queries into splits, for example train, dev and test, by a hash of their normalised texts.

        A query keeps its split when others are added. `bixse convert --split` agrees with these shares and this seed.
        The shares are met approximately.

        Args:
            seed: 0 to 2^32 - 1.
            shares: name of a split -> its share, above 0; the sum is 1.

        Raises:
            InputError: wrong shares, a collection that has several splits already, or a split without a query that has
                a relevant document (a grade above 0).

        Example:
            >>> queries = {f"q{number}": f"query {number}" for number in range(40)}
            >>> labels = {name: {"d1": 1} for name in queries}
            >>> parts = Collection.of({"d1": "a long text"}, queries, labels).split(train=0.6, dev=0.2, test=0.2)
            >>> {name: len(judged) for name, judged in parts.qrels.items()}
            {'train': 19, 'dev': 9, 'test': 12}
        """
        if len(self.qrels) != 1:
            raise InputError(
                f"split: got a collection with {' and '.join(self.qrels) or 'no labels'}; expected labels of one "
                "split; fix: use the splits that there are, or give labels"
            )
        (judged,) = self.qrels.values()
        return replace(self, qrels=split_queries(judged, self.queries, shares, seed))


def load_collection(
    folder: str | Path, splits: list[str] | None = None, missing_documents: MissingDocuments = "refuse"
) -> Collection:
    """Read a collection folder and check that its qrels name only its own documents and queries.

    The folder holds `corpus.jsonl` ({_id, title, text}), `queries.jsonl` ({_id, text}) and `qrels/<split>.tsv`; without
    `splits` every qrels file is read. If judgements name documents that the corpus lacks, "refuse" raises; "drop"
    leaves them out and counts them in `Collection.warnings`. Metrics then differ from those of the complete collection:
    the ideal ranking lacks these documents too. All errors of a file are raised together.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> toy = Collection.of({"d1": "copies a file"}, {"q1": "copy"}, {"q1": {"d1": 2}})
        >>> save_collection(toy, folder)
        >>> load_collection(folder).qrels["test"]
        {'q1': {'d1': 2.0}}
    """
    if not isinstance(folder, str | Path):
        fix = "write Collection.of(documents, queries, judgements)"  # type: ignore[unreachable]
        raise InputError(f"collection: got {type(folder).__name__}; expected a folder; fix: {fix}")
    return Collection(**vars(read_folder(Path(folder), splits, missing_documents)))


def save_collection(collection: JudgedCorpus, folder: str | Path) -> None:
    """Write a collection folder in the BEIR layout; each file appears completely or not at all."""
    folder = Path(folder)
    ids, documents = list(collection.corpus), list(collection.corpus.values())
    titles, texts = [document.title for document in documents], [document.text for document in documents]
    queries = {"_id": list(collection.queries), "text": list(collection.queries.values())}
    write_rows(pa.table({"_id": ids, "title": titles, "text": texts}), folder / "corpus.jsonl")
    write_rows(pa.table(queries), folder / "queries.jsonl")
    for split, qrels in collection.qrels.items():
        write_qrels(folder / "qrels" / f"{split}.tsv", qrels)


class CollectionSettings(Settings):
    """Documents, queries and labels, and how the labels are divided."""

    documents: Path
    """File of documents, folder of .txt, .md or .html files, or folder that `datasets` saved."""
    queries: Path
    """File of queries, or folder that `datasets` saved."""
    labels: Path | None = None
    """File of grades per query and document, folder that `datasets` saved, or qrels of TREC. Null: no labels yet."""
    columns: Annotated[dict[str, str], BeforeValidator(named_words), Flag(metavar="KEY=NAME")] = Field(default={})
    """Names of columns. Keys: documents.id, documents.title, documents.text, queries.id, queries.text, labels.query,
    labels.document, labels.grade. The default guesses a column if only one has a usual name."""
    split: Shares = Field(default={})
    """Splits without a common query text, for example train=.6 dev=.2 test=.2; the default is the single split test."""
    seed: int = 0
    """Random seed of the split."""
    missing_documents: MissingDocuments = "refuse"
    """Treatment of labels whose document is missing: refuse or drop."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        check_columns(self.columns)
        if self.split:
            check_shares(self.split, self.seed)
        return self


@dataclass(frozen=True)
class CollectionResult:
    """The counts of a collection folder."""

    documents: int
    queries: int
    splits: dict[str, dict[str, Any]]
    """Split -> number of queries, labels and labels above 0, and the lowest and highest grade."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False

    @classmethod
    def of(cls, collection: Collection) -> CollectionResult:
        """Count the parts of a collection."""
        splits: dict[str, dict[str, Any]] = {}
        for name, qrels in collection.qrels.items():
            grades = [grade for row in qrels.values() for grade in row.values()]
            splits[name] = {"queries": len(qrels), "labels": len(grades), "above 0": sum(g > 0 for g in grades)}
            splits[name] |= {"lowest": min(grades), "highest": max(grades)}
        return cls(len(collection.corpus), len(collection.queries), splits, list(collection.warnings))


def make_collection(settings: CollectionSettings, out: Path) -> CollectionResult:
    """Read everything, then write the folder completely or not at all; a finished folder is reused.

    Raises:
        InputError: a file or column that cannot be used, ids without a partner, or a split that cannot be made.
        OutputExistsError: `out` holds another run or other files.
    """
    paths = {name: path for name in ("documents", "queries", "labels") if (path := getattr(settings, name)) is not None}
    record = open_run(out, "collection", settings.model_dump(mode="json"), hash_files(paths), tuple(paths))
    if record.status == "finished":
        names = ["corpus.jsonl", "queries.jsonl"]
        return record.result(CollectionResult, lambda result: [*names, *(f"qrels/{n}.tsv" for n in result.splits)])
    given = {"labels": None, **paths}
    collection = Collection.of(**given, columns=settings.columns, missing_documents=settings.missing_documents)
    if settings.split:
        collection = collection.split(seed=settings.seed, **settings.split)
    result = CollectionResult.of(collection)
    with atomic_folder(out) as folder:
        save_collection(collection, folder)
        record.folder, record.results = folder, asdict(result)
        record.save("finished")
    return result
