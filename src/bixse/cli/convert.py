"""`bixse convert`: outside formats to graded pairs or a collection, and transforms of graded pairs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from bixse.data.conversion.convert import ConvertResult
    from bixse.data.conversion.convert_settings import ConvertSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, and where the result goes."""
    from bixse.data.conversion.convert_settings import ConvertSettings

    add_settings(parser, ConvertSettings)
    parser.add_argument("--list", action="store_true", help="show the sources: what they are, licence, citation")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/convert"), metavar="DIR", help="output folder (default: runs/convert)"
    )
    parser.add_argument("--dry-run", action="store_true", help="read all, write nothing: counts, relevance, errors")


def run(args: argparse.Namespace) -> CommandResult:
    """Convert, look, or list the sources."""
    if args.list:
        return _list()
    from bixse.data.conversion.convert import convert
    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.progress import progress_bar

    settings = settings_from(args, ConvertSettings)

    def bar(title: str, total: int) -> Callable[[int], None]:
        return progress_bar(title, total, "B")

    result = convert(settings, None if args.dry_run else args.out, bar)
    reused = ["this run was finished before: its results are shown"] if result.reused else []
    skipped = []
    if result.faults and not args.dry_run:
        skipped = [f"{result.faults} faulty rows were left out: see {args.out / 'faults.jsonl'}"]
    metrics = {name: getattr(result, name) for name in ("judgements", "statuses", "faults", "parts", "transforms",
               "source")}  # fmt: skip
    artifacts = {} if args.dry_run else {name: str(args.out / name) for name in result.files}
    if not args.dry_run:
        artifacts["record"] = str(args.out / "run.json")
    text = _text(result, settings, None if args.dry_run else args.out)
    return CommandResult(
        text, metrics, artifacts, [*result.warnings, *skipped, *reused], exit_code=3 if result.faults else 0
    )


def _text(result: ConvertResult, settings: ConvertSettings, out: Path | None) -> str:
    """What was read, done and written, and what comes next."""
    graded = result.statuses.get("graded", 0)
    lines = [f"{result.judgements} judgements read, {graded} of them with a grade"]
    lines += [_done(done) for done in result.transforms]
    for name, part in result.parts.items():
        lines += ["", f"{name}: {part['rows']} pairs of {part['queries']} queries", *_histogram(part["histogram"])]
        if len(part["tasks"]) > 1:
            lines.append("tasks: " + ", ".join(f"{task} {count}" for task, count in part["tasks"].items()))
    if out is None:
        told = [result.faults_shown] if result.faults else []
        return "\n".join([*lines, "", *told, "dry run: nothing was written"])
    lines += ["", *(f"{what}: {out / name}" for name, what in result.files.items())]
    if settings.form == "pairs":
        following = f"next: bixse train --config {shlex.quote(str(out / 'train.yaml'))} --out runs/mine"
    else:
        split = next(iter(result.parts))
        following = f"next: bixse evaluate bm25 --collection {shlex.quote(str(out))} --split {split}"
    return "\n".join([*lines, following])


def _done(done: Any) -> str:
    """One line for a transform, from its record."""
    from bixse.data.transforms import TransformReport

    return str(TransformReport(**done))


def _histogram(counts: list[int], width: int = 40) -> list[str]:
    """A bar for each tenth of relevance."""
    most = max([*counts, 1])
    size = len(counts)
    bars = ["#" * -(-count * width // most) + " " * bool(count) for count in counts]
    return [
        f"  relevance {place / size:.1f} to {(place + 1) / size:.1f} | {bar}{counts[place]}"
        for place, bar in enumerate(bars)
    ]


def _list() -> CommandResult:
    """The sources."""
    from bixse.data.sources.formats import FORMATS, option_flag

    rows = {
        name: {
            "about": form.about,
            "files": form.files,
            "options": [option_flag(option) for option in form.options if option != "columns"],
            "licence": form.licence,
            "citation": form.citation,
        }
        for name, form in FORMATS.items()
    }
    lines = []
    for name, row in rows.items():
        lines += [name, f"  {row['about']}", f"  files: {row['files']}"]
        lines += [f"  options: {', '.join(row['options'])}"] if row["options"] else []
        lines += [f"  licence: {row['licence']}"]
        lines += [f"  cite: {row['citation']}"] if row["citation"] else []
    return CommandResult("\n".join(lines), {"sources": rows})
