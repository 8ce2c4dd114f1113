"""Settings of the verbs that ask a judge or a server."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bixse.errors import InputError, did_you_mean, shorten
from bixse.files.files import read_text
from bixse.judging.judge import Dtype, Question
from bixse.judging.rubrics import Rubric, load_rubric
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.judging.judge import Usage


MILLION = 1_000_000
"""Options give prices per million tokens, price files give them per token."""


@dataclass(frozen=True)
class Prices:
    """US dollars per token; all 0 for your own server or model.

    Example:
        >>> from bixse.judging.judge import Usage
        >>> prices = PriceSettings(price_in=2.0, price_out=8.0, price_cached=0.5).of("gpt-x")
        >>> round(prices.usd(Usage(prompt=1000, cached=400, completion=10)), 6)
        0.00148
    """

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """Price of a token from the server's prompt cache; None for the price of a prompt token."""
    reasoning: float | None = None
    """Price of a reasoning token; None for the price of a completion token."""

    def usd(self, usage: Usage) -> float:
        cached = self.prompt if self.cached is None else self.cached
        reasoning = self.completion if self.reasoning is None else self.reasoning
        return (
            (usage.prompt - usage.cached) * self.prompt
            + usage.cached * cached
            + (usage.completion - usage.reasoning) * self.completion
            + usage.reasoning * reasoning
        )


class PriceSettings(Settings):
    """Prices, given or looked up, and the budget."""

    price_in: float | None = Field(default=None, ge=0)
    """US dollars for a million tokens read."""
    price_out: float | None = Field(default=None, ge=0)
    """US dollars for a million tokens written."""
    price_cached: float | None = Field(default=None, ge=0)
    """US dollars for a million tokens read from cache."""
    max_usd: float | None = Field(default=None, ge=0)
    """Stop before more than X US dollars are spent."""
    prices: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Price file of litellm's shape; the model is looked up by its name."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = sum(price is not None for price in (self.price_in, self.price_out))
        if self.prices is not None and given:
            raise ValueError("prices: got --price-in or --price-out too; expected one of the two; fix: drop one")
        if given == 1:
            raise ValueError("prices: got one of --price-in and --price-out; expected both; fix: add the other (or 0)")
        if self.prices is None and not given and (self.price_cached, self.max_usd) != (None, None):
            flag = "--price-cached" if self.price_cached is not None else "--max-usd"
            raise ValueError(f"{flag}: got no prices; expected them; fix: add --price-in and --price-out")
        return self

    def of(self, model: str) -> Prices:
        """Return the prices of a model, or 0 if none are given."""
        if self.prices is not None:
            return load_prices(self.prices, model)
        cached = None if self.price_cached is None else self.price_cached / MILLION
        return Prices((self.price_in or 0.0) / MILLION, (self.price_out or 0.0) / MILLION, cached)


class _Listed(BaseModel):
    """Prices of a model in litellm's file, in US dollars per token."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    input_cost_per_token: float = Field(ge=0)
    output_cost_per_token: float = Field(ge=0)
    cache_read_input_token_cost: float | None = Field(default=None, ge=0)
    output_cost_per_reasoning_token: float | None = Field(default=None, ge=0)


def load_prices(path: Path, model: str) -> Prices:
    """Read the prices of a model from a file in litellm's format (`model_prices_and_context_window.json`)."""
    otherwise = "use --price-in and --price-out"
    try:
        table = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: got no valid JSON ({error}); expected a price file; fix: download it again, or {otherwise}"
        ) from error
    entries = {name: entry for name, entry in table.items() if isinstance(entry, dict)} if type(table) is dict else {}
    if model not in entries:
        raise InputError(
            f"{path}: got no prices of {shorten(model)}; expected an entry of that name; "
            f"fix: {did_you_mean(model, entries, otherwise)}"
        )
    try:
        found = _Listed.model_validate(entries[model])
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {model}: {first['loc'][0]}: got {shorten(first['input'])}; expected US dollars per token, 0 or "
            f"more; fix: {otherwise}"
        ) from error
    return Prices(
        found.input_cost_per_token,
        found.output_cost_per_token,
        found.cache_read_input_token_cost,
        found.output_cost_per_reasoning_token,
    )


BM25, JUDGED = "bm25", "judged"
"""Values of `candidates`: the documents that BM25 finds, or the judged documents."""
AskedMode = Literal["auto", "sample", "verbal"]
"""The way to read a grade from a server; see `bixse.judging.judge.Mode`."""
NamedRubric = Annotated[
    Rubric | None,
    BeforeValidator(lambda given: load_rubric(given) if isinstance(given, (str, Path)) else given),
    Flag(metavar="NAME"),
]
"""A rubric, or the name by which `load_rubric` finds it."""


class ServerSettings(Settings):
    """Requests to a chat server, for every verb that sends them."""

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
    """Settings of judges; each kind of judge reads the settings that apply to it."""

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
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """How the scores of a cross-encoder become relevance: logit (default, a sigmoid), prob, percent or
    platt:SLOPE,INTERCEPT."""
    scale: tuple[float, float] | None = None
    """Lowest and highest grade of replayed judgements."""


class AskSettings(Settings):
    """Questions about a pair."""

    rubric: NamedRubric = None
    """What is asked; None for judges that read no rubric."""
    document_characters: int | None = Field(default=None, ge=1)
    """Show the judge only the first N characters of a document."""

    @property
    def questions_per_pair(self) -> int:
        return 1 if self.rubric is None else len(self.rubric.variants)

    def questions(self, pair: Pair, repeat: int = 0) -> list[Question]:
        """Return one question per prompt variant of the rubric."""
        shown = pair.document if self.document_characters is None else pair.document[: self.document_characters]
        ids = (pair.query_id, pair.document_id, pair.query, shown)
        if self.rubric is None:
            return [Question(*ids, repeat=repeat)]
        return [
            Question(*ids, variant.name, variant.messages(pair.query, shown), repeat)
            for variant in self.rubric.variants
        ]


class GradeSettings(AskSettings):
    """Settings of grading that decide the rows, apart from pairs and judge."""

    ask_twice: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.0
    """Ask this share of the pairs twice, to see how far the judge agrees with itself."""
    seed: int = 0
    """Of the choice of those pairs."""

    def is_repeated(self, pair: Pair) -> bool:
        """Return whether a pair is asked twice; this depends on the seed and its ids, not on the other pairs."""
        content = repr((self.seed, pair.query_id, pair.document_id)).encode("utf-8")
        drawn = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        return drawn < self.ask_twice

    def with_repeats(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, int]]:
        """Yield every pair with repeat 0, then the pairs to ask twice with repeat 1."""
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
    """Candidates to rank, and metrics."""

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
