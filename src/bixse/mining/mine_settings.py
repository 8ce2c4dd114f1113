"""Settings of a mining run, checked before any work, and the files they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.errors import SEEDS, InputError
from bixse.mining.selection import check_strategy

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.mining.selection import Strategy

PER_QUERY = 8
"""Documents a query that are mined where nothing else is said."""


@dataclass(frozen=True)
class MineConfig:
    """Settings of a mining run.

    Raises:
        InputError: an unknown strategy, a number out of range, a text collection that is missing or given twice.
    """

    collection: Path | None = None
    """Folder in the BEIR layout; or give `corpus` and `queries`."""
    corpus: Path | None = None
    """JSONL file of documents: {_id, title, text}."""
    queries: Path | None = None
    """JSONL file of queries: {_id, text}."""
    split: str | None = None
    """Only the queries that this split of the collection judges; None takes all queries."""
    retrievers: tuple[str, ...] = ("bm25",)
    """"bm25", "demo", model folders or hub names, each once."""
    strategy: Strategy = "spread"
    """How the documents of a query are chosen."""
    per_query: int | None = None
    """Documents per query; None means 8, and 1 for the strategy "one"."""
    depth: int = 100
    """Places of each ranking that count."""
    seed: int = 0
    """Of the draws, and of the choice of queries."""
    exclude_self: bool = False
    """Leave out the document whose id equals the query's id."""
    exclude_judged: str | None = None
    """Leave out the pairs that this split of the collection judges, whatever the grade."""
    known: Path | None = None
    """File of graded pairs to leave out, whatever the grade."""
    max_queries: int | None = None
    """Mine for this many queries, drawn by the seed; None mines for all."""
    max_length: int | None = None
    """Tokens of a text that an encoder reads; None keeps its own limit."""
    task: str | None = None
    """Name of the task, written beside every pair; encoders with task instructions use those of this task."""

    def __post_init__(self) -> None:
        """Check what can be checked without reading a file."""
        check_strategy(self.strategy)
        if (self.collection is None) == (self.corpus is None) or (self.corpus is None) != (self.queries is None):
            found = [f"--{name}" for name in ("collection", "corpus", "queries") if getattr(self, name) is not None]
            raise InputError(
                f"mine: got {' and '.join(found) or 'no texts'}; expected --collection DIR, or --corpus FILE and "
                "--queries FILE; fix: give one of the two"
            )
        for name in ("split", "exclude_judged"):
            if getattr(self, name) is not None and self.collection is None:
                raise InputError(
                    f"--{name.replace('_', '-')}: got {getattr(self, name)!r} without --collection; expected a folder "
                    "with qrels; fix: give --collection (pairs in a file are left out with --known)"
                )
        for name in ("per_query", "depth", "max_queries", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')}: got {value}; expected at least 1; fix: leave it out")
        if not 0 <= self.seed < SEEDS:
            raise InputError(f"seed: got {self.seed}; expected 0 to {SEEDS - 1}; fix: leave it out for 0")
        if self.strategy == "one" and self.count != 1:
            raise InputError(
                f"--per-query: got {self.count} for the strategy one; expected 1; fix: leave --per-query out"
            )
        if self.count > self.depth:
            raise InputError(
                f"--per-query: got {self.count} with --depth {self.depth}; expected no more than the depth; "
                f"fix: --depth {self.count} or more"
            )
        if self.strategy == "hard-negatives" and self.known is None and self.exclude_judged is None:
            raise InputError(
                "strategy hard-negatives: got no known pairs; expected those that are relevant, which would be mined "
                "as negatives; fix: --known FILE (graded pairs), or --exclude-judged SPLIT (qrels)"
            )

    @property
    def count(self) -> int:
        """Documents per query."""
        if self.per_query is None:
            return 1 if self.strategy == "one" else PER_QUERY
        return self.per_query

    def files(self) -> dict[str, Path]:
        """Name -> file of every text and judgement that is read.

        Raises:
            InputError: a folder or file is missing.
        """
        if self.collection is not None:
            if not self.collection.is_dir():
                found = "a file" if self.collection.exists() else "no such folder"
                raise InputError(
                    f"{self.collection}: got {found}; expected a collection folder with corpus.jsonl and "
                    "queries.jsonl; fix: check the path"
                )
            found_files = {name: self.collection / f"{name}.jsonl" for name in ("corpus", "queries")}
            for split in (self.split, self.exclude_judged):
                if split is not None:
                    found_files[f"qrels/{split}"] = _qrels_file(self.collection, split)
        else:
            found_files = {name: path for name in ("corpus", "queries") if (path := getattr(self, name)) is not None}
        if self.known is not None:
            found_files["known"] = self.known
        for name, path in found_files.items():
            if not path.is_file():
                found = "a folder" if path.is_dir() else "no such file"
                raise InputError(f"{path}: got {found}; expected the file of {name}; fix: check the path")
        return found_files


def splits_of(collection: Path) -> list[str]:
    """Names of the qrels files of a collection folder."""
    return sorted(path.stem for path in (collection / "qrels").glob("*.tsv"))


def _qrels_file(collection: Path, split: str) -> Path:
    if split not in splits_of(collection):
        raise InputError(
            f"{collection / 'qrels'}: got split {split!r}; expected one of "
            f"{', '.join(splits_of(collection)) or 'qrels/<split>.tsv'}; fix: name a split that has a qrels file"
        )
    return collection / "qrels" / f"{split}.tsv"
