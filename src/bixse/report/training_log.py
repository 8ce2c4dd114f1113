"""A training log as the curve that plots show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bixse.report.schema import TrainingCurve, TrainingPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def training_curve(system: str, history: Sequence[Mapping[str, Any]], best_step: int | None) -> TrainingCurve:
    """The trainer's log as the report's curve: entries of one step are one point.

    A figure that is no finite number is left out: a batch without a relevant document has no mean logit of such.
    """
    renamed = {"grad_norm": "gradient_norm", "eval_dev_ndcg@10": "dev_ndcg"}
    known = set(TrainingPoint.model_fields) - {"step"}
    points: dict[int, dict[str, Any]] = {}
    for entry in history:
        point = points.setdefault(int(entry["step"]), {"step": int(entry["step"])})
        for name, value in entry.items():
            field = renamed.get(name, name)
            if field in known and value is not None and math.isfinite(value):
                point[field] = float(value)
    return TrainingCurve(
        system=system, points=[TrainingPoint(**points[step]) for step in sorted(points)], best_step=best_step
    )
