"""Calibrate a judge from files: fit a map from its grades to what people say, keep it only if it helps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from bixse.data.io.files import file_hash, write_atomically
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.run_record import open_run
from bixse.errors import SEEDS, InputError
from bixse.grading.audit.audit import first_relevant, grade_levels
from bixse.grading.audit.grade_map import fit_grade_map
from bixse.grading.audit.labels import LabelSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.grading.audit.grade_map import GradeMap, HeldOutFigures
    from bixse.grading.audit.labels import ImpossibleLabel, Labels
    from bixse.relevance import GradeScale

MAP_FILE, PAIRS_FILE = "map.json", "pairs.parquet"
"""The map and the mapped pairs in the output folder."""


class GradeMapSettings(LabelSettings):
    """Settings of `bixse grade calibrate`.

    Example:
        >>> GradeMapSettings(human="qrels.txt", judgements="judgements.parquet").kind
        'platt'
    """

    judgements: Annotated[Path, Flag(metavar="FILE")]
    """The judge's labels: judgements.parquet of `bixse grade`, or qrels."""
    kind: Literal["platt", "isotonic"] = "platt"
    """platt: a logistic curve; isotonic: steps."""
    target: Literal["relevant", "graded"] = "relevant"
    """What a mapped relevance says: the probability that people find the pair relevant, or their mean grade on
    [0, 1]."""
    sample: int | None = Field(default=None, ge=1)
    """Fit on so many random human labels and measure on all; null fits on all."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Of the sample and the split of the queries."""
    apply: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs to map: written to pairs.parquet, their own grade in `grade`."""
    force: bool = False
    """Write a map that does not help on held-out queries too."""


@dataclass(frozen=True)
class GradeMapResult:
    """What a calibration of a judge found and wrote."""

    map: GradeMap
    figures: HeldOutFigures
    """What it is worth on held-out queries."""
    kept: bool
    """Whether it was written: it helps, or it was forced."""
    impossible: tuple[ImpossibleLabel, ...]
    """Labels off their scale, which were left out."""
    artifacts: dict[str, str]
    """Name -> path of what was written."""


def calibrate_grades(settings: GradeMapSettings, out: str | Path) -> GradeMapResult:
    """Fit a map, measure it on held-out queries, write map.json and run.json only if it helps there.

    Raises:
        InputError: a file cannot be used, too few labels, or pairs that were mapped before.
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, (judge,) = settings.read([settings.judgements])
    fitted, figures = _fit(people, judge, settings)
    pairs = mapped_pairs(settings.apply, fitted, judge.scale) if settings.apply is not None else None
    kept = bool(fitted.helps or settings.force)
    impossible = (*people.impossible, *judge.impossible)
    if not kept:
        return GradeMapResult(fitted, figures, kept, impossible, {})
    paths = {name: getattr(settings, name) for name in settings.path_settings()}
    hashes = {name: file_hash(path) for name, path in paths.items() if path is not None}
    record = open_run(out, "grade calibrate", settings.model_dump(), hashes, paths=tuple(paths))
    record.save("running")
    write_atomically(out / MAP_FILE, fitted.model_dump_json(indent=2) + "\n")
    artifacts = {"map": str(out / MAP_FILE)}
    if pairs is not None:
        save_graded_pairs(pairs, out / PAIRS_FILE)
        artifacts["pairs"] = str(out / PAIRS_FILE)
    record.results = {"metrics": figures.to_plain(), "artifacts": artifacts}
    record.save("finished")
    return GradeMapResult(fitted, figures, kept, impossible, artifacts)


def mapped_pairs(path: Path, fitted: GradeMap, scale: GradeScale) -> GradedPairs:
    """The pairs of a file with mapped relevance and the judge's own grade in `grade`.

    Raises:
        InputError: a relevance is not its grade's place on the scale, as after a map or on another scale.
    """
    pairs = load_graded_pairs(path)
    grades = pairs.extra.get("grade", [None] * len(pairs))
    kept = []
    for row, (grade, relevance) in enumerate(zip(grades, pairs.relevance.tolist(), strict=True), start=1):
        place = scale.to_grade(relevance)
        if grade is not None and abs(grade - place) > 1e-3 * (scale.maximum - scale.minimum):
            raise InputError(
                f"{path}: row {row}: got grade {grade:g} with relevance {relevance:g}; expected {place:g}, its place "
                f"on the judge's scale {scale.minimum:g} to {scale.maximum:g}; fix: give pairs that were not "
                "mapped before, or state the judge's scale"
            )
        kept.append(place if grade is None else grade)
    return pairs.with_columns(relevance=fitted.apply(pairs.relevance), grade=kept)


def _fit(human: Labels, judge: Labels, settings: GradeMapSettings) -> tuple[GradeMap, HeldOutFigures]:
    if judge.mapped:
        raise InputError(
            f"{judge.path}: got {judge.mapped} pairs whose relevance is not their grade's place on "
            f"{judge.scale.minimum:g} to {judge.scale.maximum:g}; expected the judge's own grades; fix: state "
            "--judge-scale, or give judgements that were not mapped before"
        )
    pairs = sorted(human.grades.keys() & judge.grades.keys())
    if not pairs:
        raise InputError(
            f"{judge.path}: got no pair of {human.path}; expected labels of the same queries and documents; "
            "fix: use the ids of the human labels"
        )
    if settings.sample is not None and settings.sample > len(pairs):
        raise InputError(
            f"--sample: got {settings.sample}; expected 1 to {len(pairs)}, the pairs that both sides labelled; fix: "
            "leave it out to fit on all"
        )
    chosen = np.random.default_rng(settings.seed).permutation(len(pairs))[: settings.sample]
    relevant_from = first_relevant(grade_levels(human), settings.relevant_from)
    grades = [human.grades[pair] for pair in pairs]
    if settings.target == "graded":
        targets = [human.scale.to_relevance(grade) for grade in grades]
        target = "mean human grade on [0, 1]"
    else:
        targets = [float(grade >= relevant_from) for grade in grades]
        target = f"share of human grades from {relevant_from:g} up"
    fitted, figures = fit_grade_map(
        [judge.relevance[pair] for pair in pairs],
        targets,
        [query for query, _ in pairs],
        settings.kind,
        np.isin(np.arange(len(pairs)), chosen),
        seed=settings.seed,
    )
    scale = (judge.scale.minimum, judge.scale.maximum)
    return fitted.model_copy(update={"judge": judge.name, "scale": scale, "target": target}), figures
