"""`bixse generate`: queries for the documents of a corpus, written by a language model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from bixse.cli.verb import CommandResult, Folder, Options, Verb, waits
from bixse.judging.generate.generate_settings import WriterConfig


class GenerateOptions(Options):
    """Where everything goes."""

    out: Folder = Path("runs/generate")
    """Write queries.jsonl, pairs.parquet, the ledger and run.json here."""


def run(config: WriterConfig, options: GenerateOptions) -> CommandResult:
    """Write, clean, keep each once, print counts."""
    from bixse.judging.generate.generate import generate
    from bixse.progress import progress_bar

    out = options.out
    writer = config.open()
    try:
        result = generate(config, writer, out, progress_bar)
    finally:
        writer.close()
    if result.waiting:
        return waits(result.waiting, asked=result.asked, reused=result.reused, usd=result.usd)
    lines = [f"{result.queries} queries for {result.documents} documents, written by {writer.name}"]
    lines += [f"  {count} texts not kept: {reason}" for reason, count in result.refused.items()]
    lines.append(
        f"{result.asked} requests, {result.reused} texts from the ledger; {result.prompt_tokens:,} tokens read, "
        f"{result.completion_tokens:,} written, {result.usd:.4f} US dollars"
    )
    if result.stopped:
        lines.append(f"stopped: {result.stopped}; the same command with a higher limit goes on")
    if result.queries:
        lines.append(
            f"next: bixse mine --corpus {config.corpus} --queries {out / 'queries.jsonl'}, or grade these pairs: "
            f"bixse grade --pairs {out / 'pairs.parquet'} --judge ..."
        )
    artifacts = {"queries": str(out / "queries.jsonl"), "pairs": str(out / "pairs.parquet")}
    exit_code = 0 if result.complete and result.queries else 3
    return CommandResult("\n".join(lines), asdict(result), artifacts, [], [], exit_code)


VERB = Verb(WriterConfig, GenerateOptions, run)
