"""Settings of everything that asks a judge or a server: prices, requests, and how a grade is read."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bixse.judging.rubrics import Rubric, load_rubric
from bixse.settings import Flag, Settings, named_words

if TYPE_CHECKING:
    from bixse.judging.judge import Usage

MILLION = 1_000_000
Price = Annotated[float, Field(ge=0)]


class Prices(Settings):
    """US dollars per token, and the maximum cost of all commands; without prices, the cost is unknown.

    Example:
        >>> from bixse.judging.judge import Usage
        >>> prices = Prices(per_million=(2.0, 8.0, 0.5))
        >>> round(prices.usd(Usage(prompt=1000, cached=400, completion=10)), 6)
        0.00148
    """

    per_million: Annotated[tuple[Price, ...] | None, Field(min_length=2, max_length=3), Flag("USD", "prices")] = None
    """US dollars per million prompt tokens, per million completion tokens, and per million cached prompt tokens
    (default: the price of prompt tokens)."""
    max_usd: float | None = Field(default=None, ge=0)
    """Maximum cost in US dollars of all commands that share the ledger. The run stops before they cost more (default:
    no limit)."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.per_million is None and self.max_usd is not None:
            raise ValueError("--max-usd: got no prices; expected them; fix: add --prices READ WRITTEN")
        return self

    def usd(self, usage: Usage) -> float | None:
        """Return the price of tokens, or None without prices."""
        if self.per_million is None:
            return None
        read, written, *cached = self.per_million
        fresh = (usage.prompt - usage.cached) * read + usage.cached * (cached[0] if cached else read)
        return (fresh + usage.completion * written) / MILLION


AskedMode = Literal["auto", "sample", "verbal"]
"""The way to read a grade from a server; see `bixse.judging.judge.Mode`."""
NamedRubric = Annotated[
    Rubric | None,
    BeforeValidator(lambda rubric: load_rubric(rubric) if isinstance(rubric, (str, Path)) else rubric),
    Flag(metavar="NAME"),
]
"""A rubric, or the name by which `load_rubric` finds it."""


def _fields(value: Any) -> Any:
    """Read the words of a command line as fields, each value as JSON or else as a text."""
    fields = named_words(value)
    for name, text in fields.items() if fields is not value else ():
        with suppress(ValueError):
            fields[name] = json.loads(text)
    if isinstance(fields, dict) and (refused := sorted({"model", "messages", "stream"} & set(fields))):
        raise ValueError(f"expected fields that bixse does not set itself; fix: leave {refused[0]} out")
    return fields


class ServerSettings(Settings):
    """Requests to a chat server, for every verb that sends them."""

    model: str | None = None
    """Name of the model on the server (default: its only model)."""
    concurrency: int = Field(default=64, ge=1)
    """Maximum number of concurrent requests to the server."""
    timeout: Annotated[float, Field(gt=0), Flag(metavar="SECONDS")] = 120.0
    """Maximum seconds per request."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the API key."""
    headers: Annotated[dict[str, str], BeforeValidator(named_words), Flag(metavar="NAME=VALUE")] = Field(default={})
    """HTTP headers to add to each request. $NAME in a value is the environment variable NAME: write keys this way."""
    body: Annotated[dict[str, Any], BeforeValidator(_fields), Flag(metavar="NAME=VALUE")] = Field(default={})
    """Fields to add to the JSON of each chat request, such as reasoning_effort=low. They are part of the judge: with
    other fields, all questions are asked again."""


class JudgeOptions(ServerSettings):
    """Settings of judges; each kind of judge reads the settings that apply to it."""

    mode: AskedMode = "auto"
    """Source of the grade: auto reads the probabilities of the options, and refuses a server without them; sample and
    verbal read written answers."""
    samples: int = Field(default=10, ge=1)
    """Number of answers per question with --mode sample."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per answer (default: measured with known questions)."""
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """The map from scores of a cross-encoder to relevance: logit (a sigmoid), prob, percent or platt:SLOPE,INTERCEPT.
    The default is the relevance head in the folder of the model, or else logit."""
    scale: tuple[float, float] | None = None
    """Lowest and highest grade of replayed judgements."""
