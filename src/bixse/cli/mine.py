"""`bixse mine`: make pairs to grade, and afterwards see how many mined documents were relevant."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_cache_argument
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    from bixse.mining.false_negatives import RelevantShare
    from bixse.mining.mine import MineResult

LISTED = 10
"""How many queries without candidates the text shows; --json and run.json hold all."""


class _Collect(argparse.Action):
    """Collects the values of a flag given several times; the first one replaces the default or a file's setting."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        found = getattr(namespace, self.dest)
        setattr(namespace, self.dest, list(values) if found is self.default else [*found, *values])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    texts = parser.add_argument_group("what to mine")
    texts.add_argument("--collection", type=Path, metavar="DIR",
                       help="folder with corpus.jsonl and queries.jsonl (and qrels)")  # fmt: skip
    texts.add_argument("--corpus", type=Path, metavar="FILE", help="documents, one JSON {_id, title, text} a line")
    texts.add_argument("--queries", type=Path, metavar="FILE", help="queries, one JSON {_id, text} a line")
    texts.add_argument("--split", metavar="NAME", help="only the queries that qrels/NAME.tsv judges")
    texts.add_argument("--max-queries", type=int, metavar="N", help="only N queries, drawn by the seed")
    texts.add_argument("--known", type=Path, metavar="FILE",
                       help="graded pairs to leave out, whatever their grade")  # fmt: skip
    texts.add_argument("--exclude-judged", metavar="SPLIT",
                       help="leave out the pairs that qrels/SPLIT.tsv judges")  # fmt: skip
    texts.add_argument("--exclude-self", action="store_true",
                       help="leave out the document that has the query's own id")  # fmt: skip
    search = parser.add_argument_group("how to mine")
    search.add_argument("--retriever", action=_Collect, nargs="+", default=["bm25"], metavar="NAME",
                        help="bm25, demo, a model folder or a hub name, one or several (default: bm25)")  # fmt: skip
    search.add_argument("--strategy", default="spread", metavar="NAME",
                        help="spread: from the top down to the depth; top: the best; hard-negatives: the best that are "
                        "not known; one: a single document from any depth (default: spread)")  # fmt: skip
    search.add_argument("--per-query", type=int, metavar="K", help="documents per query (default: 8; 1 for one)")
    search.add_argument("--depth", type=int, default=100, metavar="N",
                        help="ranks that count, of each retriever and fused (default: 100)")  # fmt: skip
    search.add_argument("--seed", type=int, default=0, help="seed of the draws (default: 0)")
    search.add_argument("--max-length", type=int, metavar="TOKENS", help="encoders read the first TOKENS of a text")
    search.add_argument("--task", metavar="NAME",
                        help="written beside every pair; encoders with instructions use this task's")  # fmt: skip
    search.add_argument("--format", default="parquet", metavar="NAME",
                        help="of the pairs: parquet, jsonl or csv (default: parquet)")  # fmt: skip
    search.add_argument("--out", type=Path, default=Path("runs/mined"), metavar="DIR",
                        help="folder for pairs, runs and run.json (default: runs/mined)")  # fmt: skip
    add_cache_argument(search)
    report = parser.add_argument_group("after grading")
    report.add_argument("--report", type=Path, metavar="FILE",
                        help="graded pairs of a mining run: show how many mined documents are relevant")  # fmt: skip
    report.add_argument("--mined", type=Path, metavar="DIR", help="with --report: the --out folder of that run")
    report.add_argument("--relevant-from", type=float, metavar="Z",
                        help="with --report: relevance that counts as relevant, 0 to 1 (default: 0.5)")  # fmt: skip


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

    config = MineConfig(
        collection=args.collection,
        corpus=args.corpus,
        queries=args.queries,
        split=args.split,
        retrievers=tuple(args.retriever),
        strategy=args.strategy,
        per_query=args.per_query,
        depth=args.depth,
        seed=args.seed,
        exclude_self=args.exclude_self,
        exclude_judged=args.exclude_judged,
        known=args.known,
        max_queries=args.max_queries,
        max_length=args.max_length,
        task=args.task,
    )
    result = mine(config, args.out, args.format, progress_bar, args.cache)
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
    from bixse.data.pairs_files import load_graded_pairs
    from bixse.errors import InputError
    from bixse.mining.false_negatives import RELEVANT_FROM, false_negatives
    from bixse.mining.mined_pairs import load_mined_pairs
    from bixse.report.table import format_table

    if args.mined is None:
        raise InputError(
            "--report: got no --mined; expected the folder the pairs were mined into; fix: add --mined DIR"
        )
    threshold = RELEVANT_FROM if args.relevant_from is None else args.relevant_from
    found = false_negatives(load_graded_pairs(args.report), load_mined_pairs(args.mined), threshold)
    groups = {"all": {"all": found.overall}, "rank": found.by_band, "found by": found.by_retriever}
    rows: list[list[str | int | float]] = [
        [f"{group} {name}" if group != name else name, share.graded, share.relevant, share.value, *share.interval]
        for group, shares in groups.items()
        for name, share in shares.items()
    ]
    table = format_table(rows, ["mined pairs", "graded", "relevant", "share", "from", "to"])
    heading = (
        f"{found.overall.graded} of {found.mined} mined pairs have a grade. Relevant, at {threshold:g} and above: "
        f"{found.overall}."
    )
    note = "As zeros, these would have been false negatives; graded, each keeps its relevance."
    metrics: dict[str, Any] = {
        "threshold": threshold,
        "mined": found.mined,
        "overall": _figures(found.overall),
        "by_band": {name: _figures(share) for name, share in found.by_band.items()},
        "by_retriever": {name: _figures(share) for name, share in found.by_retriever.items()},
    }
    return CommandResult(f"{heading}\n{note}\n\n{table}", metrics)


def _figures(share: RelevantShare) -> dict[str, Any]:
    low, high = share.interval
    return {"graded": share.graded, "relevant": share.relevant, "share": share.value, "low": low, "high": high}
