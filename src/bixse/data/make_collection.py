"""Documents, queries and labels become a collection folder: its settings and the counts of the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import MissingDocuments
from bixse.data.draws import check_shares
from bixse.data.given import check_columns
from bixse.data.run import open_run
from bixse.files.files import atomic_folder, hash_files
from bixse.settings import Flag, Settings, Shares, named_words


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
