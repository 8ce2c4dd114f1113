from __future__ import annotations

import math
from typing import Any

import pytest

from bixse.studies.quickstart.comparison import training_curve


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("name", ["loss", "mean_logit_relevant", "grad_norm", "eval_dev_ndcg@10"])
def test_figures_that_are_no_numbers_are_left_out(name: str, value: Any) -> None:
    history = [{"step": 1, "logit_bias": -3.0, name: value}, {"step": 2, "logit_bias": -2, name: 0.5}]
    curve = training_curve("bixse", history, best_step=2)
    first, second = curve.points
    field = {"grad_norm": "gradient_norm", "eval_dev_ndcg@10": "dev_ndcg"}.get(name, name)
    assert (first.logit_bias, getattr(first, field)) == (-3.0, None)
    assert (second.logit_bias, getattr(second, field)) == (-2.0, 0.5)


def test_entries_of_one_step_are_one_point() -> None:
    history = [{"step": 0, "eval_dev_ndcg@10": 0.4}, {"step": 3, "loss": 0.2}, {"step": 3, "eval_dev_ndcg@10": 0.5}]
    curve = training_curve("bixse", history, best_step=None)
    assert [(point.step, point.loss, point.dev_ndcg) for point in curve.points] == [(0, None, 0.4), (3, 0.2, 0.5)]
