"""Flags that `bixse grade audit` and `bixse grade calibrate` share: labels of both sides on their scales."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bixse.grading.audit.label_settings import LabelSettings
    from bixse.grading.audit.labels import ImpossibleLabel

LISTED = 20
"""Impossible labels that the terminal shows; audit.json holds all."""


def add_label_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags about labels and scales."""
    parser.add_argument("--human", type=Path, required=True, metavar="QRELS",
                        help="human labels: qrels (TREC, BEIR) or a table of query_id, document_id, grade")  # fmt: skip
    parser.add_argument("--scale", type=float, nargs=2, metavar=("LOW", "HIGH"),
                        help="scale of the human labels (default: the lowest to the highest label found)")  # fmt: skip
    judge_scale = parser.add_mutually_exclusive_group()
    judge_scale.add_argument("--judge-scale", type=float, nargs=2, metavar=("LOW", "HIGH"),
                             help="scale of the judge's grades (default: as its file says, else --scale)")  # fmt: skip
    judge_scale.add_argument("--rubric", metavar="NAME", help="take the judge's scale from this rubric")
    parser.add_argument("--relevant-from", type=float, metavar="GRADE",
                        help="human grade from which a pair is relevant (default: the lowest in the upper half of the "
                        "scale: 2 on 0 to 3)")  # fmt: skip


def label_settings(args: argparse.Namespace) -> LabelSettings:
    """What those flags say."""
    from bixse.grading.audit.label_settings import LabelSettings
    from bixse.relevance import GradeScale

    scale, judge_scale = (GradeScale(*ends) if ends else None for ends in (args.scale, args.judge_scale))
    return LabelSettings(scale, judge_scale, args.rubric, args.relevant_from)


def impossible_lines(labels: Sequence[ImpossibleLabel]) -> list[str]:
    """One line per label off its scale, the first 20; then how many more. Nothing where there are none."""
    lines = [
        f"  {label.path}, row {label.row}: query {label.query_id}, document {label.document_id}: {label.value:g}"
        for label in labels[:LISTED]
    ]
    lines += [f"  ... and {len(labels) - LISTED} more, see the JSON file"] if len(labels) > LISTED else []
    return ["", "impossible labels, left out:", *lines] if lines else []
