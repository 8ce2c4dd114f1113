"""`bixse train`: train an encoder on graded pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_missing_argument
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.training.config import OptimizerConfig, TrainConfig

FLAGS = {
    "pairs": "pairs",
    "dev": "dev",
    "dev_split": "dev_split",
    "guard": "guard",
    "guard_split": "guard_split",
    "guard_tolerance": "guard_tolerance",
    "allow_shared_queries": "allow_shared_queries",
    "missing_documents": "missing_documents",
    "model": "model",
    "instructions": "instructions",
    "loss": "loss",
    "scale": "scale",
    "seed": "seed",
    "max_length": "max_length",
    "epochs": "optimizer.epochs",
    "steps": "optimizer.steps",
    "batch_size": "optimizer.batch_size",
    "learning_rate": "optimizer.learning_rate",
    "precision": "precision",
    "documents_per_query": "optimizer.documents_per_query",
}
"""Flag -> key of the configuration it overrides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags; every other setting is a key of the YAML file."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file of settings, more than have flags; flags override it"
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="graded pairs: query, document, relevance in [0, 1] (.parquet .jsonl .csv .tsv); of several files each "
        "is a task",
    )
    parser.add_argument(
        "--dev",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="collection folder (corpus.jsonl, queries.jsonl, qrels), or several; the checkpoint that ranks it best is "
        "kept",
    )
    parser.add_argument("--dev-split", metavar="NAME", help="split of the dev collection (default: dev)")
    add_missing_argument(parser, default=None)
    parser.add_argument(
        "--guard",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="collection folder, or several, that must not get worse: weights are merged with the base model's so that "
        "they do not",
    )
    parser.add_argument("--guard-split", metavar="NAME", help="split of the guard collections (default: test)")
    parser.add_argument(
        "--guard-tolerance", type=float, metavar="X", help="nDCG@10 they may lose at most (default: 0.01)"
    )
    parser.add_argument(
        "--allow-shared-queries",
        action="store_true",
        default=None,
        help="accept dev or guard queries that stand in the training pairs too",
    )
    parser.add_argument(
        "--no-merge", action="store_true", help="keep the tuned weights: do not merge them with the base model's"
    )
    parser.add_argument(
        "--model",
        metavar="NAME_OR_PATH",
        help="encoder to train: model folder or Hugging Face name (default: demo, the small model of bixse[demo])",
    )
    parser.add_argument(
        "--loss", metavar="NAME", help="objective: bixse (default), infonce, lambdaloss-v2, ... (docs/losses.md)"
    )
    parser.add_argument(
        "--instructions", metavar="FILE", help="task instructions (TOML), or paper for those of the BiXSE paper"
    )
    parser.add_argument("--scale", type=float, metavar="ALPHA", help="logit scale of the loss (default: 10)")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the queries")
    parser.add_argument("--steps", type=int, metavar="N", help="stop after N steps instead")
    parser.add_argument("--batch-size", type=int, metavar="N", help="queries in a batch, over all processes")
    parser.add_argument("--documents-per-query", type=int, metavar="K", help="graded documents of a query in a batch")
    parser.add_argument(
        "--learning-rate", type=float, metavar="RATE", help="peak learning rate for 16 queries per batch"
    )
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of batches and dropout (default: 0)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="rows, steps, memory and time from a few timed steps; nothing is trained or written",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/train"),
        metavar="DIR",
        help="folder for the model and run.json (default: runs/train)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Train, or continue, or say that it is done."""
    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import dev_figures
    from bixse.training.recipe import train

    overrides: dict[str, Any] = {
        key: getattr(args, flag) for flag, key in FLAGS.items() if getattr(args, flag) is not None
    }
    if args.no_merge:
        overrides["merge"] = None
    for key in ("pairs", "dev", "guard"):
        if len(overrides.get(key, ())) == 1:
            overrides[key] = overrides[key][0]
    config = TrainConfig.load(args.config, overrides)
    if args.dry_run:
        return _plan(config, args.out)
    result = train(config, args.out)
    figures = dev_figures(result.history)
    precision = config.resolved().precision
    metrics: dict[str, Any] = {"best_step": result.best_step, "precision": precision}
    lines = [f"{'already trained' if result.reused else 'trained'}: {result.model_path}", _rate(config.optimizer)]
    lines.append(f"precision: {precision}")
    if result.best_step in figures and 0 in figures:
        before, best = figures[0], figures[result.best_step]
        metrics |= {"dev_ndcg@10_before": before, "dev_ndcg@10": best}
        lines.append(f"dev nDCG@10: {before:.4f} before, {best:.4f} at step {result.best_step}")
    if result.merge is not None:
        metrics["merge"] = result.merge.to_json()
        lines += result.merge.lines()
    elif config.merge is not None:
        lines.append("not merged with the base model: no dev collection to choose the weight on (`dev: DIR`)")
    lines.append(f"to go on: bixse evaluate {result.model_path} --collection DIR")
    return CommandResult(
        text="\n".join(lines),
        metrics=metrics,
        artifacts={"model": str(result.model_path), "run": str(args.out / "run.json")},
        warnings=result.warnings,
    )


def _plan(config: TrainConfig, out: Path) -> CommandResult:
    """What the run would take."""
    from dataclasses import asdict

    from bixse.progress import duration
    from bixse.training.dry_run import plan_training

    plan = plan_training(config, out)
    needed = plan.weights_bytes + plan.step_bytes
    lines = [
        f"{plan.pairs:,} pairs of {plan.queries:,} queries",
        f"{plan.steps:,} steps, {config.optimizer.batch_size} queries per batch",
        _rate(config.optimizer),
        f"memory: at least {needed / 1e9:.2f} GB ({plan.weights_bytes / 1e9:.2f} GB weights, "
        f"{plan.step_bytes / 1e9:.2f} GB for a step); {plan.free_bytes / 1e9:.2f} GB are free beside the weights",
        f"time: about {duration(plan.seconds)} ({plan.seconds_per_step:.2f} s a step, the median of "
        f"{plan.timed_steps}; {plan.evaluations} evaluations on dev of {plan.seconds_of_dev:.1f} s; "
        f"{duration(plan.seconds_of_merge)} to score merge weights)",
        "nothing was trained or written",
    ]
    metrics = {name: value for name, value in asdict(plan).items() if name != "warnings"}
    return CommandResult("\n".join(lines), {**metrics, "seconds": plan.seconds}, {}, plan.warnings)


def _rate(optimizer: OptimizerConfig) -> str:
    """The learning rate as a number, and how it came about."""
    rate = f"learning rate: {optimizer.scaled_learning_rate:.3g}"
    if optimizer.scaled_learning_rate == optimizer.learning_rate:
        return rate
    total = optimizer.batch_size * optimizer.gradient_accumulation_steps
    return f"{rate} = {optimizer.learning_rate:.3g} * sqrt({total} / {optimizer.rate_batch})"
