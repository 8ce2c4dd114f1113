"""The data of a report: what is refused, and that a file gives back what went in."""

import pytest
from pydantic import ValidationError

from bixse.report.schema import ReportData
from bixse.results import Comparison, Difference


def changed(data, path, value):
    """The dumped data with one value replaced."""
    at = dumped = data.model_dump()
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dumped


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["colour"], "red", "colour"),
        (["systems"], [], "at least 1"),
        (["systems", 0, "metrics"], {"ndcg@10": float("nan")}, "finite"),
        (["systems", 1, "name"], "bm25", "'bm25' twice"),
        (["comparisons", 0, "difference", "mean"], float("inf"), "finite"),
        (["comparisons", 0, "system"], "bixze", "expected one of"),
        (["primary_metric"], "ndcg@5", "which no system has"),
        (["created"], "yesterday", "isoformat"),
        (["calibrations", "BiXSE, as trained", "brier"], float("nan"), "finite"),
        (["calibrations", "BiXSE, as trained", "brier_interval"], [0.1], "brier_interval"),
        (["calibrations", "BiXSE, as trained", "colour"], 1, "colour"),
        (["training", 0, "logged", "loss", 0], [0, float("nan")], "finite"),
    ],
)
def test_bad_data_is_refused(full_data, path, value, said):
    with pytest.raises(ValidationError, match=said):
        ReportData.model_validate(changed(full_data, path, value))


def test_json_gives_back_what_went_in(full_data, minimal_data):
    for data in (full_data, minimal_data):
        assert ReportData.model_validate_json(data.model_dump_json()) == data


def test_a_difference_that_is_not_finite_is_refused(full_data):
    bad = Comparison("bixse", "base", "ndcg@10", Difference(float("nan"), 0.0, 1.0, 0.5, 3))
    with pytest.raises(ValidationError, match="finite"):
        ReportData(**{**dict(full_data), "comparisons": [bad]})


def test_half_a_surrogate_pair_is_replaced(minimal_data):
    broken = ReportData.model_validate(changed(minimal_data, ["facts"], {"a\ud83d": "\udc00 fine 🦊"}))
    assert broken.facts == {"a\ufffd": "\ufffd fine 🦊"}
    assert ReportData.model_validate_json(broken.model_dump_json()) == broken
