"""Settings of the verbs that ask a judge or a server: how it is asked, what, and of which pairs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from bixse.judging.judge import Dtype, Question
from bixse.judging.rubrics import Rubric, load_rubric
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.graded_pairs import Pair

BM25, JUDGED = "bm25", "judged"
"""Words for candidates: the documents BM25 finds, or those that have a judgement."""
AskedMode = Literal["auto", "token-ids", "top-logprobs", "constrained", "sample", "verbal"]
"""How a server is asked for a grade; see `bixse.judging.judge.Mode`."""
NamedRubric = Annotated[
    Rubric | None,
    BeforeValidator(lambda given: load_rubric(given) if isinstance(given, (str, Path)) else given),
    Flag(metavar="NAME"),
]
"""A rubric, or the name by which `load_rubric` finds it."""


class ServerSettings(Settings):
    """How a chat server is asked, for every verb that asks one."""

    model: str | None = None
    """Model to ask the server for (default: the one it serves)."""
    revision: str | None = None
    """Revision of the model."""
    concurrency: int = Field(default=64, ge=1)
    """Most requests in flight per address."""
    timeout: Annotated[float, Field(gt=0), Flag(metavar="SECONDS")] = 120.0
    """Seconds for one request."""
    max_downtime: Annotated[float, Field(gt=0), Flag(hidden=True)] = 300.0
    """Seconds without any answer after which a run stops."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""


class JudgeOptions(ServerSettings):
    """Settings of judges; each kind takes those that concern it."""

    mode: AskedMode = "auto"
    """How the grade is read: auto takes the options' probabilities and refuses a server without them; sample and verbal
    need none."""
    samples: int = Field(default=10, ge=1)
    """Answers drawn with --mode sample."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of an answer (default: as probed)."""
    dtype: Dtype = "auto"
    """Number type of a local model's weights; auto is as --precision says."""
    device: str | None = None
    """Device of a local model (default: the best there is)."""
    tokens_per_batch: int | None = Field(default=None, ge=1)
    """Positions in one pass of a local model."""
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """How the scores of a cross-encoder or an encoder with a relevance head (default: logit, a sigmoid), the cosines of
    an encoder without one, or the scores of a replayed file become relevance: prob, percent, logit or
    platt:SLOPE,INTERCEPT."""
    scale: tuple[float, float] | None = None
    """Lowest and highest grade of replayed judgements, where the format does not say."""
    texts: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Collection with the texts of replayed judgements."""


class AskSettings(Settings):
    """What a judge is asked about a pair."""

    rubric: NamedRubric = None
    """What is asked; None for judges that read no rubric."""
    document_characters: int | None = Field(default=None, ge=1)
    """Show the judge only the first N characters of a document."""

    def questions(self, pair: Pair, repeat: int = 0) -> list[Question]:
        """One question per prompt variant of the rubric."""
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

    ask_twice: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.0
    """Ask this share of the pairs twice, to see how far the judge agrees with itself."""
    seed: int = 0
    """Of the choice of those pairs."""

    def is_repeated(self, pair: Pair) -> bool:
        """Depends on seed and ids alone, not on the other pairs."""
        content = repr((self.seed, pair.query_id, pair.document_id)).encode("utf-8")
        drawn = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        return drawn < self.ask_twice

    def with_repeats(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, int]]:
        """Every pair with repeat 0, then those asked again with repeat 1."""
        yield from ((pair, 0) for pair in pairs)
        yield from ((pair, 1) for pair in pairs if self.is_repeated(pair))

    def config(self) -> dict[str, Any]:
        rubric = None if self.rubric is None else {"name": self.rubric.name, "hash": self.rubric.content_hash}
        return {
            "rubric": rubric,
            "ask_twice": self.ask_twice,
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
