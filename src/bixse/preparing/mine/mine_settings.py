"""Settings of a mining run, checked before any work, and the files they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from bixse.errors import SEEDS, InputError
from bixse.preparing.mine.mined_pairs import PairsFormat
from bixse.preparing.mine.selection import Strategy
from bixse.scale.index.index_settings import ShardedEncodingSettings
from bixse.search.retrieval_settings import EncodingSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self

PER_QUERY = 8
"""Documents a query that are mined where nothing else is said."""


WHERE = (set(ShardedEncodingSettings.model_fields) | set(EncodingSettings.model_fields)) - {"task"}
"""Settings of where texts are encoded, which do not decide what is mined."""


class MineConfig(ShardedEncodingSettings):
    """Settings of `bixse mine`; also the keys of its YAML file."""

    renamed: ClassVar = {"retriever": "write retrievers"}

    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder with corpus.jsonl and queries.jsonl (and qrels); or give corpus and queries."""
    corpus: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Documents, one JSON {_id, title, text} a line."""
    queries: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Queries, one JSON {_id, text} a line."""
    split: str | None = None
    """Only the queries that this split of the collection judges; null takes all queries."""
    max_queries: int | None = Field(default=None, ge=1)
    """Only so many queries, drawn by the seed."""
    known: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs to leave out, whatever their grade."""
    exclude_judged: Annotated[str | None, Flag(metavar="SPLIT")] = None
    """Leave out the pairs that this split of the collection judges, whatever their grade."""
    exclude_self: bool = False
    """Leave out the document that has the query's own id."""
    retrievers: Annotated[tuple[str, ...], Flag(name="retriever")] = ("bm25",)
    """bm25 (the default), demo, a model folder, a hub name, or the folder of an index of the corpus; one or several.
    """
    strategy: Strategy = "spread"
    """spread: from the top down to the depth; top: the best; hard-negatives: the best that are not known; one: a single
    document from any depth."""
    per_query: Annotated[int | None, Field(ge=1), Flag(metavar="K")] = None
    """Documents per query; null means 8, and 1 for the strategy one."""
    depth: int = Field(default=100, ge=1)
    """Ranks that count, of each retriever and fused."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Seed of the draws, and of the choice of queries."""
    max_length: Annotated[int | None, Field(ge=1), Flag(metavar="TOKENS")] = None
    """Tokens of a text that an encoder reads; null keeps its own limit."""
    task: str | None = None
    """Name of the task, written beside every pair; encoders with task instructions use those of this task."""
    format: PairsFormat = "parquet"
    """How the pairs are written."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.collection is None) == (self.corpus is None) or (self.corpus is None) != (self.queries is None):
            found = [name for name in ("collection", "corpus", "queries") if getattr(self, name) is not None]
            raise ValueError(
                f"got {' and '.join(found) or 'no texts'}; expected collection, or corpus and queries; "
                "fix: give one of the two"
            )
        if self.collection is None and (self.split or self.exclude_judged):
            name = "split" if self.split else "exclude_judged"
            raise ValueError(
                f"got {name} without collection; expected a folder with qrels; "
                "fix: give collection (pairs in a file are left out with known)"
            )
        if self.strategy == "one" and self.count != 1:
            raise ValueError(f"got per_query {self.count} for the strategy one; expected 1; fix: leave per_query out")
        if self.count > self.depth:
            raise ValueError(
                f"got per_query {self.count} with depth {self.depth}; expected no more than the depth; "
                f"fix: depth {self.count} or more"
            )
        if self.strategy == "hard-negatives" and self.known is None and self.exclude_judged is None:
            raise ValueError(
                "got no known pairs for the strategy hard-negatives; expected those that are relevant, which would be "
                "mined as negatives; fix: known (a file of graded pairs), or exclude_judged (a split)"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """What decides the pairs, and where it lies."""
        return self.model_dump(mode="json", exclude=WHERE) | {"per_query": self.count}

    @property
    def count(self) -> int:
        """Documents per query."""
        if self.per_query is None:
            return 1 if self.strategy == "one" else PER_QUERY
        return self.per_query

    def files(self) -> dict[str, Path]:
        """Name -> file of every text and judgement that is read."""
        found = {name: path for name in ("corpus", "queries", "known") if (path := getattr(self, name)) is not None}
        if self.collection is None:
            return found
        splits = splits_of(self.collection)
        for split in (self.split, self.exclude_judged):
            if split is not None and splits and split not in splits:
                raise InputError(
                    f"{self.collection / 'qrels'}: got split {split!r}; expected one of {', '.join(splits)}; "
                    "fix: name a split that has a qrels file"
                )
            if split is not None:
                found[f"qrels/{split}"] = self.collection / "qrels" / f"{split}.tsv"
        return {name: self.collection / f"{name}.jsonl" for name in ("corpus", "queries")} | found


def splits_of(collection: Path) -> list[str]:
    """Names of the qrels files of a collection folder."""
    return sorted(path.stem for path in (collection / "qrels").glob("*.tsv"))
