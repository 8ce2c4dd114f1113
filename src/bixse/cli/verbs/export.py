"""`bixse export` and `bixse push`: a model for other runtimes, and on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bixse.cli.verb import CommandResult, Options, Output, Verb
from bixse.export.export_settings import ExportSettings, PushSettings
from bixse.progress import progress_bar
from bixse.rendering.table import format_table
from bixse.rendering.wording import format_interval, format_verdict


def run_export(settings: ExportSettings, options: Options) -> CommandResult:
    """Write the graph, unless it differs from the model."""
    from bixse.export.export import export

    result = export(settings, options.folder, progress_bar)
    metrics: dict[str, Any] = asdict(result)
    rows = [[f"1 - cosine, {name}", f"{value:.1e}"] for name, value in result.differences.items()]
    rows += [[f"speed, {name}", f"{torch / graph:.2f} x"] for name, (torch, graph) in result.seconds.items()]
    if (ndcg := result.ndcg) is not None:
        ends = format_interval(ndcg.low, ndcg.high, signed=True, digits=4)
        rows.append([f"nDCG@10, {ndcg.queries} queries", f"{ndcg.mean:+.4f} {ends} {format_verdict(ndcg)}"])
        metrics["ndcg"] |= {"verdict": ndcg.verdict, "few": ndcg.few}
    text = format_table(rows, [f"{settings.to} against torch", ""])
    if result.fault is not None and not settings.anyway:
        why = (
            f"refused, nothing is written: {result.fault}; expected what the model computes; fix: another --to, or "
            "--anyway to write it"
        )
        return CommandResult(text, metrics, errors=[why], exit_code=1)
    warnings = [f"written anyway: {result.fault}"] if result.fault is not None else []
    warnings += [result.doubt] if result.doubt else []
    return CommandResult(f"{text}\n\nsaved: {options.folder}", metrics, {"folder": str(options.folder)}, warnings)


def run_push(settings: PushSettings, options: Options) -> CommandResult:
    """Send the files, or show them."""
    from bixse.export.push import push

    pushed = push(settings, options.dry_run)
    if pushed.url is None:
        text = "\n".join([f"{len(pushed.files)} files", *(f"  {name}" for name in pushed.files), "", pushed.card])
        return CommandResult(text, asdict(pushed))
    return CommandResult(f"sent {len(pushed.files)} files: {pushed.url}", asdict(pushed), {"repository": pushed.url})


OUT = Output("New folder of the graph, its tokenizer and its relevance head.", "runs/export")
EXPORT = Verb(ExportSettings, Options, run_export, out=OUT, first=("model", "to", "collection", "pairs"))
PUSH = Verb(PushSettings, Options, run_push, dry_run="Print the files and the card. Send nothing.")
