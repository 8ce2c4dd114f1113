"""What grading costs: prices, and the arithmetic from tokens to US dollars."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text
from bixse.errors import InputError, did_you_mean, shorten

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.grading.judge import Usage

MILLION = 1_000_000
"""People quote prices per million tokens; price files hold them per token."""
_KEYS = {"prompt": "input_cost_per_token", "completion": "output_cost_per_token"}
_REASONING = "output_cost_per_reasoning_token"
_CACHED = "cache_read_input_token_cost"


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars per token; all 0 for a server or model of one's own.

    Example:
        >>> from bixse.grading.judge import Usage
        >>> prices = Prices.per_million(prompt=2.0, completion=8.0, cached=0.5)
        >>> round(prices.usd(Usage(prompt=1000, cached=400, completion=10)), 6)
        0.00148
    """

    prompt: float = 0.0
    """A token read."""
    completion: float = 0.0
    """A token written."""
    cached: float | None = None
    """A token read from the server's prompt cache; None: as any token read."""
    reasoning: float | None = None
    """A token of reasoning; None: as any token written."""

    @classmethod
    def per_million(cls, prompt: float, completion: float, cached: float | None = None) -> Prices:
        """Prices as people quote them, in US dollars per million tokens.

        Raises:
            InputError: a price is negative or not finite.
        """
        for name, price in (("--price-in", prompt), ("--price-out", completion), ("--price-cached", cached)):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise InputError(f"{name}: got {price}; expected US dollars per million tokens, 0 or more; "
                                 "fix: copy it from the provider's price list")  # fmt: skip
        return cls(prompt / MILLION, completion / MILLION, None if cached is None else cached / MILLION)

    def usd(self, usage: Usage) -> float:
        """Price of an answer: tokens read and not cached, cached, written, and of reasoning, each at its price."""
        cached = self.prompt if self.cached is None else self.cached
        reasoning = self.completion if self.reasoning is None else self.reasoning
        return (
            (usage.prompt - usage.cached) * self.prompt
            + usage.cached * cached
            + (usage.completion - usage.reasoning) * self.completion
            + usage.reasoning * reasoning
        )


def load_prices(path: Path, model: str) -> Prices:
    """The prices of a model in a file of litellm's shape (`model_prices_and_context_window.json`).

    Raises:
        InputError: the file cannot be read, or does not hold the model with both prices.
    """
    try:
        table = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: got no valid JSON ({error}); expected a price file; fix: download it again, "
            "or use --price-in and --price-out"
        ) from error
    entry = table.get(model) if isinstance(table, dict) else None
    if not isinstance(entry, dict):
        names = [name for name, value in table.items() if isinstance(value, dict)] if isinstance(table, dict) else []
        hint = did_you_mean(model, names, "use --price-in and --price-out")
        raise InputError(f"{path}: got no prices of {shorten(model)}; expected an entry of that name; fix: {hint}")
    values: dict[str, Any] = {}
    for name, key in {**_KEYS, "cached": _CACHED, "reasoning": _REASONING}.items():
        price = entry.get(key)
        usable = isinstance(price, (int, float)) and not isinstance(price, bool) and math.isfinite(price) and price >= 0
        if (name in _KEYS and not usable) or (price is not None and not usable):
            raise InputError(
                f"{path}: {model}: {key}: got {shorten(price)}; expected US dollars per token, 0 or more; "
                "fix: use --price-in and --price-out"
            )
        values[name] = price
    return Prices(**values)
