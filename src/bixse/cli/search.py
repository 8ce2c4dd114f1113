"""`bixse search`: the best documents of a collection, with probabilities of relevance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "model", metavar="MODEL", help="model folder, Hugging Face name, or demo (the small model of bixse[demo])"
    )
    parser.add_argument("query", metavar="QUERY", help="what to look for, in quotes")
    parser.add_argument("--collection", type=Path, required=True, metavar="DIR", help="folder with corpus.jsonl")
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before the query")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="documents shown (default: 10)")
    parser.add_argument(
        "--threshold", type=float, metavar="P", help="show only documents at least this probable to be relevant, 0 to 1"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Encode the corpus once, then answer."""
    from bixse.cli.progress import progress_bar
    from bixse.data.collection import Collection
    from bixse.data.collection_files import load_corpus
    from bixse.data.files import is_unicode
    from bixse.encoders.build import build_encoder
    from bixse.encoders.instructions import use_task
    from bixse.errors import InputError
    from bixse.evaluation.local import encode_stored

    if not args.query.strip() or not is_unicode(args.query):
        fault = "an empty query" if not args.query.strip() else "a query that is not UTF-8"
        raise InputError(f"search: got {fault}; expected a text; to mend: write it in quotes, in a UTF-8 terminal")
    if args.top < 1:
        raise InputError(f"--top: got {args.top}; expected at least 1; to mend: leave it out for 10")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise InputError(f"--threshold: got {args.threshold}; expected 0 to 1; to mend: 0.5 is a start")
    corpus = load_corpus(args.collection)
    model = build_encoder(args.model)
    use_task(model, args.task)
    head = getattr(model, "head", None)
    if args.threshold is not None and head is None:
        raise InputError(
            f"--threshold: got model {args.model!r} without a relevance head; expected one that gives probabilities; "
            "to mend: run `bixse calibrate` on it, or leave --threshold out"
        )
    asked = Collection(args.collection.name, corpus, {"query": args.query})
    encoded = encode_stored(model, asked, args.collection, ["query"], progress_bar)
    found: list[dict[str, Any]] = []
    for rank, (identifier, cosine) in enumerate(encoded.search(["query"], args.top)["query"].items(), start=1):
        probability = head.probability(float(cosine)) if head is not None else None
        if args.threshold is None or (probability is not None and probability >= args.threshold):
            document = corpus[identifier]
            found.append({"rank": rank, "document_id": identifier, "cosine": round(cosine, 4),
                          "probability": None if probability is None else round(probability, 4),
                          "title": document.title, "text": document.text})  # fmt: skip
    lines = [_line(hit) for hit in found] or ["no document reaches the threshold"]
    return CommandResult("\n".join(lines), {"results": found})


def _line(hit: dict[str, Any]) -> str:
    """One answer in two lines: rank, probability (or cosine), title; then the start of the text."""
    figure = f"p={hit['probability']:.2f}" if hit["probability"] is not None else f"cos={hit['cosine']:.2f}"
    text = " ".join(hit["text"].split())
    shown = text if len(text) <= 100 else text[:97] + "..."
    title = "".join(c for c in (hit["title"] or hit["document_id"]) if c.isprintable())
    return f"{hit['rank']:>3}. {figure}  {title}\n     {''.join(c for c in shown if c.isprintable())}"
