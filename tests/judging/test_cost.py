import json

import pytest

from bixse.errors import ConfigError, InputError
from bixse.judging.grade_settings import Prices, PriceSettings, load_prices
from bixse.judging.judge import Usage

LITELLM = {
    "sample_spec": {"input_cost_per_token": 0, "output_cost_per_token": 0, "mode": "one of chat, ..."},
    "gpt-x": {
        "input_cost_per_token": 1.5e-07,
        "output_cost_per_token": 6e-07,
        "cache_read_input_token_cost": 7.5e-08,
        "output_cost_per_reasoning_token": 9e-07,
        "litellm_provider": "openai",
    },
    "free": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "embed": {"input_cost_per_token": 1e-07},
    "odd": {"input_cost_per_token": "0.1", "output_cost_per_token": 1e-7},
}


def test_every_kind_of_token_at_its_price():
    prices = PriceSettings(price_in=2.0, price_out=8.0, price_cached=0.5).of("gpt-x")
    usage = Usage(prompt=1_000_000, cached=400_000, completion=10_000, reasoning=4_000)
    assert prices.usd(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.01 * 8.0)
    assert Prices(1e-6, 2e-6, None, 5e-6).usd(usage) == pytest.approx(1.0 + 6_000 * 2e-6 + 4_000 * 5e-6)
    assert Prices().usd(usage) == 0


def test_cached_tokens_without_a_price_of_their_own_cost_as_others():
    prices = PriceSettings(price_in=2.0, price_out=0.0).of("gpt-x")
    assert prices.usd(Usage(prompt=100, cached=100)) == pytest.approx(100 * 2e-6)


def test_a_price_file_of_litellms_shape(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(LITELLM))
    found = load_prices(path, "gpt-x")
    assert found == Prices(1.5e-07, 6e-07, 7.5e-08, 9e-07)
    assert load_prices(path, "free") == Prices(0.0, 0.0)
    for model, says in (("gpt-y", "did you mean 'gpt-x'"), ("embed", "output_cost"), ("odd", "'0.1'")):
        with pytest.raises(InputError, match="fix") as caught:
            load_prices(path, model)
        assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gpt-x": 3}'])
def test_a_damaged_price_file_is_told(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(InputError, match="fix"):
        load_prices(path, "gpt-x")


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_below_0_is_refused(price):
    with pytest.raises(ConfigError, match="price_in"):
        PriceSettings.load(None, {"price_in": price, "price_out": 1.0})


@pytest.mark.parametrize(
    "given", [{"price_in": 1}, {"max_usd": 1}, {"price_cached": 1}, {"prices": "p.json", "price_in": 1, "price_out": 1}]
)
def test_prices_that_do_not_go_together_are_refused(given):
    with pytest.raises(ConfigError, match="fix"):
        PriceSettings.load(None, given)
