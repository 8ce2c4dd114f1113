"""`bixse evaluate`: score a model or BM25 on a collection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "model", metavar="MODEL", help="model folder, Hugging Face name, demo (the small model of bixse[demo]) or bm25"
    )
    parser.add_argument(
        "--collection",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with corpus.jsonl, queries.jsonl and qrels",
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="score against qrels/NAME.tsv (default: test)")
    parser.add_argument("--relevance-level", type=float, default=1.0, metavar="GRADE",
                        help="grade from which a document is relevant for recall and MRR (default: 1)")  # fmt: skip
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before queries (and documents)")
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    parser.add_argument("--exclude-self", action="store_true",
                        help="leave the document that has the query's own id out of its answers, for collections "
                        "whose queries are also documents (ArguAna, Quora)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="write run.json, run.trec and per_query.json here")


def run(args: argparse.Namespace) -> CommandResult:
    """Search, score, print one table."""
    from bixse.cli.progress import progress_bar
    from bixse.evaluation.local import evaluate
    from bixse.report.table import format_table

    result = evaluate(
        args.model,
        args.collection,
        args.split,
        args.out,
        args.relevance_level,
        args.max_length,
        exclude_self=args.exclude_self,
        task=args.task,
        progress=progress_bar,
    )
    queries = len(next(iter(result.per_query.values())))
    rows: list[list[str | float]] = [[name, value] for name, value in result.metrics.items()]
    heading = f"{args.model} on {args.collection} ({args.split}, {queries} queries)"
    artifacts = {"run": str(args.out / "run.trec"), "record": str(args.out / "run.json")} if args.out else {}
    text = f"{heading}\n\n{format_table(rows, ['metric', 'mean'])}"
    return CommandResult(text, dict(result.metrics), artifacts, result.warnings)
