"""Flags and files that `bixse grade audit` and `bixse grade calibrate` share: labels of both sides on their scales."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from bixse.grading.audit.labels import ImpossibleLabel, Labels
    from bixse.relevance import GradeScale

LISTED = 20
"""Impossible labels that the terminal shows; audit.json holds all."""
SCALE_SETTINGS = ("scale", "judge_scale", "rubric", "relevant_from")
"""Settings that `add_label_arguments` gives."""


def add_label_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags about labels and scales that auditing and calibrating share."""
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


def read_both(args: argparse.Namespace, judges: Iterable[Path]) -> tuple[Labels, list[Labels]]:
    """Human labels and each judge's, on their scales; judges of one name are named by their files.

    Raises:
        InputError: a file cannot be used.
    """
    from dataclasses import replace

    from bixse.grading.audit.labels import read_labels
    from bixse.grading.rubrics import load_rubric
    from bixse.relevance import GradeScale

    human = read_labels(args.human, GradeScale(*args.scale) if args.scale else None)
    stated: GradeScale | None = GradeScale(*args.judge_scale) if args.judge_scale else None
    if args.rubric is not None:
        stated = load_rubric(args.rubric).scale
    found = [read_labels(path, stated, otherwise=human.scale) for path in judges]
    names = [labels.name for labels in found]
    return human, [
        replace(labels, name=str(Path(labels.path).with_suffix(""))) if names.count(labels.name) > 1 else labels
        for labels in found
    ]


def impossible_lines(labels: Iterable[ImpossibleLabel]) -> list[str]:
    """One line per label off its scale, the first 20; then how many more."""
    taken = list(labels)
    lines = [
        f"  {label.path}, row {label.row}: query {label.query_id}, document {label.document_id}: {label.value:g}"
        for label in taken[:LISTED]
    ]
    return [*lines, f"  ... and {len(taken) - LISTED} more, see the JSON file"] if len(taken) > LISTED else lines
