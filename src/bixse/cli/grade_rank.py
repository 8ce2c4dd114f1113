"""`bixse grade rank`: a judge as a zero-shot ranker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.judge_arguments import add_judge_arguments, judge_options, prices_of
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "--collection",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with corpus.jsonl, queries.jsonl and qrels",
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="score against qrels/NAME.tsv (default: test)")
    parser.add_argument(
        "--candidates",
        default="bm25",
        metavar="NAME",
        help="what is put in order: bm25 (what BM25 finds, default), judged (the judged documents), or a TREC run file",
    )
    parser.add_argument("--depth", type=int, default=100, metavar="N", help="candidates per query (default: 100)")
    parser.add_argument(
        "--min-relevant-grade",
        type=float,
        default=1.0,
        metavar="GRADE",
        help="grade from which a document is relevant for recall and MRR (default: 1)",
    )
    parser.add_argument(
        "--document-characters",
        type=int,
        metavar="N",
        help="show the judge only the first N characters of a document",
    )
    add_judge_arguments(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/rank"), metavar="DIR", help="write everything here (default: runs/rank)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Grade the candidates, reorder them, print both orders' figures."""
    from bixse.grading.ask import Budget
    from bixse.grading.grade import GradeSettings
    from bixse.grading.open_judge import open_judge, reads_rubric
    from bixse.grading.rank import rank
    from bixse.grading.rubrics import load_rubric
    from bixse.progress import progress_bar
    from bixse.report.table import format_difference, format_interval, format_p_value, format_table

    rubric = load_rubric(args.rubric)
    settings = GradeSettings(rubric if reads_rubric(args.judge) else None, document_characters=args.document_characters)
    judge = open_judge(args.judge, rubric, judge_options(args))
    try:
        result = rank(
            judge,
            args.collection,
            args.split,
            args.out,
            settings,
            args.candidates,
            args.depth,
            args.min_relevant_grade,
            prices_of(args, judge.name),
            Budget(args.max_usd),
            progress_bar,
            args.strict,
        )
    finally:
        judge.close()
    before = result.candidate_metrics
    rows: list[list[str | float]] = [
        [name, value, *([before[name]] if before else [])] for name, value in result.metrics.items()
    ]
    headers = ["metric", judge.name, *([f"candidates ({Path(args.candidates).name})"] if before else [])]
    queries = len(next(iter(result.per_query.values())))
    precision = result.summary["precision"]
    computed = f", {precision}" if precision else ""
    lines = [f"{judge.name} ranks {args.collection} ({args.split}, {queries} queries{computed})", ""]
    lines.append(format_table(rows, headers))
    if result.difference is not None:
        found = result.difference
        lines += [
            "",
            f"nDCG@10 {format_difference(found.mean)} {format_interval(found.low, found.high, signed=True)}, "
            f"p {format_p_value(found.p_value)}: {result.verdict}",
        ]
    summary = result.summary
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} from the ledger, {summary['usd']:.4f} US dollars"
    )
    artifacts = {"run": str(args.out / "run.trec"), "record": str(args.out / "run.json")}
    metrics = {**result.metrics, "usd": summary["usd"], "precision": precision}
    warnings = [*judge.warnings, *result.warnings]
    return CommandResult("\n".join(lines), metrics, artifacts, warnings, [], 0 if result.complete else 3)
