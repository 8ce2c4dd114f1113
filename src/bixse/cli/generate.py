"""`bixse generate`: queries for the documents of a corpus, written by a language model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult
from bixse.grading.prices import PriceSettings
from bixse.grading.server.server_settings import ServerSettings
from bixse.mining.generation.generate_settings import GenerateConfig, load_query_prompt
from bixse.settings import Flag

if TYPE_CHECKING:
    import argparse


class WriterConfig(PriceSettings, ServerSettings, GenerateConfig):
    """Settings of `bixse generate`: what is written, by which model."""

    server: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="URL")]
    """Address of an OpenAI-compatible server; several addresses: the same model behind each."""
    prompt: Annotated[Path | None, Flag(metavar="FILE")] = None
    """TOML file with instructions and examples."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """0 to 2; 0 for the most probable text."""
    max_tokens: int = Field(default=64, ge=1)
    """Most tokens of a query."""
    ledger: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of texts to share between runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, and where everything goes."""
    add_settings(parser, WriterConfig)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/generate"),
        metavar="DIR",
        help="write queries.jsonl, pairs.parquet, ledger.sqlite and run.json here (default: runs/generate)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Write, clean, keep each once, print counts."""
    from bixse.grading.ask import Budget
    from bixse.grading.server.server_text_model import ServerTextModel
    from bixse.mining.generation.generate import generate
    from bixse.progress import progress_bar

    config = settings_from(args, WriterConfig)
    prompt = load_query_prompt(config.prompt)
    writer = ServerTextModel(
        config.server, config.model, config.temperature, config.max_tokens, config.revision, **config.connection()
    )
    try:
        prices = config.of(config.model or writer.name)
        result = generate(config, writer, prompt, args.out, config.ledger, prices, Budget(config.max_usd), progress_bar)
    finally:
        writer.close()
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
            f"next: bixse mine --corpus {config.corpus} --queries {args.out / 'queries.jsonl'}, or grade these pairs: "
            f"bixse grade --pairs {args.out / 'pairs.parquet'} --judge ..."
        )
    artifacts = {"queries": str(args.out / "queries.jsonl"), "pairs": str(args.out / "pairs.parquet")}
    exit_code = 0 if result.complete and result.queries else 3
    return CommandResult("\n".join(lines), asdict(result), artifacts, [], [], exit_code)
