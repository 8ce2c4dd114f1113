"""The model that answered, and the price of its tokens."""

import pytest

from bixse.errors import ConfigError
from bixse.judging.grade_settings import Prices
from bixse.judging.judge import Usage, same_model

SAME = [
    ("gpt-4o", ""),
    ("gpt-4", "gpt-4-0613"),
    ("openai/gpt-4o", "gpt-4o-2024-08-06"),
    ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
    ("gemini-1.5-pro", "models/gemini-1.5-pro-002"),
    ("gemini-2.0-flash-05-06", "gemini-2.0-flash"),
    ("llama3.1", "llama3.1:latest"),
    ("deepseek/deepseek-r1", "deepseek/deepseek-r1:free"),
    ("qwen2.5-7b-instruct", r"C:\\models\\Qwen2.5-7B-Instruct.gguf"),
]
OTHER = [
    ("gpt-4o", "gpt-4o-mini-2024-07-18"),
    ("gpt-4", "gpt-4o"),
    ("gpt-4-0613", "gpt-4-0314"),
    ("llama3:8b", "llama3:70b"),
    ("llama-3", "llama-3-70b"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
]


@pytest.mark.parametrize(("names", "same"), [(names, names in SAME) for names in SAME + OTHER])
def test_a_date_a_folder_or_an_alias_does_not_make_another_model(names, same):
    assert same_model(*names) == same


def test_every_kind_of_token_has_its_price():
    usage = Usage(prompt=1_000_000, cached=400_000, completion=10_000, reasoning=4_000)
    assert Prices(per_million=(2.0, 8.0, 0.5)).usd(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.01 * 8.0)
    assert Prices(per_million=(2.0, 8.0)).usd(usage) == pytest.approx(2.08), "cached tokens cost as others"
    assert Prices().usd(usage) == 0


@pytest.mark.parametrize("prices", [[-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [1.0], [1.0] * 4, None])
def test_impossible_prices_are_refused(prices):
    with pytest.raises(ConfigError, match="fix"):
        Prices.load(None, {"per_million": prices, "max_usd": 1 if prices is None else None})
