"""`bixse calibrate`: probabilities of relevance that can be believed, and thresholds at a precision."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.calibration.calibrate_head import HeldOutCheck
    from bixse.evaluation.calibration.reliability import CalibrationReport
    from bixse.evaluation.calibration.thresholds import OperatingPoint

DIAGRAM = "reliability.svg"
"""The reliability diagram in the output folder."""


class _Several(argparse.Action):
    """A flag that may be given several times, each time with several values; the first replaces the default."""

    _given = False

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest) if self._given else []
        self._given = True
        setattr(namespace, self.dest, [*before, *values])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "model", metavar="MODEL", help="model folder, Hugging Face name, or demo (the small model of bixse[demo])"
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        required=True,
        metavar="FILE",
        help="graded pairs that were not trained on (.parquet .jsonl .csv .tsv)",
    )
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before queries (and documents)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="save the calibrated model and a reliability diagram "
                        "here; without it the head inside the model folder is replaced")  # fmt: skip
    parser.add_argument("--negatives", type=int, metavar="N",
                        help="add N random documents of --collection a query as irrelevant pairs, never one that is "
                        "judged for it")  # fmt: skip
    parser.add_argument("--collection", type=Path, metavar="DIR",
                        help="--negatives: folder with corpus.jsonl, queries.jsonl and qrels")  # fmt: skip
    parser.add_argument("--prior", type=float, metavar="SHARE",
                        help="mean relevance of all that will be scored, above 0 and below 1: move the probabilities "
                        "from the pairs' own mean to it (default: as in the pairs)")  # fmt: skip
    parser.add_argument("--at-precision", type=float, nargs="+", action=_Several, metavar="P",
                        help="find and save the lowest probability from which at least this share of the documents is "
                        "relevant; may be given several times")  # fmt: skip
    parser.add_argument("--relevant-from", type=float, default=0.5, metavar="Z",
                        help="--at-precision: relevance from which a document counts as relevant "
                        "(default: 0.5)")  # fmt: skip
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the split of the queries into two halves, and of --negatives (default: 0)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Fit on half of the queries, measure on the other half; keep the map only if it helps there."""
    from bixse.cli.seed import check_seed

    check_seed(args.seed)
    from bixse.data.io.files import file_hash, storage_errors
    from bixse.data.pairs_files import load_graded_pairs
    from bixse.data.run_record import open_run
    from bixse.encoders.head import HEAD_FILE, log_odds
    from bixse.encoders.identity import model_hashes, model_path_settings
    from bixse.encoders.instructions import use_task
    from bixse.encoders.loading.build import build_encoder, quiet_loading
    from bixse.encoders.loading.precision import resolve_precision
    from bixse.encoders.loading.saving import save_whole
    from bixse.errors import InputError
    from bixse.evaluation.calibration.calibrate_head import choose_thresholds, fit_head, held_out_check
    from bixse.evaluation.calibration.thresholds import check_precision

    if args.out is None and not Path(args.model).is_dir():
        raise InputError(
            f"calibrate: got model {args.model!r} and no --out; expected a model folder or --out DIR; "
            "fix: add --out, the calibrated model is saved there"
        )
    precisions = list(args.at_precision or [])
    for precision in precisions:
        check_precision(precision)
    if args.prior is not None:
        log_odds(args.prior, "--prior")
    given_pairs = load_graded_pairs(args.pairs)
    pairs, facts = _with_negatives(args, given_pairs)
    record = None
    if args.out is not None:
        inputs = {"pairs": file_hash(args.pairs), **model_hashes(args.model)}
        if (Path(args.model) / HEAD_FILE).is_file():
            inputs["head"] = file_hash(Path(args.model) / HEAD_FILE)
        config = {name: getattr(args, name) for name in ("model", "pairs", "seed", "task", "prior", "relevant_from")}
        config |= {"at_precision": precisions, "precision": resolve_precision()}
        paths = ["pairs", *model_path_settings(args.model)]
        if args.negatives is not None:
            config |= {"negatives": args.negatives, "collection": args.collection}
            qrels = [f"qrels/{path.name}" for path in sorted((args.collection / "qrels").glob("*.tsv"))]
            inputs |= {name: file_hash(args.collection / name) for name in ("corpus.jsonl", "queries.jsonl", *qrels)}
            paths.append("collection")
        record = open_run(args.out, "calibrate", config, inputs, paths=paths)
        if record.status == "finished":
            return CommandResult(**record.results, warnings=["this run was finished before: its results are shown"])
    model = build_encoder(args.model)
    use_task(model, args.task)
    if record is not None:
        record.save("running")
    cosines = _cosines(model, pairs)
    head: RelevanceHead | None = getattr(model, "head", None)
    measured = (cosines, pairs.relevance, pairs.query_ids)
    check = held_out_check(head, *measured, args.seed, args.prior)
    kept = head
    if check.helps:
        kept = fit_head(head, *measured[:2], facts)
        kept = kept if args.prior is None else kept.at_prior(args.prior)
    points: list[OperatingPoint] = []
    if precisions and kept is not None:
        kept, points = choose_thresholds(kept, *measured, precisions, args.relevant_from, args.prior, args.seed)
    artifacts = {}
    if kept is not None and kept != head:
        folder = args.out / "model" if args.out is not None else Path(args.model)
        if args.out is not None:
            model.head = kept
            with storage_errors(args.out), quiet_loading():
                save_whole(model, folder)
        else:
            kept.save(folder)
        artifacts["model"] = str(folder)
    if args.out is not None:
        artifacts["diagram"] = _write_diagram(args.out / DIAGRAM, check)
    computed = resolve_precision(device=model.device)
    shown = [*([facts] if args.negatives else []), *_text(check, kept, points, args.prior, artifacts)]
    text = "\n\n".join([*shown, f"precision: {computed}"])
    metrics = {
        **_metrics(check, kept, points), "negatives": len(pairs) - len(given_pairs), "precision": computed
    }  # fmt: skip
    if record is not None:
        record.results = {"text": text, "metrics": metrics, "artifacts": artifacts}
        record.save("finished")
    return CommandResult(text, metrics, artifacts, _warnings(points))


def _with_negatives(args: argparse.Namespace, pairs: GradedPairs) -> tuple[GradedPairs, str]:
    """The pairs with the random documents that were asked for, and what they are, in words."""
    from bixse.data.collection_files import load_collection
    from bixse.data.random_negatives import with_random_negatives
    from bixse.errors import InputError

    facts = f"{len(pairs)} pairs of {args.pairs.name}"
    if (args.negatives is None) != (args.collection is None):
        one, other = ("--negatives", "--collection")[:: 1 if args.collection is None else -1]
        raise InputError(f"calibrate: got {one} without {other}; expected both; fix: add {other}, or drop {one}")
    if args.negatives is None:
        return pairs, facts
    collection = load_collection(args.collection)
    more = with_random_negatives(pairs, collection, args.negatives, args.seed)
    return more, f"{facts} and {len(more) - len(pairs)} random documents of {collection.name} as irrelevant pairs"


def _cosines(model: RelevanceModel, pairs: GradedPairs) -> NDArray[Any]:
    """The cosine of each pair, every text encoded once."""
    import numpy as np

    from bixse.encoders.encode import encode_texts
    from bixse.progress import progress_bar

    step = progress_bar("encode pairs", 2 * len(pairs))
    queries = encode_texts(model, pairs.queries, "query", progress=step).astype(np.float64)
    documents = encode_texts(model, pairs.documents, "document", progress=step).astype(np.float64)
    cosines: NDArray[Any] = np.einsum("md,md->m", queries, documents)
    return cosines


def _measured(check: HeldOutCheck) -> dict[str, CalibrationReport]:
    """What was measured, by name, the probabilities that are saved last."""
    before = {"before": check.before} if check.before is not None else {}
    return {**before, **check.others, "calibrated": check.after}


def _metrics(check: HeldOutCheck, kept: RelevanceHead | None, points: Sequence[OperatingPoint]) -> dict[str, Any]:
    measured = {
        name: {"brier": r.brier, "brier_interval": r.brier_interval, "ece": r.ece, "ece_interval": r.ece_interval,
               "constant": r.base_rate_brier}
        for name, r in _measured(check).items()
    }  # fmt: skip
    return {
        **measured,
        "kept": check.helps,
        "prior": kept.prior if kept is not None else None,
        "reliability": [asdict(point) for point in check.after.curve],
        "thresholds": [asdict(point) for point in points],
    }


def _text(
    check: HeldOutCheck,
    kept: RelevanceHead | None,
    points: Sequence[OperatingPoint],
    prior: float | None,
    artifacts: dict[str, str],
) -> list[str]:
    """Figures, reliability, thresholds, and what became of them."""
    from bixse.encoders.head import HEAD_FILE
    from bixse.report.table import format_interval, format_table

    weighted = f", weighted to a mean relevance of {prior:g}" if prior is not None else ""
    parts = [
        format_table(
            [[name, *_figures(r)] for name, r in _measured(check).items()],
            ["held-out half", "Brier", "95 % interval", "ECE", "95 % interval", "Brier of a constant"],
        ),
        f"reliability of the calibrated probabilities on {check.after.pairs} pairs of {check.after.queries} held-out "
        f"queries{weighted}\n\n"
        + format_table(
            [[b.predicted, b.observed, format_interval(b.low, b.high), b.count] for b in check.after.curve],
            ["predicted", "observed", "95 % interval", "pairs"],
        ),
    ]
    if points:
        parts.append("\n".join(_point_line(point) for point in points))
    if "model" not in artifacts:
        parts.append("not kept, nothing is changed: on held-out queries the calibration does not lower the Brier score")
    elif check.helps:
        parts.append(f"saved: {Path(artifacts['model']) / HEAD_FILE}")
    else:
        parts.append(
            "the calibration is not kept, it does not lower the Brier score on held-out queries; thresholds of the "
            f"probabilities as they were are saved: {Path(artifacts['model']) / HEAD_FILE}"
        )
    if kept is not None and kept.prior is not None and check.helps:
        parts[-1] += f"\nthe probabilities are for documents of which a share of {kept.prior:.4g} is relevant"
    return parts


def _figures(report: CalibrationReport) -> list[str]:
    """Cells of a row; where few are relevant, Brier scores are small and need more digits."""
    from bixse.report.table import format_number

    digits = 3 if report.base_rate_brier >= 0.01 else 6

    def interval(ends: tuple[float, float]) -> str:
        return f"[{format_number(ends[0], digits)}, {format_number(ends[1], digits)}]"

    numbers = [format_number(value, digits) for value in (report.brier, report.ece, report.base_rate_brier)]
    return [numbers[0], interval(report.brier_interval), numbers[1], interval(report.ece_interval), numbers[2]]


def _point_line(point: OperatingPoint) -> str:
    """What was found for a wanted precision."""
    from bixse.report.table import format_interval

    found = (
        f"precision {point.precision:.3f} {format_interval(*point.interval)}, recall {point.recall:.3f}, "
        f"{point.pairs} pairs of {point.queries} queries"
    )
    if point.is_reached:
        return f"precision {point.wanted:g}: from probability {point.threshold:.4g} on ({found})"
    return f"precision {point.wanted:g}: not reachable; best is probability {point.threshold:.4g} ({found})"


def _warnings(points: Sequence[OperatingPoint]) -> list[str]:
    """Thresholds that held-out queries leave in doubt."""
    return [
        f"precision {point.wanted:g}: the interval reaches down to {point.interval[0]:.3f}; more graded queries narrow "
        "it, a higher --at-precision stays on the safe side"
        for point in points
        if point.is_reached and point.interval[0] < point.wanted
    ]


def _write_diagram(path: Path, check: HeldOutCheck) -> str:
    """The reliability diagram of the calibrated probabilities on held-out queries."""
    from bixse.data.io.files import write_atomically
    from bixse.report.plots import reliability_diagram
    from bixse.report.schema import Calibration, CalibrationBin

    report = check.after
    svg = reliability_diagram(
        Calibration(
            name="calibrated, held-out half",
            pairs=report.pairs,
            queries=report.queries,
            brier=report.brier,
            ece=report.ece,
            constant_brier=report.base_rate_brier,
            curve=[CalibrationBin(**asdict(point)) for point in report.curve],
        )
    )
    write_atomically(path, svg + "\n")
    return str(path)
