"""What grading costs: prices, and the arithmetic from tokens to US dollars."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bixse.errors import InputError, did_you_mean, shorten
from bixse.files.files import read_text
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from bixse.judging.judge import Usage

MILLION = 1_000_000
"""People quote prices per million tokens; price files hold them per token."""


@dataclass(frozen=True)
class Prices:
    """US dollars per token; all 0 for a server or model of one's own.

    Example:
        >>> from bixse.judging.judge import Usage
        >>> prices = PriceSettings(price_in=2.0, price_out=8.0, price_cached=0.5).of("gpt-x")
        >>> round(prices.usd(Usage(prompt=1000, cached=400, completion=10)), 6)
        0.00148
    """

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """A token read from the server's prompt cache; None: as any token read."""
    reasoning: float | None = None
    """A token of reasoning; None: as any token written."""

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
    """Prices, given or looked up, and the most to spend."""

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
        """The prices of a model; 0 where none are given."""
        if self.prices is not None:
            return load_prices(self.prices, model)
        cached = None if self.price_cached is None else self.price_cached / MILLION
        return Prices((self.price_in or 0.0) / MILLION, (self.price_out or 0.0) / MILLION, cached)


class _Listed(BaseModel):
    """Prices of a model as litellm's file lists them, in US dollars per token."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    input_cost_per_token: float = Field(ge=0)
    output_cost_per_token: float = Field(ge=0)
    cache_read_input_token_cost: float | None = Field(default=None, ge=0)
    output_cost_per_reasoning_token: float | None = Field(default=None, ge=0)


def load_prices(path: Path, model: str) -> Prices:
    """The prices of a model in a file of litellm's shape (`model_prices_and_context_window.json`)."""
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
