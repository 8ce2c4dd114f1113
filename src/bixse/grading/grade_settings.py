"""What a judge is asked, and of which pairs: settings of `grade` and `grade rank`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from bixse.grading.judge import Question
from bixse.grading.rubrics import Rubric, load_rubric
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.graded_pairs import Pair

BM25, JUDGED = "bm25", "judged"
"""Words for candidates: the documents BM25 finds, or those that have a judgement."""
NamedRubric = Annotated[
    Rubric | None,
    BeforeValidator(lambda given: load_rubric(given) if isinstance(given, (str, Path)) else given),
    Flag(metavar="NAME"),
]
"""A rubric, or the name by which `load_rubric` finds it."""


class AskSettings(Settings):
    """What a judge is asked about a pair."""

    rubric: NamedRubric = None
    """What is asked; None for judges that read no rubric."""
    document_characters: int | None = Field(default=None, ge=1)
    """Show the judge only the first N characters of a document."""

    def questions(self, pair: Pair, repeat: int = 0) -> list[Question]:
        """The questions about one pair: one a prompt variant of the rubric."""
        shown = pair.document if self.document_characters is None else pair.document[: self.document_characters]
        ids = (pair.query_id, pair.document_id, pair.query, shown)
        if self.rubric is None:
            return [Question(*ids, repeat=repeat)]
        return [
            Question(*ids, variant.name, variant.messages(pair.query, shown), repeat)
            for variant in self.rubric.variants
        ]


class GradeSettings(AskSettings):
    """What decides the rows, apart from pairs and judge."""

    regrade: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.0
    """Ask this share of the pairs twice, to see how far the judge agrees with itself."""
    seed: int = 0
    """Of the choice of those pairs."""

    def is_repeated(self, pair: Pair) -> bool:
        """Whether a pair is one of those asked twice; depends on seed and ids alone, not on the other pairs."""
        content = repr((self.seed, pair.query_id, pair.document_id)).encode("utf-8")
        drawn = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        return drawn < self.regrade

    def with_repeats(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, int]]:
        """Every pair with repeat 0, then those asked again with repeat 1."""
        yield from ((pair, 0) for pair in pairs)
        yield from ((pair, 1) for pair in pairs if self.is_repeated(pair))

    def config(self) -> dict[str, Any]:
        """The settings as plain data."""
        rubric = None if self.rubric is None else {"name": self.rubric.name, "hash": self.rubric.content_hash}
        return {
            "rubric": rubric,
            "regrade": self.regrade,
            "seed": self.seed,
            "document_characters": self.document_characters,
        }


class RankSettings(AskSettings):
    """What is put in order, and what the judge is asked about it."""

    collection: Annotated[Path, Flag(metavar="DIR")]
    """Folder with corpus.jsonl, queries.jsonl and qrels."""
    split: str = "test"
    """Score against qrels/NAME.tsv; its queries are ranked."""
    candidates: str = BM25
    """What is put in order: bm25 (what BM25 finds), judged (the judged documents), or a TREC run file."""
    depth: int = Field(default=100, ge=1)
    """Candidates per query."""
    min_relevant_grade: Annotated[float, Flag(metavar="GRADE")] = MIN_RELEVANT_GRADE
    """Grade from which a document is relevant for recall and MRR."""
