"""`bixse generate`: queries for the documents of a corpus, written by a language model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.judge_arguments import add_price_arguments, prices_of
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="corpus.jsonl: {_id, title, text}")
    parser.add_argument(
        "--server",
        nargs="+",
        required=True,
        metavar="URL",
        help="address of an OpenAI-compatible server; several addresses: the same model behind each",
    )
    parser.add_argument("--documents", type=int, metavar="N", help="write for N documents drawn by the seed")
    parser.add_argument("--per-document", type=int, default=1, metavar="N", help="queries per document (default: 1)")
    parser.add_argument("--prompt", type=Path, metavar="FILE", help="TOML file with instructions and examples")
    parser.add_argument(
        "--document-characters",
        type=int,
        default=4000,
        metavar="N",
        help="show the model the first N characters of a document (default: 4000)",
    )
    parser.add_argument("--task", metavar="NAME", help="task to write beside every pair")
    parser.add_argument("--model", metavar="NAME", help="model to ask the server for (default: the one it serves)")
    parser.add_argument("--revision", metavar="NAME", help="revision of the model")
    parser.add_argument("--temperature", type=float, default=0.7, metavar="X", help="0 to 2 (default: 0.7)")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="most tokens of a query (default: 64)")
    parser.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="most requests in flight an address (default: 64)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for one request (default: 120)"
    )
    parser.add_argument(
        "--api-key-variable",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key (default: OPENAI_API_KEY)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice of documents (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/generate"),
        metavar="DIR",
        help="write queries.jsonl, pairs.parquet, ledger.sqlite and run.json here (default: runs/generate)",
    )
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="file of texts to share between runs")
    add_price_arguments(parser)


def run(args: argparse.Namespace) -> CommandResult:
    """Write, clean, keep each once, print counts."""
    from bixse.grading.ask import Budget
    from bixse.grading.server.text_model import ServerTextModel
    from bixse.mining.generation.generate import GenerateConfig, generate
    from bixse.mining.generation.query_prompt import load_query_prompt
    from bixse.progress import progress_bar

    config = GenerateConfig(
        args.corpus, args.documents, args.per_document, args.document_characters, args.task, args.seed
    )
    prompt = load_query_prompt(args.prompt)
    writer = ServerTextModel(
        args.server,
        args.model,
        args.temperature,
        args.max_tokens,
        args.revision,
        api_key_variable=args.api_key_variable,
        concurrency=args.concurrency,
        timeout=args.timeout,
    )
    try:
        prices = prices_of(args, writer.name)
        result = generate(config, writer, prompt, args.out, args.ledger, prices, Budget(args.max_usd), progress_bar)
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
            f"next: bixse mine --corpus {args.corpus} --queries {args.out / 'queries.jsonl'}, or grade these pairs: "
            f"bixse grade --pairs {args.out / 'pairs.parquet'} --judge ..."
        )
    artifacts = {"queries": str(args.out / "queries.jsonl"), "pairs": str(args.out / "pairs.parquet")}
    exit_code = 0 if result.complete and result.queries else 3
    return CommandResult("\n".join(lines), asdict(result), artifacts, [], [], exit_code)
