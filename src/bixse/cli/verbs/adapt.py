"""`bixse adapt`: an adapter of queries for stored vectors."""

from __future__ import annotations

from dataclasses import asdict

from bixse.adapters.adapt_settings import AdaptSettings
from bixse.cli.verb import FINISHED_BEFORE, CommandResult, Options, Output, Verb
from bixse.progress import progress_bar
from bixse.rendering.wording import format_difference, format_interval, format_seconds, format_verdict
from bixse.results import Difference


def run(settings: AdaptSettings, options: Options) -> CommandResult:
    """Learn an adapter, and keep it only if it is better on dev."""
    from bixse.adapters.adapt import adapt

    result = adapt(settings, options.folder, progress_bar)
    gain = Difference(**{name: value for name, value in result.gain.items() if name not in ("verdict", "few")})
    saved = result.artifacts.get("adapter")
    figures = f"{format_difference(gain.mean)} {format_interval(gain.low, gain.high, signed=True)}".strip()
    base = ", ".join(f"{name} {value:.3f}" for name, value in result.base.items())
    lines = [
        f"{result.documents:,} vectors of {result.dimensions} dimensions, {gain.queries} dev queries: {base}",
        f"a perfect order of the first 100 would give nDCG@10 {result.ceiling:.3f}",
        f"adapter: {figures} nDCG@10, {format_verdict(gain)}; "
        f"trained on {result.train_queries} queries in {format_seconds(result.seconds)}",
        f"saved: {saved}, of {result.steps} steps, times {result.shrinkage:g}" if saved else "no adapter is saved",
    ]
    metrics = {name: value for name, value in asdict(result).items() if name not in ("artifacts", "warnings")}
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    # a difference of 0 is no reason to grade more
    why = f"it cannot be told whether the adapter is better: {gain.few}" if gain.few else "it is not shown to be better"
    why = f"no adapter is saved: {why} on dev; fix: grade documents of more queries, or train another model"
    return CommandResult(
        "\n".join(lines), metrics, result.artifacts, warnings, [] if saved else [why], exit_code=0 if saved else 1
    )


OUT = Output("Folder for the adapter and run.json.", "runs/adapter")
FIRST = ("vectors", "queries", "pairs", "vectors_of", "dev")
VERB = Verb(AdaptSettings, Options, run, out=OUT, first=FIRST)
