"""`bixse evaluate`: score models and BM25 on a collection or on a whole suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.collection_arguments import add_cache_argument, add_missing_argument
from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult
from bixse.errors import InputError
from bixse.evaluation.suites.known_suites import LOCAL, SUITES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="model folder, Hugging Face name, demo (the small model of bixse[demo]) or bm25; several are compared",
    )
    parser.add_argument(
        "--suite",
        default=LOCAL,
        metavar="NAME",
        help=f"what is evaluated (default: {LOCAL}, one collection): {', '.join((LOCAL, *SUITES))}",
    )
    parser.add_argument("--collection", type=Path, metavar="DIR",
                        help=f"suite {LOCAL}: folder with corpus.jsonl, queries.jsonl and qrels")  # fmt: skip
    parser.add_argument("--split", default="test", metavar="NAME", help="score against qrels/NAME.tsv (default: test)")
    parser.add_argument("--relevance-level", type=float, default=1.0, metavar="GRADE",
                        help="grade from which a document is relevant for recall and MRR (default: 1)")  # fmt: skip
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before queries (and documents)")
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    parser.add_argument("--exclude-self", action="store_true",
                        help="leave the document that has the query's own id out of its answers, for collections "
                        "whose queries are also documents (ArguAna, Quora)")  # fmt: skip
    add_missing_argument(parser)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="other suites: folder with a collection folder for each task, or TREC's official files",
    )
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="other suites: run only these tasks (TREC: years)")
    parser.add_argument("--download", action="store_true", help="other suites: fetch from the hub what --data lacks")
    parser.add_argument("--protocol", choices=("judged", "full"), default="judged",
                        help="suite trec-dl: search the judged passages (default) or the full corpora")  # fmt: skip
    add_cache_argument(parser)
    add_process_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="write records, runs and values of every query here; the same command then goes on "
                        "where it was stopped")  # fmt: skip


def run(args: argparse.Namespace) -> CommandResult:
    """Search, score, print tables."""
    models = [args.model] if isinstance(args.model, str) else list(args.model)
    devices, warnings = chosen_devices(args)
    result = _run(args, models, devices)
    return replace(result, warnings=[*warnings, *result.warnings])


def _run(args: argparse.Namespace, models: Sequence[str], devices: Sequence[str] | None) -> CommandResult:
    if args.suite != LOCAL:
        return _run_suite(args, models, devices)
    if args.collection is None:
        raise InputError(
            "bixse evaluate: got no --collection; expected a collection folder, or another --suite; fix: "
            f"--collection DIR, or --suite with one of {', '.join(SUITES)}"
        )
    _refuse(args, ("data", "tasks", "download"), "--collection alone", "leave it out, or name a --suite")
    return _run_one(args, models[0], devices) if len(models) == 1 else _run_several(args, models, devices)


def _run_one(args: argparse.Namespace, model: str, devices: Sequence[str] | None) -> CommandResult:
    """One system on one collection."""
    from bixse.evaluation.evaluate import evaluate
    from bixse.progress import progress_bar
    from bixse.report.table import format_table

    result = evaluate(
        model,
        args.collection,
        args.split,
        args.out,
        args.relevance_level,
        args.max_length,
        exclude_self=args.exclude_self,
        task=args.task,
        progress=progress_bar,
        devices=devices,
        cache=args.cache,
        missing_documents=args.missing_documents,
    )
    queries = len(next(iter(result.per_query.values())))
    rows: list[list[str | float]] = [[name, value] for name, value in result.metrics.items()]
    computed = f", {result.precision}" if result.precision else ""
    heading = f"{model} on {args.collection} ({args.split}, {queries} queries{computed})"
    artifacts = {"run": str(args.out / "run.trec"), "record": str(args.out / "run.json")} if args.out else {}
    text = f"{heading}\n\n{format_table(rows, ['metric', 'mean'])}"
    metrics = {**result.metrics, **({"precision": result.precision} if result.precision else {})}
    return CommandResult(text, metrics, artifacts, result.warnings)


def _run_several(args: argparse.Namespace, models: Sequence[str], devices: Sequence[str] | None) -> CommandResult:
    """Several systems on one collection."""
    from bixse.cli.suite_table import collection_text
    from bixse.evaluation.compare import compare_on_collection
    from bixse.progress import progress_bar

    result, warnings = compare_on_collection(
        models,
        args.collection,
        args.split,
        args.out,
        args.relevance_level,
        args.max_length,
        exclude_self=args.exclude_self,
        task=args.task,
        progress=progress_bar,
        devices=devices,
        cache=args.cache,
        missing_documents=args.missing_documents,
    )
    score = next(iter(next(iter(result.scores.values())).values()))
    heading = f"{args.collection} ({args.split}, {len(next(iter(score.per_query.values())))} queries)"
    artifacts = {"results": str(args.out / "results.json")} if args.out else {}
    return CommandResult(f"{heading}\n\n{collection_text(result)}", result.plain(), artifacts, warnings)


def _run_suite(args: argparse.Namespace, models: Sequence[str], devices: Sequence[str] | None) -> CommandResult:
    """Systems on a suite."""
    from bixse.cli.suite_table import suite_text
    from bixse.evaluation.suites.suite_run import OUT_FOLDER, evaluate_suite
    from bixse.progress import progress_bar

    _refuse(
        args,
        ("collection", "exclude_self", "cache"),
        "--data, and no word on self-matches, which a suite knows, or a cache, which it has none of",
        "give --data DIR",
    )
    if args.missing_documents != "refuse":
        raise InputError(
            f"--missing-documents: got {args.missing_documents} for suite {args.suite}; expected it with --collection "
            "alone; fix: leave it out"
        )
    if args.split != "test" or args.relevance_level != 1.0:
        raise InputError(
            f"bixse evaluate: got --split or --relevance-level for suite {args.suite}; expected neither, its tasks "
            "have their own; fix: leave them out"
        )
    if args.suite != "trec-dl" and args.protocol != "judged":
        raise InputError(
            f"--protocol: got {args.protocol} for suite {args.suite}; expected it for trec-dl alone; fix: leave it out"
        )
    result = evaluate_suite(
        models,
        args.suite,
        args.data,
        args.out,
        args.tasks,
        args.download,
        args.max_length,
        args.task,
        args.protocol,
        progress=progress_bar,
        devices=devices,
    )
    out = args.out or (OUT_FOLDER / args.suite if SUITES[args.suite].engine == "mteb" else None)
    artifacts = {"results": str(out / "results.json"), "record": str(out / "run.json")} if out else {}
    return CommandResult(
        suite_text(result), result.plain(), artifacts, list(result.notes), exit_code=3 if result.failures else 0
    )


def _refuse(args: argparse.Namespace, names: Sequence[str], expected: str, mend: str) -> None:
    """Refuse arguments that belong to other suites."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]
    if given:
        raise InputError(
            f"bixse evaluate: got {', '.join(given)} for suite {args.suite}; expected {expected}; fix: {mend}"
        )
