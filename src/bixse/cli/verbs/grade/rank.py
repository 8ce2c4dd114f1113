"""`bixse grade rank`: a judge as a zero-shot ranker."""

from __future__ import annotations

from pathlib import Path

from bixse.cli.verb import CommandResult, ComputingOptions, Folder, Verb
from bixse.judging.open_judge import RankConfig


class RankOptions(ComputingOptions):
    """Where everything goes."""

    out: Folder = Path("runs/rank")
    """Write everything here."""


def run(config: RankConfig, options: RankOptions) -> CommandResult:
    """Grade the candidates, reorder them, print both orders' figures."""
    from bixse.judging.ask import Budget
    from bixse.judging.rank import rank
    from bixse.progress import progress_bar
    from bixse.report.table import format_difference, format_interval, format_p_value, format_table, format_verdict

    settings = config.model_copy(update={"rubric": config.asked_rubric()})
    judge = config.open()
    try:
        prices = config.of(config.model or judge.name)
        asking = {"prices": prices, "budget": Budget(config.max_usd), "progress": progress_bar, "strict": config.strict}
        result = rank(judge, settings, options.out, **asking)
    finally:
        judge.close()
    before = result.candidate_metrics
    rows: list[list[str | float]] = [
        [name, value, *([before[name]] if before else [])] for name, value in result.metrics.items()
    ]
    headers = ["metric", judge.name, *([f"candidates ({Path(config.candidates).name})"] if before else [])]
    queries = len(next(iter(result.per_query.values())))
    precision = result.summary["precision"]
    computed = f", {precision}" if precision else ""
    lines = [f"{judge.name} ranks {config.collection} ({config.split}, {queries} queries{computed})", ""]
    lines.append(format_table(rows, headers))
    if result.difference is not None:
        found = result.difference
        lines += [
            "",
            f"nDCG@10 {format_difference(found.mean)} {format_interval(found.low, found.high, signed=True)}, "
            f"p {format_p_value(found.p_value)}: {format_verdict(found)}",
        ]
    summary = result.summary
    lines.append(
        f"{summary['asked']} questions asked, {summary['reused']} from the ledger, {summary['usd']:.4f} US dollars"
    )
    artifacts = {"run": str(options.out / "run.trec"), "record": str(options.out / "run.json")}
    metrics = {**result.metrics, "usd": summary["usd"], "precision": precision}
    warnings = [*judge.warnings, *result.warnings]
    return CommandResult("\n".join(lines), metrics, artifacts, warnings, [], 0 if result.complete else 3)


VERB = Verb(RankConfig, RankOptions, run)
