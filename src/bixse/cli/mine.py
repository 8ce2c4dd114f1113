"""`bixse mine`: make pairs to grade, and afterwards see how many mined documents were relevant."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.mining.mine import MineResult

LISTED = 10
"""How many queries without candidates the text shows; --json and run.json hold all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, where the pairs go, and what is reported after grading."""
    from bixse.mining.mine_settings import MineConfig

    add_settings(parser, MineConfig)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/mined"),
        metavar="DIR",
        help="folder for pairs, runs and run.json (default: runs/mined)",
    )
    report = parser.add_argument_group("after grading")
    report.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="graded pairs of a mining run: show how many mined documents are relevant",
    )
    report.add_argument("--mined", type=Path, metavar="DIR", help="with --report: the --out folder of that run")
    report.add_argument(
        "--relevant-from",
        type=float,
        metavar="Z",
        help="with --report: relevance that counts as relevant, 0 to 1 (default: 0.5)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Mine, or report on what was graded."""
    from bixse.errors import InputError

    if args.report is not None:
        return _report(args)
    for name in ("mined", "relevant_from"):
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')}: got it without --report; expected both; fix: --report FILE with the "
                "graded pairs"
            )
    from bixse.mining.mine import mine
    from bixse.mining.mine_settings import MineConfig
    from bixse.progress import progress_bar

    result = mine(settings_from(args, MineConfig), args.out, progress_bar)
    missing = result.without_candidates
    warnings = [*result.warnings, *(["this run was finished before: its results are shown"] if result.reused else [])]
    if missing:
        shown = ", ".join(missing[:LISTED]) + (f" and {len(missing) - LISTED} more" if len(missing) > LISTED else "")
        warnings.append(f"{len(missing)} of {result.queries} queries have no candidate: {shown}")
    metrics = {name: getattr(result, name) for name in ("pairs", "queries", "bands", "without_candidates", "with_fewer",
               "known", "copies", "empty_documents")}  # fmt: skip
    artifacts = {"pairs": str(args.out / result.path), "record": str(args.out / "run.json")}
    artifacts |= {f"run {label}": str(args.out / name) for label, name in result.runs.items()}
    return CommandResult(_text(result, args.out), metrics, artifacts, warnings, exit_code=3 if missing else 0)


def _text(result: MineResult, out: Path) -> str:
    """Pairs by band of rank, and what was left out."""
    from bixse.report.table import format_table

    labels = list(result.runs)
    rows: list[list[str | int]] = [
        [band, counts["pairs"], *(counts[label] for label in labels)] for band, counts in result.bands.items()
    ]
    table = format_table(rows, ["rank", "pairs", *(f"found by {label}" for label in labels)])
    left_out = [
        (result.known, "known pairs"),
        (result.copies, "copies of a text"),
        (result.empty_documents, "empty documents"),
        (result.with_fewer, "queries with fewer documents than asked for"),
    ]
    lines = [f"{label}: {count}" for count, label in left_out if count]
    heading = f"{result.pairs} pairs of {result.queries} queries, to be graded"
    path = out / result.path
    following = f"next: bixse grade --pairs {shlex.quote(str(path))} --judge JUDGE --dry-run"
    return "\n".join([heading, "", table, "", *lines, f"pairs: {path}", following])


def _report(args: argparse.Namespace) -> CommandResult:
    """The share of mined documents that are relevant, by rank and by retriever."""
    from bixse.errors import InputError
    from bixse.mining.false_negatives import RELEVANT_FROM, report_mined

    if args.mined is None:
        raise InputError(
            "--report: got no --mined; expected the folder the pairs were mined into; fix: add --mined DIR"
        )
    threshold = RELEVANT_FROM if args.relevant_from is None else args.relevant_from
    found = report_mined(args.report, args.mined, threshold)
    return CommandResult(str(found), found.to_json())
