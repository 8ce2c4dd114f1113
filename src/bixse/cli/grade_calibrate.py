"""`bixse grade calibrate`: map a judge's grades to what people would say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.label_arguments import SCALE_SETTINGS, add_label_arguments, impossible_lines, read_both
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.data.graded_pairs import GradedPairs
    from bixse.grading.audit.grade_map import GradeMap, HeldOutFigures
    from bixse.relevance import GradeScale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("--judgements", type=Path, required=True, metavar="FILE",
                        help="the judge's labels: judgements.parquet of `bixse grade`, or qrels")  # fmt: skip
    add_label_arguments(parser)
    parser.add_argument("--kind", choices=("platt", "isotonic"), default="platt",
                        help="platt: a logistic curve; isotonic: steps (default: platt)")  # fmt: skip
    parser.add_argument("--target", choices=("relevant", "graded"), default="relevant",
                        help="what a mapped relevance says: the probability that people find the pair relevant, or "
                        "their mean grade on [0, 1] (default: relevant)")  # fmt: skip
    parser.add_argument("--sample", type=int, metavar="N",
                        help="fit on N random human labels and measure on all (default: fit on all)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the split of the queries (default: 0)")
    parser.add_argument("--apply", type=Path, metavar="FILE",
                        help="graded pairs to map: written to pairs.parquet, their own grade in `grade`")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="write a map that does not help on held-out queries too")
    parser.add_argument("--out", type=Path, default=Path("runs/grade-map"), metavar="DIR",
                        help="write map.json and run.json here (default: runs/grade-map)")  # fmt: skip


def run(args: argparse.Namespace) -> CommandResult:
    """Fit, measure on held-out queries; keep the map only if it helps there."""
    from bixse.cli.seed import check_seed

    check_seed(args.seed)
    from bixse.data.io.files import file_hash
    from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
    from bixse.data.run_record import open_run
    from bixse.grading.audit.grade_map import MAP_FILE
    from bixse.relevance import GradeScale

    files = {"judgements": args.judgements, "human": args.human, **({"apply": args.apply} if args.apply else {})}
    settings = (*SCALE_SETTINGS, "kind", "target", "sample", "seed", "force")
    config = {name: getattr(args, name) for name in (*settings, "judgements", "human", "apply")}
    hashes = {name: file_hash(path) for name, path in files.items() if path.is_file()}
    fitted, figures, impossible = _fit(args)
    scale = GradeScale(*fitted.scale) if fitted.scale else GradeScale()
    pairs = mapped_pairs(load_graded_pairs(args.apply), fitted, scale, args.apply) if args.apply else None
    text = _text(fitted, figures)
    if impossible:
        text += "\n\n" + "\n".join(["impossible labels, left out:", *impossible])
    metrics: dict[str, Any] = {**figures.to_plain(), "labels": fitted.labels, "kept": bool(fitted.helps or args.force)}
    if not metrics["kept"]:
        why = (
            "refused, nothing is written: on held-out queries the map does not help (its Brier score is not below "
            "that of the grades as they are and that of a constant); fix: train on the grades as they are, label "
            "more pairs, or write it anyway with --force"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    record = open_run(args.out, "grade calibrate", config, hashes, paths=tuple(files))
    record.save("running")
    fitted.save(args.out / MAP_FILE)
    artifacts = {"map": str(args.out / MAP_FILE)}
    if pairs is not None:
        save_graded_pairs(pairs, args.out / "pairs.parquet")
        artifacts["pairs"] = str(args.out / "pairs.parquet")
    record.results = {"metrics": metrics, "artifacts": artifacts}
    record.save("finished")
    warnings = [] if fitted.helps else ["forced: on held-out queries this map does not help"]
    written = "\n".join(f"{name}: {path}" for name, path in artifacts.items())
    return CommandResult(f"{text}\n\n{written}", metrics, artifacts, warnings, exit_code=3 if impossible else 0)


def mapped_pairs(pairs: GradedPairs, fitted: GradeMap, scale: GradeScale, path: Path) -> GradedPairs:
    """The pairs with mapped relevance and the judge's own grade in `grade`.

    Raises:
        InputError: a relevance is not its grade's place on the scale, as after a map or on another scale.
    """
    from bixse.errors import InputError

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


def _fit(args: argparse.Namespace) -> tuple[GradeMap, HeldOutFigures, list[str]]:
    """The map, its figures, and a line a label off the scale."""
    import numpy as np

    from bixse.errors import InputError
    from bixse.grading.audit.audit import first_relevant, grade_levels
    from bixse.grading.audit.grade_map import fit_grade_map

    human, (judge,) = read_both(args, [args.judgements])
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
    if args.sample is not None and not 1 <= args.sample <= len(pairs):
        raise InputError(
            f"--sample: got {args.sample}; expected 1 to {len(pairs)}, the pairs that both sides labelled; fix: "
            "leave it out to fit on all"
        )
    chosen = np.random.default_rng(args.seed).permutation(len(pairs))[: args.sample]
    fit_on = np.isin(np.arange(len(pairs)), chosen)
    relevant_from = first_relevant(grade_levels(human), args.relevant_from)
    grades = [human.grades[pair] for pair in pairs]
    graded = args.target == "graded"
    targets = [human.scale.to_relevance(g) if graded else float(g >= relevant_from) for g in grades]
    found, figures = fit_grade_map(
        [judge.relevance[pair] for pair in pairs], targets, [q for q, _ in pairs], args.kind, fit_on, seed=args.seed
    )
    named = {
        "judge": judge.name,
        "scale": (judge.scale.minimum, judge.scale.maximum),
        "target": "mean human grade on [0, 1]" if graded else f"share of human grades from {relevant_from:g} up",
    }
    return found.model_copy(update=named), figures, impossible_lines((*human.impossible, *judge.impossible))


def _text(fitted: GradeMap, figures: HeldOutFigures) -> str:
    """The held-out figures, and what they say."""
    from bixse.report.table import format_difference, format_interval, format_table

    rows: list[list[str | float | None]] = [
        ["as graded", figures.brier_before, figures.ece_before],
        ["mapped", figures.brier_after, figures.ece_after],
        ["a constant", figures.brier_constant, None],
    ]
    change = figures.change
    said = {
        "below": "lower beyond the interval",
        "across": "the interval holds 0: no difference is shown",
        "above": "higher beyond the interval",
    }[change.side]
    return "\n".join(
        [
            f"{fitted.judge}: {fitted.kind} map fitted on {fitted.labels} human labels of {fitted.queries} queries, "
            f"measured on {figures.pairs} pairs, each by the map of other queries",
            "",
            format_table(rows, ["held-out queries", "Brier", "ECE"]),
            "",
            f"change of the Brier score {format_difference(change.value or 0.0)} "
            f"{format_interval(change.low, change.high, signed=True)}: {said}",
            "mapped: " + ", ".join(f"{z:.2f} to {p:.2f}" for z, p in _points(fitted)),
        ]
    )


def _points(fitted: GradeMap) -> list[tuple[float, float]]:
    """Some relevances and what they are mapped to."""
    points = [0.0, 1 / 3, 2 / 3, 1.0]
    return list(zip(points, fitted.apply(points).tolist(), strict=True))
