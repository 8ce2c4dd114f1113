"""Report data for the tests: a full one as a quickstart would give, and the smallest."""

import numpy as np
import pytest

from bixse.report.schema import (
    QueryChange,
    ReportData,
    SystemScores,
    TrainingCurve,
)
from bixse.results import CalibrationReport, Comparison, Difference, ReliabilityBin

CURVES = ("loss", "eval_dev_ndcg@10", "logit_bias", "mean_logit_relevant", "mean_logit_irrelevant")


def full_report_data():
    """A made-up but realistic result: four systems, two training runs, two calibrations, 113 queries."""
    rng = np.random.default_rng(0)
    before = rng.beta(1.2, 1.3, 113)
    after = np.where(rng.random(113) < 0.35, before, np.clip(before + rng.normal(0.06, 0.2, 113), 0, 1))
    changes = [
        QueryChange(
            query_id=f"q-{i:03d}",
            query=f"copy a folder ({i})",
            baseline_score=float(before[i]),
            system_score=float(after[i]),
        )
        for i in range(113)
    ]
    return ReportData(
        title="pydocs: BiXSE against the model it started from",
        description="A small retriever, tuned on graded relevance of the Python documentation, on held-out queries.",
        created="2026-01-31T12:00:00+00:00",
        verdicts=[
            "The tuned model ranks better than the model it started from; InfoNCE on the same rows shows no difference."
        ],
        systems=[
            SystemScores(name="bm25", label="BM25", metrics={"ndcg@10": 0.411, "recall@100": 0.86, "mrr@10": 0.49}),
            SystemScores(
                name="base",
                label="MiniLM, untrained",
                metrics={"ndcg@10": 0.4731, "recall@100": 0.91, "mrr@10": 0.552},
            ),
            SystemScores(name="infonce", label="InfoNCE", metrics={"ndcg@10": 0.462, "recall@100": 0.913}),
            SystemScores(
                name="bixse",
                label="BiXSE",
                metrics={"ndcg@10": 0.526, "recall@100": 0.934, "mrr@10": 0.6},
            ),
        ],
        primary_metric="ndcg@10",
        comparisons=[
            _comparison("bixse", "base", "ndcg@10", 0.0531, 0.012, 0.094, 0.0004),
            _comparison("infonce", "base", "ndcg@10", -0.011, -0.044, 0.021, 0.51),
            _comparison("bm25", "base", "ndcg@10", -0.062, -0.11, -0.013, 0.013),
            _comparison("bixse", "bm25", "ndcg@10", 0.115, 0.06, 0.171, 0.0002),
            _comparison("bixse", "base", "recall@100", 0.024, -0.003, 0.05, 0.09),
        ],
        calibrations={
            "BiXSE, as trained": _calibration(rng, spread=0.7, brier=0.151),
            "BiXSE, calibrated on the development queries": _calibration(rng, spread=1.0, brier=0.118),
        },
        training=[_curve("bixse", rng, 8.1, "fitted"), _curve("infonce", rng, 2.4, None)],
        per_query_baseline="base",
        per_query_system="bixse",
        per_query=changes,
        facts={"data set": "pydocs", "queries": "113 (test)", "command": "bixse quickstart --out runs/quickstart"},
        timings={"read data": 0.04, "train": 619.4},
        commands=["bixse train --pairs yours.jsonl --out runs/yours"],
        notes=["One seed."],
    )


def minimal_report_data():
    """One system, nothing else."""
    return ReportData(
        title="BM25 alone",
        created="2026-01-31",
        systems=[SystemScores(name="bm25", label="BM25", metrics={"ndcg@10": 0.0})],
        primary_metric="ndcg@10",
    )


@pytest.fixture(scope="session")
def full_data():
    return full_report_data()


@pytest.fixture(scope="session")
def minimal_data():
    return minimal_report_data()


def _comparison(system, baseline, metric, mean, low, high, p_value):
    return Comparison(system, baseline, metric, Difference(mean, low, high, p_value, queries=113))


def _calibration(rng, spread, brier):
    bins = []
    for centre in np.linspace(0.05, 0.95, 10).tolist():
        observed = float(np.clip(0.25 + (centre - 0.25) * spread + rng.normal(0, 0.02), 0, 1))
        count = int(900 * np.exp(-4 * centre)) + 12
        bins.append(ReliabilityBin(centre, observed, count, max(0.0, observed - 0.06), min(1.0, observed + 0.07)))
    interval = (brier - 0.02, brier + 0.021)
    return CalibrationReport(2200, 113, brier, interval, 0.12 * (1.2 - spread), (0.01, 0.13), 0.163, bins)


def _curve(system, rng, start, bias):
    logged = {name: [] for name in CURVES[: None if bias else 2]}
    for step in range(0, 401, 5):
        share = step / 400
        logged["loss"].append((step, start * float(np.exp(-1.2 * share)) + float(rng.normal(0, 0.12))))
        if step % 50 == 0:
            logged["eval_dev_ndcg@10"].append((step, 0.47 + (0.06 if bias else 0.02) * share * (1.8 - share)))
        if bias:
            logged["logit_bias"].append((step, -8.2 + 1.4 * share))
            logged["mean_logit_relevant"].append((step, -1.5 + 2.4 * share))
            logged["mean_logit_irrelevant"].append((step, -6.0 - 1.1 * share))
    return TrainingCurve(system=system, logged=logged, best_step=350 if bias else 400)
