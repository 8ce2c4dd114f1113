import math

import pytest
from pydantic import ValidationError

from bixse.report.schema import ReportData, training_curve


def changed(data, path, value):
    """Return the dumped data with a value replaced."""
    at = dumped = data.model_dump()
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dumped


@pytest.mark.parametrize(
    ("path", "value", "fact"),
    [
        (["colour"], "red", "colour"),
        (["systems"], [], "at least 1"),
        (["systems", 0, "metrics"], {"ndcg@10": float("nan")}, "finite"),
        (["systems", 1, "name"], "bm25", "'bm25' twice"),
        (["comparisons", 0, "difference", "mean"], float("inf"), "finite"),
        (["comparisons", 0, "system"], "bixze", "expected one of"),
        (["primary_metric"], "ndcg@5", "which no system has"),
        (["created"], "yesterday", "isoformat"),
        (["calibrations", "BiXSE, as trained", "brier_interval"], [0.1], "brier_interval"),
        (["calibrations", "BiXSE, as trained", "colour"], 1, "colour"),
        (["training", 0, "logged", "loss", 0], [0, float("nan")], "finite"),
    ],
)
def test_invalid_data_is_refused(full_data, path, value, fact):
    with pytest.raises(ValidationError, match=fact):
        ReportData.model_validate(changed(full_data, path, value))


def test_half_a_surrogate_pair_is_replaced(minimal_data):
    broken = ReportData.model_validate(changed(minimal_data, ["facts"], {"a\ud83d": "\udc00 fine 🦊"}))
    assert broken.facts == {"a\ufffd": "\ufffd fine 🦊"}
    assert ReportData.model_validate_json(broken.model_dump_json()) == broken


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_training_curve_leaves_out_values_that_are_not_finite(value):
    history = [{"step": 1, "logit_bias": -3.0, "grad_norm": value}, {"step": 2, "logit_bias": -2, "grad_norm": 0.5}]
    logged = training_curve("bixse", history, best_step=2).logged
    assert logged == {"logit_bias": [(1, -3.0), (2, -2.0)], "grad_norm": [(2, 0.5)]}
