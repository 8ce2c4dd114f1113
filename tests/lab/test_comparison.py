import math

import pytest

from bixse.report.schema import training_curve


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
@pytest.mark.parametrize(
    ("name", "field"), [("loss", "loss"), ("grad_norm", "gradient_norm"), ("eval_dev_ndcg@10", "dev_ndcg")]
)
def test_figures_that_are_no_numbers_are_left_out(name, field, value):
    history = [{"step": 1, "logit_bias": -3.0, name: value}, {"step": 2, "logit_bias": -2, name: 0.5}]
    first, second = training_curve("bixse", history, best_step=2).points
    assert (first.logit_bias, getattr(first, field)) == (-3.0, None)
    assert (second.logit_bias, getattr(second, field)) == (-2.0, 0.5)


def test_entries_of_one_step_are_one_point():
    history = [{"step": 0, "eval_dev_ndcg@10": 0.4}, {"step": 3, "loss": 0.2}, {"step": 3, "eval_dev_ndcg@10": 0.5}]
    curve = training_curve("bixse", history, best_step=None)
    assert [(point.step, point.loss, point.dev_ndcg) for point in curve.points] == [(0, None, 0.4), (3, 0.2, 0.5)]
