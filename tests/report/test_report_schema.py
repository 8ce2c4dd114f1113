from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bixse.report.schema import Calibration, Comparison, ReportData, TrainingCurve, TrainingPoint


def changed(data: ReportData, path: list[Any], value: Any) -> dict[str, Any]:
    """The dumped data with one value replaced."""
    dumped = data.model_dump()
    at: Any = dumped
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dumped


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["colour"], "red", "colour"),
        (["systems", 0, "rank"], 1, "rank"),
        (["systems"], [], "at least 1"),
        (["systems", 0, "metrics"], {"ndcg@10": float("nan")}, "finite"),
        (["systems", 0, "seconds"], float("inf"), "finite"),
        (["systems", 1, "name"], "bm25", "'bm25' twice"),
        (["comparisons", 0, "low"], 0.5, "low end first"),
        (["comparisons", 0, "verdict"], "much better", "verdict"),
        (["comparisons", 0, "p_value"], 1.5, "less than or equal to 1"),
        (["comparisons", 0, "system"], "bixze", "expected one of"),
        (["comparisons", 1], "a copy of the first", "comparisons"),
        (["primary_metric"], "ndcg@5", "which no system has"),
        (["created"], "yesterday", "ISO 8601"),
        (["confidence"], 95.0, "confidence"),
        (["calibrations", 0, "brier"], 1.2, "brier"),
        (["calibrations", 0, "brier_low"], None, "both or neither"),
        (["calibrations", 0, "curve", 0, "low"], 0.99, "low end first"),
        (["training", 0, "points", 0, "step"], 399, "steps that rise"),
        (["training", 0, "points", 0, "dev_ndcg"], -0.1, "dev_ndcg"),
        (["per_query", 0, "query_id"], "q-001", "'q-001' twice"),
        (["side_by_side", 0, "system", 0, "rank"], 0, "rank"),
        (["timings", "train"], -1.0, "train"),
        (["title"], 7, "title"),
    ],
)
def test_bad_data_is_refused(full_data: ReportData, path: list[Any], value: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ReportData.model_validate(changed(full_data, path, value))


def test_json_gives_back_what_went_in(full_data: ReportData, minimal_data: ReportData) -> None:
    for data in (full_data, minimal_data):
        assert ReportData.model_validate_json(data.model_dump_json()) == data


def test_models_are_frozen(full_data: ReportData) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        full_data.title = "another"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        full_data.comparisons[0].mean = 1.0  # type: ignore[misc]


def test_only_the_step_of_a_training_point_is_required() -> None:
    point = TrainingPoint(step=3)
    assert [name for name, value in point if value is not None] == ["step"]
    assert TrainingCurve(system="tuned", points=[]).best_step is None


def test_optional_intervals_and_p_value() -> None:
    assert Calibration(name="raw", pairs=3, queries=1, brier=0.1, ece=0.1, constant_brier=0.2).brier_low is None
    comparison = Comparison(
        system="a", baseline="b", metric="m", mean=0.0, low=0.0, high=0.0, verdict="no difference", queries=1
    )
    assert comparison.p_value is None


def test_metrics_start_with_the_primary_one(full_data: ReportData) -> None:
    data = ReportData.model_validate(changed(full_data, ["primary_metric"], "mrr@10"))
    assert data.metrics == ["mrr@10", "ndcg@10", "recall@100"]


def test_label_of_a_system_and_of_a_stranger(full_data: ReportData) -> None:
    assert full_data.label("base") == "MiniLM, untrained"
    assert full_data.label("stranger") == "stranger"


def test_half_a_surrogate_pair_is_replaced(minimal_data: ReportData) -> None:
    broken = ReportData.model_validate(changed(minimal_data, ["facts"], {"a\ud83d": "\udc00 fine 🦊"}))
    assert broken.facts == {"a\ufffd": "\ufffd fine 🦊"}
    assert ReportData.model_validate_json(broken.model_dump_json()) == broken
