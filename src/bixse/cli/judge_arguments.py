"""Arguments that say which judge is asked, shared by the verbs that ask one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.errors import InputError

if TYPE_CHECKING:
    import argparse

    from bixse.grading.cost import Prices
    from bixse.grading.open_judge import JudgeOptions

MODES = ("auto", "token-ids", "top-logprobs", "constrained", "sample", "verbal")


def add_judge_arguments(parser: argparse.ArgumentParser, rubric: bool = True) -> None:
    """`--judge` and its settings."""
    parser.add_argument(
        "--judge",
        nargs="+",
        required=True,
        metavar="JUDGE",
        help="address of an OpenAI-compatible server (several addresses: the same model behind each), a local model's "
        "name or folder, cross-encoder:NAME, or replay:FORMAT:FILE",
    )
    if rubric:
        parser.add_argument(
            "--rubric",
            default="trec-dl-0-3",
            metavar="NAME",
            help="trec-dl-0-3 (default), binary-0-1, relatedness-1-5, umbrela-0-3 or a TOML file",
        )
    group = parser.add_argument_group("judge")
    group.add_argument("--model", metavar="NAME", help="model to ask the server for (default: the one it serves)")
    group.add_argument("--revision", metavar="NAME", help="revision of the model")
    group.add_argument(
        "--mode",
        default="auto",
        choices=MODES,
        help="how the grade is read: auto takes the options' probabilities and refuses a server without "
        "them; sample and verbal need none (default: auto)",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="stop where the judge does not look trustworthy (known questions failed, answers of another model)",
    )
    group.add_argument("--samples", type=int, default=10, metavar="N", help="answers drawn with --mode sample")
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (default: as probed)")
    group.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="most requests in flight an address (default: 64)"
    )
    group.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one request (default: 120)")
    group.add_argument(
        "--api-key-variable",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key (default: OPENAI_API_KEY)",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="number type of a local model's weights (default: as --precision says)",
    )
    group.add_argument("--device", metavar="NAME", help="device of a local model (default: the best there is)")
    group.add_argument("--tokens-per-batch", type=int, metavar="N", help="positions in one pass of a local model")
    group.add_argument(
        "--score-map",
        metavar="MAP",
        help="how scores become relevance: sigmoid or a file for cross-encoders; prob, percent, logit "
        "or platt:SLOPE,INTERCEPT for replayed scores",
    )
    group.add_argument("--scale", nargs=2, type=float, metavar=("LOW", "HIGH"), help="scale of replayed grades")
    group.add_argument("--texts", type=Path, metavar="DIR", help="collection with the texts of replayed judgements")
    add_price_arguments(parser)


def add_price_arguments(parser: argparse.ArgumentParser) -> None:
    """Prices, and the most to spend."""
    price = parser.add_argument_group("price")
    price.add_argument("--price-in", type=float, metavar="X", help="US dollars for a million tokens read")
    price.add_argument("--price-out", type=float, metavar="X", help="US dollars for a million tokens written")
    price.add_argument(
        "--price-cached", type=float, metavar="X", help="US dollars for a million tokens read from cache"
    )
    price.add_argument("--max-usd", type=float, metavar="X", help="stop before more than X US dollars are spent")
    price.add_argument(
        "--prices", type=Path, metavar="FILE", help="price file of litellm's shape; the model is looked up by its name"
    )


def judge_options(args: argparse.Namespace) -> JudgeOptions:
    """The judge's settings of a command line.

    Raises:
        InputError: a number outside its range.
    """
    from bixse.grading.open_judge import JudgeOptions
    from bixse.relevance import GradeScale

    for name in ("samples", "concurrency", "max_tokens", "tokens_per_batch", "timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: got {value}; expected more than 0; fix: leave it out for the default")
    return JudgeOptions(
        model=args.model,
        revision=args.revision,
        mode=args.mode,
        samples=args.samples,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        timeout=args.timeout,
        api_key_variable=args.api_key_variable,
        dtype=args.dtype,
        device=args.device,
        tokens_per_batch=args.tokens_per_batch,
        score_map=args.score_map,
        scale=None if args.scale is None else GradeScale(*args.scale),
        collection=args.texts,
    )


def prices_of(args: argparse.Namespace, model: str) -> Prices:
    """The prices of a command line; 0 where none are given.

    Raises:
        InputError: one of the two prices alone, both kinds at once, or a file without the model.
    """
    from bixse.grading.cost import Prices, load_prices

    given = [args.price_in, args.price_out]
    if args.prices is not None and any(price is not None for price in given):
        raise InputError("--prices: got --price-in or --price-out too; expected one of the two; fix: drop one")
    if args.prices is not None:
        return load_prices(args.prices, args.model or model)
    if all(price is None for price in given):
        if args.price_cached is not None or args.max_usd is not None:
            flag = "--price-cached" if args.price_cached is not None else "--max-usd"
            raise InputError(f"{flag}: got no prices; expected them; fix: add --price-in and --price-out")
        return Prices()
    if any(price is None for price in given):
        raise InputError("prices: got one of --price-in and --price-out; expected both; fix: add the other (or 0)")
    return Prices.per_million(args.price_in, args.price_out, args.price_cached)
