import math

import pytest

from bixse.report.schema import training_curve


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_figures_that_are_no_numbers_are_left_out(value):
    history = [{"step": 1, "logit_bias": -3.0, "grad_norm": value}, {"step": 2, "logit_bias": -2, "grad_norm": 0.5}]
    logged = training_curve("bixse", history, best_step=2).logged
    assert logged == {"logit_bias": [(1, -3.0), (2, -2.0)], "grad_norm": [(2, 0.5)]}
