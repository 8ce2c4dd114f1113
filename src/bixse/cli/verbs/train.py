"""`bixse train`: train an encoder. `bixse merge`: average the weights of models."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bixse.cli.verb import CommandResult, ComputingOptions, Options, Output, Verb
from bixse.progress import size
from bixse.rendering.wording import format_seconds
from bixse.settings import paths_in
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.merge_config import MergeModelsConfig


def run_train(config: TrainConfig, options: Options) -> CommandResult:
    """Train an encoder, continue its training, or report that it is finished."""
    if options.dry_run:
        return _plan(config, options.folder)
    from bixse.training.dev_evaluation import dev_figures
    from bixse.training.train import train_into

    result = train_into(config, options.folder)
    figures = dev_figures(result.history)
    precision = config.resolved().precision
    metrics: dict[str, Any] = {"best_step": result.best_step, "precision": precision}
    lines = [f"{'already trained' if result.reused else 'trained'}: {result.model_path}"]
    lines.append(_rate(config.optimizer, result.learning_rate))
    lines.append(f"precision: {precision}")
    if result.standardised is not None:
        lines.append(result.standardised.line())
    if result.best_step in figures and 0 in figures:
        before, best = figures[0], figures[result.best_step]
        metrics |= {"dev_ndcg@10_before": before, "dev_ndcg@10": best}
        if result.merge is None or not result.merge.points:
            lines.append(f"dev nDCG@10: {before:.4f} before, {best:.4f} at step {result.best_step}")
        else:  # the merge has the figure before training over harder documents
            lines.append(f"best checkpoint on dev: step {result.best_step}")
    if result.merge is not None:
        metrics["merge"] = asdict(result.merge)
        lines += [*result.merge.lines(), *[str(result.merge)] * bool(result.merge.points)]
    elif config.merge is not None:
        lines.append("not merged with the base model: no dev collection to choose the weight on (`dev: DIR`)")
    model = shlex.quote(str(result.model_path))
    lines.append(f"next: bixse ui {shlex.quote(str(options.folder))}  # curves, merge and batches in the browser")
    lines.append(f"      bixse evaluate {model} --collection DIR")
    dev = shlex.quote(str(next(iter(paths_in(config.dev)), "DIR")))
    lines.append(f"      bixse calibrate {model} --collection {dev} --split {config.dev_split}  # probabilities")
    artifacts = {"model": str(result.model_path), "run": str(options.folder / "run.json")}
    return CommandResult("\n".join(lines), metrics, artifacts, result.warnings)


def _plan(config: TrainConfig, out: Path) -> CommandResult:
    from bixse.training.dry_run import plan_training

    plan = plan_training(config, out)
    lines = [
        f"{plan.pairs:,} pairs of {plan.queries:,} queries",
        f"{plan.steps:,} steps, {config.optimizer.global_batch_size} queries per batch",
        _rate(config.optimizer, config.optimizer.scaled_learning_rate(plan.queries)),
        f"memory: {size(plan.peak_bytes)} at most during these steps, {size(plan.weights_bytes)} of it weights; "
        f"{size(plan.free_bytes)} are free",
        f"disk: {size(plan.token_bytes)} for the tokens of all texts, in the cache folder",
        f"time: about {format_seconds(plan.seconds)} ({plan.seconds_per_step:.2f} s per step; "
        f"{plan.evaluations} evaluations on dev; {plan.texts:,} more texts to encode, "
        f"{1000 * plan.seconds_per_text:.1f} ms each)",
    ]
    if plan.took > plan.seconds / 10:
        lines.append(f"this plan took {format_seconds(plan.took)}, more than a tenth of the run: train without it")
    lines.append("nothing was trained or written")
    metrics = {name: value for name, value in asdict(plan).items() if name != "warnings"}
    return CommandResult("\n".join(lines), {**metrics, "seconds": plan.seconds}, {}, plan.warnings)


def _rate(optimizer: OptimizerConfig, rate: float) -> str:
    """Return the learning rate with its derivation."""
    text = f"learning rate: {rate:.3g}"
    if rate != optimizer.learning_rate:
        queries = round(optimizer.rate_batch * (rate / optimizer.learning_rate) ** 2)
        text += f" = {optimizer.learning_rate:.3g} * sqrt({queries} / {optimizer.rate_batch})"
        if queries < optimizer.queries_per_step():
            text += f"; {queries} queries in all, fewer than the {optimizer.queries_per_step()} asked for in a step"
    return text


FIRST = (
    "pairs",
    "model",
    "dev",
    "loss",
    "optimizer.num_train_epochs",
    "optimizer.global_batch_size",
    "optimizer.learning_rate",
)
OUT = Output("Folder for the model and run.json.", "runs/train")
DRY_RUN = "Print rows, steps, memory, disk and time, estimated from a few timed steps. Nothing is written."
TRAIN = Verb(TrainConfig, Options, run_train, out=OUT, dry_run=DRY_RUN, report=True, first=FIRST)


def run_merge(config: MergeModelsConfig, options: ComputingOptions) -> CommandResult:
    """Merge models, and return the changes."""
    from bixse.training.merge_models import merge_into

    merged = merge_into(config, options.folder, progress=True)
    lines = [f"{'already merged' if merged.reused else 'merged'}: {merged.model_path}", *merged.result.lines()]
    lines += [str(merged.result)] * bool(merged.result.points)
    artifacts = {"model": str(merged.model_path), "run": str(options.folder / "run.json")}
    return CommandResult("\n".join(lines), asdict(merged.result), artifacts, merged.warnings)


MERGED = Output("Folder for the merged model and run.json.", "runs/merge")
FIRST_OF_MERGE = ("models", "weights", "dev", "guard")
MERGE = Verb(MergeModelsConfig, ComputingOptions, run_merge, out=MERGED, report=True, first=FIRST_OF_MERGE)
