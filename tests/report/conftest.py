"""Report data for the tests: full data as of a quickstart, and the smallest."""

import numpy as np
import pytest

from bixse.report.schema import QueryChange, ReportData, SystemScores, TrainingCurve
from bixse.results import CalibrationReport, Comparison, Difference, ReliabilityBin

SYSTEMS = {
    "bm25": ("BM25", {"ndcg@10": 0.411, "recall@100": 0.86, "mrr@10": 0.49}),
    "base": ("MiniLM, untrained", {"ndcg@10": 0.4731, "recall@100": 0.91, "mrr@10": 0.552}),
    "infonce": ("InfoNCE", {"ndcg@10": 0.462, "recall@100": 0.913}),
    "bixse": ("BiXSE", {"ndcg@10": 0.526, "recall@100": 0.934, "mrr@10": 0.6}),
}
COMPARISONS = [
    ("bixse", "base", "ndcg@10", Difference(0.0531, 0.012, 0.094, 0.0004, 113)),
    ("infonce", "base", "ndcg@10", Difference(-0.011, -0.044, 0.021, 0.51, 113)),
    ("bm25", "base", "ndcg@10", Difference(-0.062, -0.11, -0.013, 0.013, 113)),
    ("bixse", "bm25", "ndcg@10", Difference(0.115, 0.06, 0.171, 0.0002, 113)),
    ("bixse", "base", "recall@100", Difference(0.024, -0.003, 0.05, 0.09, 113)),
]


def query_changes(before, after):
    return [
        QueryChange(query_id=f"q-{i:03d}", query=f"copy a folder ({i})", baseline_score=old, system_score=new)
        for i, (old, new) in enumerate(zip(before, after, strict=True))
    ]


@pytest.fixture(scope="session")
def full_data():
    """Four systems, two training runs, two calibrations, 113 queries."""
    rng = np.random.default_rng(0)
    before = rng.beta(1.2, 1.3, 113)
    after = np.where(rng.random(113) < 0.35, before, np.clip(before + rng.normal(0.06, 0.2, 113), 0, 1))
    return ReportData(
        title="pydocs: BiXSE against the model it started from",
        description="A small retriever, tuned on graded relevance of the Python documentation, on held-out queries.",
        created="2026-01-31T12:00:00+00:00",
        verdicts=["The tuned model ranks better than the model it started from."],
        systems=[SystemScores(name=name, label=label, metrics=scores) for name, (label, scores) in SYSTEMS.items()],
        primary_metric="ndcg@10",
        comparisons=[Comparison(*facts) for facts in COMPARISONS],
        calibrations={"BiXSE, as trained": calibration(0.151), "BiXSE, calibrated on dev": calibration(0.118)},
        training=[_curve("bixse", with_logits=True), _curve("infonce", with_logits=False)],
        per_query_baseline="base",
        per_query_system="bixse",
        per_query=query_changes(before.tolist(), after.tolist()),
        facts={"data set": "pydocs", "queries": "113 (test)", "command": "bixse quickstart --out runs/quickstart"},
        timings={"read data": 0.04, "train": 619.4},
        commands=["bixse train --pairs yours.jsonl --out runs/yours"],
        notes=["A single seed."],
    )


@pytest.fixture(scope="session")
def minimal_data():
    """A single system, nothing else."""
    return ReportData(
        title="BM25 alone",
        created="2026-01-31",
        systems=[SystemScores(name="bm25", label="BM25", metrics={"ndcg@10": 0.0})],
        primary_metric="ndcg@10",
    )


def calibration(brier, interval=(0.1, 0.18)):
    centres = np.linspace(0.05, 0.95, 10).tolist()
    bins = [
        ReliabilityBin(x, 0.8 * x, int(900 * np.exp(-4 * x)), max(0.0, 0.8 * x - 0.1), 0.8 * x + 0.1) for x in centres
    ]
    return CalibrationReport(2200, 113, brier, interval, 0.05, (0.01, 0.13), 0.163, bins)


def _curve(system, with_logits):
    steps = range(0, 401, 5)
    logged = {
        "loss": [(step, 8.1 * float(np.exp(-step / 300))) for step in steps],
        "eval_dev_ndcg@10": [(step, 0.47 + step / 8000) for step in steps if step % 50 == 0],
    }
    if with_logits:
        for name, start in (("logit_bias", -8.2), ("mean_logit_relevant", -1.5), ("mean_logit_irrelevant", -6.0)):
            logged[name] = [(step, start + step / 300) for step in steps]
    return TrainingCurve(system=system, logged=logged, best_step=350)
