"""`bixse grade`: grade pairs by a judge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.judge_arguments import add_judge_arguments, judge_options, prices_of
from bixse.cli.result import CommandResult
from bixse.errors import InputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.grading.estimate import Estimate
    from bixse.grading.grade import GradeResult
    from bixse.grading.judge import Judge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="pairs with the columns query and document: .parquet, .jsonl, .csv or .tsv, as `bixse mine` writes them "
        "(a replayed file may bring its own)",
    )
    add_judge_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/grade"),
        metavar="DIR",
        help="write pairs.parquet, judgements.parquet, ledger.sqlite and run.json here (default: runs/grade)",
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="file of answers to share between runs (default: ledger.sqlite in the --out folder)",
    )
    parser.add_argument(
        "--document-characters", type=int, metavar="N", help="show the judge only the first N characters of a document"
    )
    parser.add_argument(
        "--regrade",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="ask this share of the pairs twice, to see how far the judge agrees with itself",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice of those pairs (default: 0)")
    parser.add_argument(
        "--retry-failed", action="store_true", help="ask again those pairs, and only those, whose answer has no grade"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say how many questions, tokens, dollars and hours it would take"
    )
    parser.add_argument(
        "--pilot",
        type=int,
        metavar="N",
        help="questions that --dry-run asks to see tokens and time; their answers are kept, 0 for none (default: a "
        "tenth of those left, at least 16, at most three times what the judge takes at once)",
    )
    parser.add_argument("--max-pairs", type=int, metavar="N", help="stop when N pairs were asked")


def run(args: argparse.Namespace) -> CommandResult:
    """Open the judge, then grade or estimate, and print a summary."""
    from bixse.data.io.files import file_hash
    from bixse.grading.ask import Budget
    from bixse.grading.cost import Prices
    from bixse.grading.estimate import estimate
    from bixse.grading.grade import GradeSettings, grade
    from bixse.grading.open_judge import REPLAY, open_judge, reads_rubric
    from bixse.grading.rubrics import load_rubric
    from bixse.progress import progress_bar

    for flag, given in (("--regrade", args.regrade), ("--document-characters", args.document_characters)):
        if given and args.judge[0].startswith(REPLAY):
            raise InputError(
                f"{flag}: got it with judgements that exist already; expected a judge that reads; fix: leave it out"
            )
    rubric = load_rubric(args.rubric)
    settings = GradeSettings(
        rubric if reads_rubric(args.judge) else None, args.regrade, args.seed, args.document_characters
    )
    orders = len(rubric.orders) if settings.rubric is not None else 1
    budget = Budget(args.max_usd, None if args.max_pairs is None else args.max_pairs * orders)
    inputs = {"pairs": file_hash(args.pairs)} if args.pairs is not None and args.pairs.is_file() else {}
    judge = open_judge(args.judge, rubric, judge_options(args))
    told = () if args.json else tuple(getattr(judge, "doubts", ()))  # before the first question, see `grade`
    try:
        pairs = _pairs(args.pairs, judge)
        prices = prices_of(args, judge.name)
        common: dict[str, Any] = {"settings": settings, "ledger": args.ledger, "prices": prices, "inputs": inputs}
        common["strict"] = args.strict
        if args.dry_run:
            found = estimate(pairs, judge, args.out, pilot=args.pilot, max_usd=args.max_usd, **common)
            left = [warning for warning in judge.warnings if warning not in told]
            return CommandResult(_estimate_text(found, judge.name), asdict(found), warnings=left)
        result = grade(
            pairs, judge, args.out, budget=budget, retry_failed=args.retry_failed, progress=progress_bar, **common
        )
    finally:
        judge.close()
    return _result(result, judge, prices != Prices(), told)


def _pairs(path: Path | None, judge: Judge) -> list[Pair]:
    """The pairs of the file, or those that a replayed file holds."""
    from bixse.data.pairs_files import load_pairs

    if path is not None:
        return load_pairs(path)
    own = getattr(judge, "pairs", None)
    if own is None:
        raise InputError("--pairs: got none; expected a file with query and document; fix: name it")
    return list(own())


def _result(result: GradeResult, judge: Judge, priced: bool, told: Sequence[str]) -> CommandResult:
    """What a person reads: how many, how they spread, what it took, what to doubt."""
    from bixse.report.table import format_table

    summary = result.summary
    graded = summary["statuses"].get("graded", 0)
    computed = f" in {summary['precision']}" if summary["precision"] else ""
    rows: list[list[str | float]] = [[status, str(count)] for status, count in summary["statuses"].items()]
    if summary["not_asked"]:
        rows.append(["not asked yet", str(summary["not_asked"])])
    lines = [f"{graded} of {summary['pairs'] + summary['not_asked']} pairs graded by {judge.name}{computed}", ""]
    lines += [format_table(rows, ["status", "pairs"]), ""]
    if graded:
        lines += [*_histogram(summary["relevance_tenths"]), ""]
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} answers from the ledger; "
        f"{summary['prompt_tokens']:,} tokens read ({summary['cached_tokens']:,} from the server's cache), "
        f"{summary['completion_tokens']:,} written, {summary['usd']:.4f} US dollars "
        f"({summary['usd_of_this_run']:.4f} in this run)"
    )
    if summary["repeats"]:
        lines.append(
            f"{summary['repeats']} pairs were asked twice: relevance changed by "
            f"{summary['mean_change_of_repeats']:.4f} on average"
        )
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if graded:
        lines += [
            f"next: bixse grade audit --judge {result.artifacts['judgements']} --human QRELS",
            f"      bixse train --pairs {result.artifacts['pairs']}",
        ]
    exit_code = 0 if result.complete else 3
    left = [warning for warning in judge.warnings if warning not in told]
    warnings = [*left, *_warnings(summary, judge.name, priced)]
    return CommandResult("\n".join(lines), dict(summary), dict(result.artifacts), warnings, [], exit_code)


def _warnings(summary: Mapping[str, Any], name: str, priced: bool) -> list[str]:
    graded = summary["statuses"].get("graded", 0)
    warnings = []
    for dtype, count in summary["answered_in_other_precision"].items():
        warnings.append(
            f"{count} answers of this judge in {dtype} are in the ledger and were not reused: this run computes in "
            f"{summary['precision']}, which gives other probabilities; fix: --dtype {dtype} takes them"
        )
    if (unusable := summary["pairs"] - graded) > 0:
        warnings.append(
            f"{unusable} pairs have a status and no relevance: see judgements.parquet; --retry-failed asks them again"
        )
    if summary["low_mass"]:
        warnings.append(
            f"{summary['low_mass']} of {graded} graded pairs have less than half of the answer's probability on the "
            "options: the judge would rather say something else, and its grades mean less"
        )
    if summary["wide_bounds"]:
        warnings.append(
            f"{summary['wide_bounds']} of {graded} relevances may be off by more than 0.05, since the server did not "
            "return all options: relevance_low and relevance_high hold the bounds"
        )
    warnings += [
        f"{count} answers came from {other}, not from {name}: they are graded all the same, and the column judge names "
        "the model; --strict refuses them"
        for other, count in summary["other_models"].items()
    ]
    if summary["usage_unknown"] and priced:
        warnings.append(
            f"{summary['usage_unknown']} answers came without a usable number of tokens: the dollars lack their price "
            "(--max-usd counts a guess)"
        )
    if graded > 1 and max(summary["relevance_tenths"]) == graded:
        warnings.append("all relevances lie in one tenth of the scale: there is little to learn from them")
    return warnings


def _histogram(tenths: list[int]) -> list[str]:
    """Relevance in ten bars of text."""
    most = max(tenths)
    return ["relevance"] + [
        f"  {tenth / 10:.1f} to {(tenth + 1) / 10:.1f}  {count:>8}  {'#' * round(40 * count / most)}".rstrip()
        for tenth, count in enumerate(tenths)
    ]


def _estimate_text(found: Estimate, name: str) -> str:
    from bixse.progress import duration

    counted = {
        "tokenizer": "counted by the judge's tokenizer",
        "answers": "from the usage of answers so far",
        "characters": "a guess at four characters per token",
    }[found.counted_by]
    left = found.questions - found.answered
    lines = [
        f"{found.pairs} pairs, {found.questions} questions to {name}: {found.answered} answered, {left} to ask",
        f"tokens to read     {found.prompt_tokens:,} ({counted})",
        f"tokens to write    {found.completion_tokens:,}",
        f"price              {found.usd:.4f} US dollars (nothing taken off for cached prompts)",
    ]
    if found.seconds is not None:
        lines.append(f"time               {duration(found.seconds)} at {found.at_once} at once, as timed in the pilot")
    if found.pilot:
        lines.append(f"the pilot asked {found.pilot} questions for {found.pilot_usd:.4f} US dollars; they are kept")
    return "\n".join(lines)
