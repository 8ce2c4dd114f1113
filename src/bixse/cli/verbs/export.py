"""`bixse export` and `bixse push`: a model for other runtimes, and on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.cli.verb import CommandResult, Options, Output, Verb
from bixse.export.export_settings import ExportSettings, PushSettings

if TYPE_CHECKING:
    from bixse.export.export import ExportResult


def run_export(settings: ExportSettings, options: Options) -> CommandResult:
    """Write the graph, unless it differs from the model."""
    from dataclasses import asdict

    from bixse.export.export import export
    from bixse.progress import progress_bar

    result = export(settings, options.folder, progress_bar)
    text, metrics = _text(result, settings), asdict(result)
    if result.fault is not None and not settings.anyway:
        why = (
            f"refused, nothing is written: {result.fault}; expected what the model computes; fix: another --to, or "
            "--anyway to write it all the same"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    warnings = [f"written all the same: {result.fault}"] if result.fault is not None else []
    saved = f"saved: {options.folder} ({result.megabytes:.0f} MB)"
    return CommandResult(f"{text}\n{saved}", metrics, {"folder": str(options.folder)}, warnings)


def _text(result: ExportResult, settings: ExportSettings) -> str:
    from bixse.report.table import format_interval, format_table
    from bixse.results import VERDICT_WORDS

    ratios = [(name, graph / torch) for name, (torch, graph) in result.speed.items()]
    rows = [[f"1 - cosine, {name}", f"{value:.1e}"] for name, value in result.differences.items()]
    rows += [[f"{name}, ratio", f"{value:.2f}"] for name, value in ratios]
    lines = [format_table(rows, [f"{settings.to} against torch", "value"])]
    if result.ndcg is not None:
        ends = format_interval(result.ndcg.low, result.ndcg.high, signed=True, digits=4)
        lines.append(f"nDCG@10 {result.ndcg.mean:+.4f} {ends}, {result.ndcg.queries} queries: "
                     f"{VERDICT_WORDS[result.ndcg.verdict]}")  # fmt: skip
    return "\n\n".join(lines)


EXPORT = Verb(
    ExportSettings,
    Options,
    run_export,
    out=Output("New folder of the graph, its tokenizer and its relevance head.", "runs/export"),
    first=("model", "to", "collection", "pairs"),
)
