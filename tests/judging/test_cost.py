import pytest

from bixse.errors import ConfigError
from bixse.judging.grade_settings import Prices
from bixse.judging.judge import Usage


def test_every_kind_of_token_at_its_price():
    usage = Usage(prompt=1_000_000, cached=400_000, completion=10_000, reasoning=4_000)
    assert Prices(per_million=(2.0, 8.0, 0.5)).usd(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.01 * 8.0)
    assert Prices(per_million=(2.0, 8.0)).usd(usage) == pytest.approx(2.08), "cached tokens cost as others"
    assert Prices().usd(usage) == 0


@pytest.mark.parametrize(
    "given",
    [
        {"per_million": [-1.0, 1.0]},
        {"per_million": [float("nan"), 1.0]},
        {"per_million": [float("inf"), 1.0]},
        {"per_million": [1.0]},
        {"per_million": [1.0, 1.0, 1.0, 1.0]},
        {"max_usd": 1},
        {"per_million": [1, 1], "max_usd": -1},
    ],
)
def test_prices_that_cannot_be_are_refused(given):
    with pytest.raises(ConfigError, match="fix"):
        Prices.load(None, given)
