"""`bixse collection`, `bixse convert`, `bixse mine` and `bixse generate`: make collections and pairs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.verb import FINISHED_BEFORE, CommandResult, Options, Output, Verb
from bixse.converting.convert_settings import ConvertSettings
from bixse.data.collection import CollectionSettings, make_collection
from bixse.judging.open_judge import GenerateConfig
from bixse.mining.mine_settings import MineConfig
from bixse.progress import progress_bar
from bixse.rendering.table import format_table
from bixse.rendering.wording import format_histogram

if TYPE_CHECKING:
    from bixse.converting.convert import ConvertResult


def run_collection(settings: CollectionSettings, options: Options) -> CommandResult:
    """Make a collection folder, and return its counts and the next commands."""
    result, out = make_collection(settings, options.folder), options.folder
    lines = [f"{result.documents:,} documents, {result.queries:,} queries", ""]
    if result.splits:
        names = list(next(iter(result.splits.values())))
        rows = [[name, *(format(part[key], "g") for key in names)] for name, part in result.splits.items()]
        lines += [format_table(rows, ["split", *names]), ""]
    lines += [f"collection: {out}", *_next(result.splits, shlex.quote(str(out)))]
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    artifacts = {"collection": str(out), "record": str(out / "run.json")}
    metrics = {"documents": result.documents, "queries": result.queries, "splits": result.splits}
    return CommandResult("\n".join(lines), metrics, artifacts, warnings)


def _next(splits: Mapping[str, Mapping[str, float]], out: str) -> list[str]:
    """Return the commands that come next."""
    if not splits:
        return [f"next: bixse mine --corpus {out}/corpus.jsonl --queries {out}/queries.jsonl --out runs/mined"]
    if "train" not in splits:
        return [f"next: bixse evaluate demo bm25 --collection {out} --split {shlex.quote(next(iter(splits)))}"]
    grades = [splits["train"][end] for end in ("lowest", "highest")]
    scale = f"{min(0, grades[0]):g} {grades[1]:g}"
    dev = f" --dev {out}" if "dev" in splits else ""
    return [
        f"next: bixse convert beir {out} --qrels train --scale {scale} --out runs/pairs",
        f"then: bixse train --config runs/pairs/train.yaml{dev} --out runs/mine",
        f"(the scale is that of the labels: name its ends, if the grades {scale.replace(' ', ' to ')} are not all)",
    ]


COLLECTION = Verb(CollectionSettings, Options, run_collection, out=Output("Output folder.", "runs/collection"),
                  first=("documents", "queries", "labels", "columns", "split"))  # fmt: skip


def run_convert(settings: ConvertSettings, options: Options) -> CommandResult:
    """Convert a source, or only count and check it."""
    from bixse.converting.convert import convert

    out = None if options.dry_run else options.folder
    result = convert(settings, out, partial(progress_bar, unit="B"))
    warnings = list(result.warnings)
    if result.errors and out is not None:
        warnings.append(f"{result.errors} invalid rows were left out: see {out / 'errors.jsonl'}")
    if result.reused:
        warnings.append(FINISHED_BEFORE)
    plain = asdict(result)
    metrics = {name: plain[name] for name in ("judgements", "statuses", "errors", "parts", "transforms", "source")}
    files = {**{name: name for name in result.files}, "record": "run.json"}
    artifacts = {name: str(out / file) for name, file in files.items()} if out is not None else {}
    code = 3 if result.errors and not settings.skip_invalid else 0
    return CommandResult(_text(result, settings, out), metrics, artifacts, warnings, exit_code=code)


def _text(result: ConvertResult, settings: ConvertSettings, out: Path | None) -> str:
    graded = result.statuses.get("graded", 0)
    lines = [f"{result.judgements} judgements read, {graded} of them with a grade"]
    lines += [str(done) for done in result.transforms]
    for name, part in result.parts.items():
        lines += [
            "",
            f"{name}: {part['rows']} pairs of {part['queries']} queries",
            *format_histogram(part["histogram"]),
        ]
        if len(part["tasks"]) > 1:
            lines.append("tasks: " + ", ".join(f"{task} {count}" for task, count in part["tasks"].items()))
    if out is None:
        errors = [result.errors_shown] if result.errors else []
        return "\n".join([*lines, "", *errors, "dry run: nothing was written"])
    lines += ["", *(f"{what}: {out / name}" for name, what in result.files.items())]
    following = f"next: bixse train --config {shlex.quote(str(out / 'train.yaml'))} --out runs/mine"
    return "\n".join([*lines, following])


DRY_RUN = "Read everything and print counts, relevance and errors. Nothing is written."
CONVERT = Verb(ConvertSettings, Options, run_convert, out=Output("Output folder.", "runs/convert"), dry_run=DRY_RUN,
               first=("source", "path", "scale", "corpus", "split"))  # fmt: skip


LISTED = 10
"""Number of queries without candidates in the text. --json and run.json hold all."""


def run_mine(config: MineConfig, options: Options) -> CommandResult:
    """Mine pairs, and return the next command, which grades them."""
    from bixse.mining.mine import mine_into

    result = mine_into(config, options.folder, progress_bar)
    missing = result.without_candidates
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    if missing:
        shown = ", ".join(missing[:LISTED]) + (f" and {len(missing) - LISTED} more" if len(missing) > LISTED else "")
        warnings.append(f"{len(missing)} of {result.queries} queries have no candidate: {shown}")
    metrics = {name: getattr(result, name) for name in ("pairs", "queries", "bands", "without_candidates", "with_fewer",
               "known", "copies", "empty_documents")}  # fmt: skip
    path = options.folder / result.path
    following = f"next: bixse grade --pairs {shlex.quote(str(path))} --judge JUDGE --dry-run"
    artifacts = {"pairs": str(path), "record": str(options.folder / "run.json")}
    artifacts |= {f"run {label}": str(options.folder / name) for label, name in result.runs.items()}
    text = "\n".join([result.text(), f"pairs: {path}", following])
    return CommandResult(text, metrics, artifacts, warnings, exit_code=3 if missing else 0)


MINE = Verb(MineConfig, Options, run_mine, out=Output("Folder for pairs, runs and run.json.", "runs/mined"),
            first=("collection", "split", "retrievers", "per_query"))  # fmt: skip


def run_generate(config: GenerateConfig, options: Options) -> CommandResult:
    """Generate and clean queries, keep each query once, and return counts."""
    from bixse.judging.generate import generate
    from bixse.judging.grade import spending_of
    from bixse.judging.spending import cost_text

    out = options.folder
    with config.writer.open(spending_of(out, config.ledger, config.prices)) as writer:
        result = generate(config, writer, out, progress_bar)
    lines = [f"{result.queries} queries for {result.documents} documents, written by {writer.name}"]
    lines += [f"  {count} texts not kept: {reason}" for reason, count in result.refused.items()]
    lines.append(
        f"{result.asked} requests, {result.reused} texts from the ledger; {result.prompt_tokens:,} tokens read, "
        f"{result.completion_tokens:,} written{cost_text(result.usd_spent, result.unpriced, result.usd)}"
    )
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit continues")
    if result.queries:
        lines.append(
            f"next: bixse mine --corpus {config.corpus} --queries {out / 'queries.jsonl'}, or grade these pairs: "
            f"bixse grade --pairs {out / 'pairs.parquet'} --judge ..."
        )
    artifacts = {"queries": str(out / "queries.jsonl"), "pairs": str(out / "pairs.parquet")}
    exit_code = 0 if result.complete and result.queries else 3
    return CommandResult("\n".join(lines), asdict(result), artifacts, [], [], exit_code)


OUT = "Folder for queries.jsonl, pairs.parquet, the ledger and run.json."
GENERATE = Verb(GenerateConfig, Options, run_generate, out=Output(OUT, "runs/generate"))
