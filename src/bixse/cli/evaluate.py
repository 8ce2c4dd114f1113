"""`bixse evaluate`: score models and BM25 on a collection or on a whole suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_cache_argument, add_missing_argument
from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult
from bixse.errors import InputError
from bixse.evaluation.suites.known_suites import LOCAL, SUITES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bixse.evaluation.systems import System

COLLECTION_ONLY = {"collection": None, "split": "test", "min_relevant_grade": 1.0, "exclude_self": False,
                   "missing_documents": "refuse"}  # fmt: skip
"""Arguments of a single collection and their defaults: the tasks of a suite have their own."""
SUITE_ONLY = {"data": None, "tasks": None, "download": False, "protocol": "judged"}
"""Arguments of a suite and their defaults."""


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
    parser.add_argument("--min-relevant-grade", type=float, default=1.0, metavar="GRADE",
                        help="lowest grade that is relevant for recall, MRR and MAP (default: 1)")  # fmt: skip
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
    parser.add_argument("--download", action="store_true", help="other suites: fetch from the hub what is missing")
    parser.add_argument("--protocol", choices=("judged", "full"), default="judged",
                        help="suite trec-dl: search the judged passages (default) or the full corpora")  # fmt: skip
    add_cache_argument(parser)
    add_process_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="write records, runs and values of every query here; the same command then goes on "
                        "where it was stopped")  # fmt: skip


def run(args: argparse.Namespace) -> CommandResult:
    """Search, score, print tables."""
    from bixse.evaluation.systems import open_system
    from bixse.retrieval.bm25 import BM25_NAME

    models = [args.model] if isinstance(args.model, str) else list(args.model)
    if args.task is not None and models == [BM25_NAME]:
        raise InputError(
            f"task: got {args.task!r} for bm25, which takes no instructions; expected none; fix: leave the task out"
        )
    devices, warnings = chosen_devices(args)
    options: dict[str, Any] = {"max_length": args.max_length, "task": args.task, "devices": devices}
    systems = [open_system(model, **options, cache=args.cache) for model in models]
    result = _run_collection(args, systems) if args.suite == LOCAL else _run_suite(args, systems)
    return replace(result, warnings=[*warnings, *result.warnings])


def _run_collection(args: argparse.Namespace, systems: Sequence[System]) -> CommandResult:
    from bixse.cli.suite_table import collection_text, metrics_text
    from bixse.evaluation.evaluate import evaluate
    from bixse.evaluation.suites.suite_run import compare_on_task
    from bixse.evaluation.tasks import collection_task
    from bixse.progress import progress_bar

    if args.collection is None:
        raise InputError(
            "bixse evaluate: got no --collection; expected a collection folder, or another --suite; fix: "
            f"--collection DIR, or --suite with one of {', '.join(SUITES)}"
        )
    _refuse(args, SUITE_ONLY, "--collection alone", "leave it out, or name a --suite")
    settings = (args.split, args.exclude_self, args.min_relevant_grade, args.missing_documents)
    task = collection_task(args.collection, *settings)
    where = f"{args.collection} ({args.split}, {len(task.query_sets[0].queries)} queries"
    warnings = list(task.warnings)
    if len(systems) > 1:
        result = compare_on_task(systems, task, args.out, progress_bar)
        artifacts = {"results": str(args.out / "results.json")} if args.out else {}
        return CommandResult(f"{where})\n\n{collection_text(result)}", result.plain(), artifacts, warnings)
    found = evaluate(systems[0], task, args.out, progress_bar)
    precision = {"precision": found.precision} if found.precision else {}
    artifacts = {"run": str(args.out / "run.trec"), "record": str(args.out / "run.json")} if args.out else {}
    heading = f"{systems[0].label} on {where}{''.join(f', {name}' for name in precision.values())})"
    text = f"{heading}\n\n{metrics_text(found)}"
    return CommandResult(text, {**found.metrics, **precision}, artifacts, warnings)


def _run_suite(args: argparse.Namespace, systems: Sequence[System]) -> CommandResult:
    from bixse.cli.suite_table import suite_text
    from bixse.evaluation.suites.suite_run import OUT_FOLDER, evaluate_suite
    from bixse.progress import progress_bar

    _refuse(args, COLLECTION_ONLY, "--data alone: a suite's tasks have their own", "leave it out")
    if args.suite != "trec-dl":
        _refuse(args, {"protocol": "judged"}, "it for trec-dl alone", "leave it out")
    result = evaluate_suite(
        systems, args.suite, args.data, args.out, args.tasks, args.download, args.protocol, progress_bar
    )
    out = args.out or (OUT_FOLDER / args.suite if SUITES[args.suite].engine == "mteb" else None)
    artifacts = {"results": str(out / "results.json"), "record": str(out / "run.json")} if out else {}
    return CommandResult(
        suite_text(result), result.plain(), artifacts, list(result.notes), exit_code=3 if result.failures else 0
    )


def _refuse(args: argparse.Namespace, defaults: dict[str, Any], expected: str, fix: str) -> None:
    """Refuse arguments that do not belong to the suite."""
    given = [f"--{name.replace('_', '-')}" for name, value in defaults.items() if getattr(args, name) != value]
    if given:
        raise InputError(
            f"bixse evaluate: got {', '.join(given)} for suite {args.suite}; expected {expected}; fix: {fix}"
        )
