"""Settings of `bixse evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from bixse.data.collection import MissingDocuments
from bixse.evaluation.suites.known_suites import LOCAL, SUITES
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.retrieval.retrieval_settings import ShardedEncodingSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self

OF_FEW_LABELS = ("grades", "human", "scale")
OF_A_COLLECTION = ("collection", "split", "min_relevant_grade", "exclude_self", "missing_documents", *OF_FEW_LABELS)
OF_A_SUITE = ("data", "tasks", "download", "protocol")


class EvaluateSettings(ShardedEncodingSettings):
    """Settings of `bixse evaluate`.

    Example:
        >>> EvaluateSettings(model="bm25", collection="data").split
        'test'
    """

    model: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="MODEL", positional=True)]
    """Model folder, Hugging Face name, demo (the small model of bixse[demo]) or bm25; several are compared. Or an index
    of the collection: its folder, lancedb:PATH/TABLE or qdrant:URL/COLLECTION. Or a run file (.trec, .run)."""
    suite: str = Field(
        default=LOCAL, description=f"What is evaluated: {LOCAL} (one collection), or a suite: {', '.join(SUITES)}"
    )
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Suite local: folder with corpus.jsonl, queries.jsonl and qrels."""
    split: str = "test"
    """Score against qrels/NAME.tsv."""
    min_relevant_grade: Annotated[float, Flag(metavar="GRADE")] = MIN_RELEVANT_GRADE
    """Lowest grade that is relevant for recall, MRR and MAP; with few labels for precision."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Read only the first TOKENS of a text."""
    exclude_self: bool = False
    """Leave the document that has the query's own id out of its answers, for collections whose queries are also
    documents (ArguAna, Quora)."""
    missing_documents: MissingDocuments = "refuse"
    """Judgements that name a document which the corpus lacks: stop, or leave them out and count them."""
    grades: Annotated[Path | None, Flag(metavar="FILE")] = None
    """With --human, instead of qrels: a judge's grades of all pairs (pairs.parquet, judgements.parquet or qrels)."""
    human: Annotated[Path | None, Flag(metavar="FILE")] = None
    """With --grades: people's labels of a sample of these pairs (a table with a column probability, or qrels)."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """With --human: lowest and highest grade of the labels; null: the lowest to the highest label found."""
    data: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Other suites: folder with a collection folder for each task, or TREC's official files."""
    tasks: Annotated[tuple[str, ...] | None, Flag(metavar="TASK")] = None
    """Other suites: run only these tasks (TREC: years)."""
    download: bool = False
    """Other suites: fetch from the hub what is missing."""
    exact: bool = False
    """Of an index: score every document, whatever its type."""
    model_at: str | None = None
    """Of an index: its model, where that has moved."""
    protocol: Literal["judged", "full"] = "judged"
    """Suite trec-dl: search the judged passages or the full corpora."""

    @property
    def encodes_in_shards(self) -> bool:
        """Whether an engine encodes the corpus before it is searched."""
        return self.engine != "local" or self.shards is not None

    @model_validator(mode="after")
    def _shards_of_a_collection(self) -> Self:
        if self.encodes_in_shards and (self.suite != LOCAL or self.grades is not None):
            raise ValueError("got engine or shards with a suite or grades; expected them with a collection alone; fix: "
                             "evaluate the collection by itself, and with grades its run")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _of_the_suite(self) -> Self:
        if self.task is not None and self.model == ("bm25",):
            raise ValueError("got a task for bm25, which takes no instructions; expected none; fix: leave the task out")
        if self.suite == LOCAL:
            self._refuse(OF_A_SUITE, "collection alone", "leave it out, or name a suite")
            if (self.grades is None) != (self.human is None) or (self.scale and self.human is None):
                given = [f"--{name}" for name in OF_FEW_LABELS if getattr(self, name) is not None]
                raise ValueError(f"got {', '.join(given)} alone; expected --grades and --human; fix: give both")
            if self.collection is None and self.grades is None:
                raise ValueError("got no collection; expected its folder, or another suite; fix: name one of the two")
        else:
            self._refuse(OF_A_COLLECTION, "data alone: the tasks of a suite have their own", "leave it out")
            if self.suite != "trec-dl":
                self._refuse(("protocol",), "it for trec-dl alone", "leave it out")
        return self

    def _refuse(self, names: tuple[str, ...], expected: str, fix: str) -> None:
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"got {', '.join(given)} for suite {self.suite}; expected {expected}; fix: {fix}")
