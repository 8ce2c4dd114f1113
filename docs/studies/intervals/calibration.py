"""Simulate the intervals of AUC, Brier score and calibration error: `python docs/studies/intervals/calibration.py`.

Prints rows of the table in docs/reference/calibration.md: per number of queries the share of samples whose interval
holds the truth, and for an AUC of .5 the share of false "separates".
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import expit, ndtr

from bixse.calibration.reliability import auc, calibration_report

QUERIES = (20, 40, 80, 200)
EFFECT = 0.7  # standard deviation of the effect of a query
RNG = np.random.default_rng(0)


def query_of(queries: int) -> np.ndarray:
    return np.repeat(np.arange(queries), np.clip(RNG.lognormal(2, 0.9, queries).astype(int), 2, 100))


def auc_sample(queries: int, gap: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One relevant document per query, which scores `gap` standard deviations above the others."""
    query = query_of(queries)
    relevant = np.append(True, query[1:] != query[:-1])
    own = EFFECT * RNG.normal(size=queries)[query]
    return gap * relevant + own + np.sqrt(1 - EFFECT**2) * RNG.normal(size=len(query)), relevant, query


def pair_sample(queries: int, slope: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Relevance with an effect of the query that the predictions do not know; a slope other than 1 is overconfident."""
    query = query_of(queries)
    logit = RNG.normal(-1, 1.5, len(query))
    nodes, mass = np.polynomial.hermite_e.hermegauss(21)  # of slope 1: the mean over the effects of queries
    exact = expit(logit[:, None] + EFFECT * nodes) @ mass / mass.sum()
    p = expit(slope * np.log(exact / (1 - exact)))
    return p, (RNG.random(len(query)) < expit(logit + EFFECT * RNG.normal(size=queries)[query])).astype(float), query


def main(samples: int) -> None:
    for gap in (0.0, 1.5, 3.0):
        cells = []
        for queries in QUERIES:
            areas = [
                auc(scores, z, query.tolist())
                for scores, z, query in (auc_sample(queries, gap) for _ in range(samples))
            ]
            areas = [area for area in areas if area is not None and area.low is not None]
            truth = ndtr(gap / np.sqrt(2))
            held = np.mean([area.low <= truth <= area.high for area in areas])
            cells.append(f"{held:.3f}" + (f", {np.mean([a.low > 0.5 for a in areas]):.3f}" if gap == 0 else ""))
        print(f"| AUC {truth:.3f} | {' | '.join(cells)} |", flush=True)
    for slope in (1.0, 1.3, 2.0):
        large = [
            calibration_report(*of[:2], of[2].tolist(), samples=1)
            for of in (pair_sample(20_000, slope) for _ in range(3))
        ]
        truths = [np.mean([getattr(report, name) for report in large]) for name in ("brier", "ece")]
        shares = np.zeros((len(QUERIES), 2))
        for row, queries in enumerate(QUERIES):
            held: list[list[bool]] = [[], []]
            for _ in range(samples):
                p, z, query = pair_sample(queries, slope)
                report = calibration_report(p, z, query.tolist(), seed=int(RNG.integers(1 << 30)))
                for cell, (low, high), truth in zip(
                    held, (report.brier_interval, report.ece_interval), truths, strict=True
                ):
                    if low is not None:  # only shown intervals count
                        cell.append(low <= truth <= high)
            shares[row] = [np.mean(cell) if cell else np.nan for cell in held]
        for name, truth, row_of in zip(("Brier score", "ECE"), truths, shares.T, strict=True):
            print(f"| {name} {truth:.3f} | {' | '.join(f'{share:.3f}' for share in row_of)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
