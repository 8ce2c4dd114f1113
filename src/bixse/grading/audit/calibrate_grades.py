"""Calibrate a judge from files: fit a map from its grades to what people say, keep it only if it helps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bixse.data.io.files import file_hash
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.run_record import open_run
from bixse.errors import InputError
from bixse.grading.audit.audit import first_relevant, grade_levels
from bixse.grading.audit.grade_map import MAP_FILE, fit_grade_map
from bixse.grading.audit.label_settings import LabelSettings

if TYPE_CHECKING:
    from bixse.data.graded_pairs import GradedPairs
    from bixse.grading.audit.grade_map import GradeMap, HeldOutFigures, MapKind
    from bixse.grading.audit.labels import ImpossibleLabel, Labels
    from bixse.relevance import GradeScale

PAIRS_FILE = "pairs.parquet"
"""The mapped pairs in the output folder."""


@dataclass(frozen=True)
class GradeMapSettings:
    """How a map is fitted."""

    kind: MapKind = "platt"
    """platt: a logistic curve; isotonic: steps."""
    target: Literal["relevant", "graded"] = "relevant"
    """What a mapped relevance says: the probability that people find the pair relevant, or their mean grade."""
    sample: int | None = None
    """Fit on so many random human labels and measure on all; None: fit on all."""
    seed: int = 0
    """Of the sample and the split of the queries."""
    force: bool = False
    """Write a map that does not help on held-out queries too."""


@dataclass(frozen=True)
class GradeMapResult:
    """What a calibration of a judge found and wrote."""

    map: GradeMap
    """The map."""
    figures: HeldOutFigures
    """What it is worth on held-out queries."""
    kept: bool
    """Whether it was written: it helps, or it was forced."""
    impossible: tuple[ImpossibleLabel, ...]
    """Labels off their scale, which were left out."""
    artifacts: dict[str, str]
    """Name -> path of what was written."""


def calibrate_grades(
    judgements: str | Path,
    human: str | Path,
    out: str | Path,
    labels: LabelSettings | None = None,
    settings: GradeMapSettings | None = None,
    apply: str | Path | None = None,
) -> GradeMapResult:
    """Fit a map, measure it on held-out queries, write map.json and run.json only if it helps there.

    Args:
        judgements: file of the judge's labels: judgements.parquet of `grade`, or qrels.
        human: file of the human labels.
        out: output folder.
        labels: scales, and what counts as relevant.
        settings: of the map.
        apply: graded pairs to map, written to pairs.parquet with their own grade in `grade`.

    Raises:
        InputError: a file cannot be used, too few labels, or pairs that were mapped before.
        OutputExistsError: `out` holds another run.
    """
    labels, settings, out = labels or LabelSettings(), settings or GradeMapSettings(), Path(out)
    paths = {"judgements": Path(judgements), "human": Path(human), "apply": Path(apply) if apply else None}
    people, (judge,) = labels.read(Path(human), [Path(judgements)])
    fitted, figures = _fit(people, judge, labels.relevant_from, settings)
    pairs = mapped_pairs(load_graded_pairs(apply), fitted, judge.scale, str(apply)) if apply else None
    kept = bool(fitted.helps or settings.force)
    impossible = (*people.impossible, *judge.impossible)
    if not kept:
        return GradeMapResult(fitted, figures, kept, impossible, {})
    hashes = {name: file_hash(path) for name, path in paths.items() if path is not None}
    config = {**labels.plain(), **vars(settings), **paths}
    record = open_run(out, "grade calibrate", config, hashes, paths=tuple(paths))
    record.save("running")
    fitted.save(out / MAP_FILE)
    artifacts = {"map": str(out / MAP_FILE)}
    if pairs is not None:
        save_graded_pairs(pairs, out / PAIRS_FILE)
        artifacts["pairs"] = str(out / PAIRS_FILE)
    record.results = {"metrics": figures.to_plain(), "artifacts": artifacts}
    record.save("finished")
    return GradeMapResult(fitted, figures, kept, impossible, artifacts)


def mapped_pairs(pairs: GradedPairs, fitted: GradeMap, scale: GradeScale, path: str) -> GradedPairs:
    """The pairs with mapped relevance and the judge's own grade in `grade`.

    Raises:
        InputError: a relevance is not its grade's place on the scale, as after a map or on another scale.
    """
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


def _fit(
    human: Labels, judge: Labels, relevant_from: float | None, settings: GradeMapSettings
) -> tuple[GradeMap, HeldOutFigures]:
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
    if settings.sample is not None and not 1 <= settings.sample <= len(pairs):
        raise InputError(
            f"--sample: got {settings.sample}; expected 1 to {len(pairs)}, the pairs that both sides labelled; fix: "
            "leave it out to fit on all"
        )
    chosen = np.random.default_rng(settings.seed).permutation(len(pairs))[: settings.sample]
    relevant_from = first_relevant(grade_levels(human), relevant_from)
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
