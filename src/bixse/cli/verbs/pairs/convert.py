"""`bixse convert`: outside formats to graded pairs or a collection, and transforms of graded pairs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.verb import FINISHED_BEFORE, CommandResult, Folder, Options, Verb
from bixse.preparing.convert_settings import ConvertSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.preparing.convert import ConvertResult


class ConvertOptions(Options):
    """The output folder, and what is only shown."""

    list: bool = False
    """Show the sources: what they are, licence, citation."""
    out: Folder = Path("runs/convert")
    """Output folder."""
    dry_run: bool = False
    """Read all, write nothing: counts, relevance, errors."""


def run(settings: ConvertSettings, options: ConvertOptions) -> CommandResult:
    """Convert a source, or only look at it."""
    from bixse.preparing.convert import convert
    from bixse.progress import progress_bar

    out = None if options.dry_run else options.out

    def bar(title: str, total: int) -> Callable[[int], None]:
        return progress_bar(title, total, "B")

    result = convert(settings, out, bar)
    warnings = list(result.warnings)
    if result.errors and out is not None:
        warnings.append(f"{result.errors} invalid rows were left out: see {out / 'errors.jsonl'}")
    if result.reused:
        warnings.append(FINISHED_BEFORE)
    metrics = {name: getattr(result, name) for name in ("judgements", "statuses", "errors", "parts", "transforms",
               "source")}  # fmt: skip
    files = {**{name: name for name in result.files}, "record": "run.json"}
    artifacts = {name: str(out / file) for name, file in files.items()} if out is not None else {}
    code = 3 if result.errors else 0
    return CommandResult(_text(result, settings, out), metrics, artifacts, warnings, exit_code=code)


def _text(result: ConvertResult, settings: ConvertSettings, out: Path | None) -> str:
    from bixse.data.transforms import TransformReport
    from bixse.report.table import format_histogram

    graded = result.statuses.get("graded", 0)
    lines = [f"{result.judgements} judgements read, {graded} of them with a grade"]
    lines += [str(TransformReport(**done)) for done in result.transforms]
    for name, part in result.parts.items():
        lines += [
            "",
            f"{name}: {part['rows']} pairs of {part['queries']} queries",
            *format_histogram(part["histogram"]),
        ]
        if len(part["tasks"]) > 1:
            lines.append("tasks: " + ", ".join(f"{task} {count}" for task, count in part["tasks"].items()))
    if out is None:
        told = [result.errors_shown] if result.errors else []
        return "\n".join([*lines, "", *told, "dry run: nothing was written"])
    lines += ["", *(f"{what}: {out / name}" for name, what in result.files.items())]
    if settings.form == "pairs":
        following = f"next: bixse train --config {shlex.quote(str(out / 'train.yaml'))} --out runs/mine"
    else:
        split = next(iter(result.parts))
        following = f"next: bixse evaluate bm25 --collection {shlex.quote(str(out))} --split {split}"
    return "\n".join([*lines, following])


def _sources(options: ConvertOptions) -> CommandResult:
    from bixse.preparing.formats import describe_formats

    text, rows = describe_formats()
    return CommandResult(text, {"sources": rows})


VERB = Verb(ConvertSettings, ConvertOptions, run, {"list": _sources})
