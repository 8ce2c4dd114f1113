"""`bixse merge`: average models, with weights given or chosen on dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="models of one architecture; with --dev the base model first"
    )
    parser.add_argument("--weights", nargs="+", type=float, metavar="W", help="share of each model, with sum 1")
    parser.add_argument(
        "--dev",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="collections to choose w on: (1 - w) base + w tuned, where tuned is the mean of the other models",
    )
    parser.add_argument(
        "--dev-split", default="dev", metavar="NAME", help="split of the dev collections (default: dev)"
    )
    parser.add_argument("--guard", nargs="+", type=Path, metavar="DIR", help="collections that must not get worse")
    parser.add_argument("--guard-split", default="test", metavar="NAME", help="their split (default: test)")
    parser.add_argument(
        "--guard-tolerance", type=float, default=0.01, metavar="X", help="nDCG@10 they may lose (default: 0.01)"
    )
    parser.add_argument(
        "--candidates", nargs="+", type=float, metavar="W", help="values of w to try (default: 0.1 0.2 ... 1)"
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=10_000,
        metavar="N",
        help="documents of a collection that are searched, judged ones first; 0 for all (default: 10000)",
    )
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="graded pairs to fit scale and bias to")
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    parser.add_argument(
        "--allow-shared-queries", action="store_true", help="accept dev or guard queries that stand in --pairs"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the models")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/merge"), metavar="DIR", help="output folder (default: runs/merge)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Merge, and say what it changed."""
    from bixse.progress import progress_bar
    from bixse.training.config import MergeConfig
    from bixse.training.merging.merge_models import merge_models

    candidates = tuple(args.candidates) if args.candidates else MergeConfig.model_fields["weights"].default
    found = merge_models(
        args.models,
        args.out,
        weights=args.weights,
        dev=args.dev,
        dev_split=args.dev_split,
        guard=args.guard,
        guard_split=args.guard_split,
        guard_tolerance=args.guard_tolerance,
        candidates=candidates,
        documents=None if args.documents == 0 else args.documents,
        pairs=args.pairs,
        max_length=args.max_length,
        allow_shared_queries=args.allow_shared_queries,
        trust_remote_code=args.trust_remote_code,
        progress=progress_bar,
    )
    lines = [f"{'already merged' if found.reused else 'merged'}: {found.model_path}", *found.result.lines()]
    return CommandResult(
        text="\n".join(lines),
        metrics=found.result.to_json(),
        artifacts={"model": str(found.model_path), "run": str(args.out / "run.json")},
        warnings=found.warnings,
    )
