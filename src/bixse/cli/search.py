"""`bixse search`: the best documents of an index or a collection, with probabilities of relevance."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_cache_argument
from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult
from bixse.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.encoders.head import RelevanceHead
    from bixse.retrieval.index import Hit, SearchIndex

STDIN = "-"
"""What --queries takes for queries that are typed, or come through a pipe."""
QUERIES_AT_ONCE = 256
"""Queries of a file that are answered together."""


class _Query(argparse.Action):
    """The query: needed where --queries names none."""

    queries: argparse.Action
    _needed = True

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)

    @property
    def required(self) -> bool:
        return self._needed and self.queries.default is None

    @required.setter
    def required(self, needed: bool) -> None:
        self._needed = needed


class _Queries(argparse.Action):
    """--queries: once it is given, no query is needed."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        self.default = values
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("model", metavar="INDEX|MODEL",
                        help="folder that `bixse index` made; or, with --collection, a model folder, Hugging Face "
                        "name, or demo (the small model of bixse[demo])")  # fmt: skip
    query = parser.add_argument("query", metavar="QUERY", action=_Query, help="what to look for, in quotes")
    parser.add_argument("--collection", type=Path, metavar="DIR",
                        help="folder with corpus.jsonl, searched with MODEL without an index")  # fmt: skip
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before the query")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="documents shown (default: 10)")
    parser.add_argument(
        "--threshold", type=float, metavar="P", help="show only documents at least this probable to be relevant, 0 to 1"
    )
    parser.add_argument("--at-precision", type=float, metavar="P",
                        help="show only documents from the probability on at which this share was relevant, a "
                        "threshold that `bixse calibrate --at-precision P` found")  # fmt: skip
    with_collection = parser.add_argument_group("with a collection")
    add_process_arguments(with_collection)
    add_cache_argument(with_collection)
    several = parser.add_argument_group("with an index")
    query.queries = several.add_argument(  # type: ignore[attr-defined]
        "--queries", action=_Queries, metavar="FILE",
        help="answer every query of a file (.jsonl of {_id, text}, or one a line), or of the terminal with -",
    )  # fmt: skip
    several.add_argument("--out", type=Path, metavar="FILE", help="write the answers to --queries as a TREC run")
    several.add_argument("--exact", action="store_true", help="score every document, whatever the kind of the index")
    several.add_argument("--model-at", metavar="MODEL", help="the model of the index, where it has moved")


def run(args: argparse.Namespace) -> CommandResult:
    """Answer one query or many."""
    from bixse.errors import InputError
    from bixse.retrieval.index_files import is_index

    if args.top < 1:
        raise InputError(f"--top: got {args.top}; expected at least 1; fix: leave it out for 10")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise InputError(f"--threshold: got {args.threshold}; expected 0 to 1; fix: 0.5 is a start")
    if args.threshold is not None and args.at_precision is not None:
        raise InputError(
            f"--at-precision: got {args.at_precision} beside --threshold; expected one of the two; fix: leave one out"
        )
    if args.query is not None:
        _check_query(args.query)
    if not is_index(Path(args.model)):
        return _search_collection(args)
    if args.collection is not None:
        raise InputError(
            f"--collection: got {args.collection} beside an index; expected one of the two; fix: leave it out"
        )
    if args.processes is not None or args.devices or args.cache is not None:
        raise InputError(
            "--processes, --devices, --cache: got one for an index, whose documents are encoded; expected it with "
            "--collection; fix: leave it out (`bixse index` takes --processes and --devices)"
        )
    if args.queries is not None and args.query is not None:
        raise InputError(f"--queries: got {args.queries!r} beside a query; expected one of the two; fix: leave one out")
    if args.out is not None and args.queries in (None, STDIN):
        raise InputError("--out: got it without a file of queries; expected --queries FILE; fix: leave --out out")
    return _search_index(args)


def _search_index(args: argparse.Namespace) -> CommandResult:
    from bixse.retrieval.index import open_index
    from bixse.retrieval.index_documents import read_queries

    queries = read_queries(Path(args.queries)) if args.queries not in (None, STDIN) else {}
    with open_index(args.model, args.model_at, args.task, args.exact) as index:
        args.threshold = _threshold(args, index.encoder.head, index.encoder.identity.name)
        if args.queries == STDIN:
            return _answer_each(index, args)
        if args.query is not None:
            return _one_answer(_rows(index.search(args.query, args.top, args.threshold)))
        if args.out is not None:
            return _write_run(index, queries, args)
        return _many_answers(queries, index.search(list(queries.values()), args.top, args.threshold))


def _search_collection(args: argparse.Namespace) -> CommandResult:
    """Encode the corpus once, then answer."""
    from bixse.data.collection import Collection
    from bixse.data.collection_files import load_corpus
    from bixse.data.collection_warnings import warn_of_empty
    from bixse.encoders.instructions import use_task
    from bixse.encoders.loading.build import build_encoder
    from bixse.encoders.pool import encode_on
    from bixse.errors import InputError
    from bixse.progress import progress_bar
    from bixse.retrieval.dense_search import encode_collection

    if args.collection is None:
        raise InputError(
            f"{args.model}: got no index and no --collection; expected the folder of an index, or a model and a "
            "collection; fix: add --collection DIR, or make an index with "
            "`bixse index MODEL --collection DIR --out INDEX`"
        )
    wrong = {"--queries": args.queries, "--out": args.out, "--exact": args.exact or None, "--model-at": args.model_at}
    for flag, value in wrong.items():
        if value is not None:
            raise InputError(
                f"{flag}: got it with --collection; expected it with an index only; fix: make one with `bixse "
                f"index {args.model} --collection {args.collection} --out INDEX`"
            )
    devices, warnings = chosen_devices(args)
    corpus = load_corpus(args.collection)
    model = build_encoder(args.model)
    use_task(model, args.task)
    head = getattr(model, "head", None)
    args.threshold = _threshold(args, head, args.model)
    asked = Collection(args.collection.name, corpus, {"query": args.query})
    with encode_on(model, devices):
        encoded = encode_collection(model, asked, ["query"], progress_bar, args.cache)
    found = []
    for rank, (identifier, cosine) in enumerate(encoded.search(["query"], args.top)["query"].items(), start=1):
        probability = head.probability(float(cosine)) if head is not None else None
        if args.threshold is None or (probability is not None and probability >= args.threshold):
            found.append(_row(rank, identifier, cosine, probability, *corpus[identifier]))
    return replace(
        _one_answer(found),
        warnings=[*warnings, *warn_of_empty([name for name in corpus if not corpus[name].content], len(corpus))],
    )


def _check_query(query: str) -> None:
    from bixse.data.io.files import is_unicode
    from bixse.errors import InputError

    if not query.strip() or not is_unicode(query):
        fault = "an empty query" if not query.strip() else "a query that is not UTF-8"
        raise InputError(f"search: got {fault}; expected a text; fix: write it in quotes, in a UTF-8 terminal")


def _threshold(args: argparse.Namespace, head: RelevanceHead | None, name: str) -> float | None:
    """The probability below which documents are left out; None for no such."""
    from bixse.errors import InputError

    flag = "--threshold" if args.at_precision is None else "--at-precision"
    if (args.threshold is not None or args.at_precision is not None) and head is None:
        raise InputError(
            f"{flag}: got model {name!r} without a relevance head; expected one that gives probabilities; "
            f"fix: run `bixse calibrate` on it, or leave {flag} out"
        )
    if args.at_precision is not None and head is not None:
        return head.threshold_for(args.at_precision)
    threshold: float | None = args.threshold
    return threshold


def _one_answer(found: list[dict[str, Any]]) -> CommandResult:
    return CommandResult("\n".join(_lines(found)), {"results": found})


def _write_run(index: SearchIndex, queries: dict[str, str], args: argparse.Namespace) -> CommandResult:
    """All answers as a TREC run; of few queries at a time the texts are in memory."""
    from bixse.data.trec import write_run
    from bixse.errors import InputError
    from bixse.progress import progress_bar

    spaced = [name for name in queries if name.split() != [name]]
    if spaced:
        raise InputError(
            f"{args.queries}: got query id {spaced[0]!r}; expected no white space (it separates the columns of a run); "
            "fix: rename it, or leave --out out"
        )
    advance = progress_bar("search", len(queries))
    run: dict[str, dict[str, float]] = {}
    names = list(queries)
    for start in range(0, len(names), QUERIES_AT_ONCE):
        some = names[start : start + QUERIES_AT_ONCE]
        answers = index.search([queries[name] for name in some], args.top, args.threshold)
        for name, hits in zip(some, answers, strict=True):
            run[name] = {hit.document_id: hit.cosine for hit in hits}
        advance(len(some))
    write_run(args.out, run, tag="-".join(Path(index.encoder.identity.name).name.split()) or "model")
    number = sum(map(len, run.values()))
    text = f"wrote {number:,} documents of {len(run):,} queries to {args.out}"
    return CommandResult(text, {"queries": len(run), "documents": number}, {"run": str(args.out)})


def _many_answers(queries: dict[str, str], answers: list[list[Hit]]) -> CommandResult:
    shown = []
    lines: list[str] = []
    for (query_id, query), hits in zip(queries.items(), answers, strict=True):
        rows = _rows(hits)
        shown.append({"query_id": query_id, "query": query, "results": rows})
        lines += [f"{query_id}: {query}", *_lines(rows), ""]
    return CommandResult("\n".join(lines), {"answers": shown})


def _answer_each(index: SearchIndex, args: argparse.Namespace) -> CommandResult:
    """Read queries line by line and answer each at once, on the real standard output."""
    out = sys.__stdout__ or sys.stdout
    answered = 0
    try:
        for query in _typed(f"{len(index):,} documents; a query a line, Ctrl-D ends"):
            rows = _rows(index.search(query, args.top, args.threshold))
            heading = [] if sys.stdin.isatty() else [query]
            said = (
                json.dumps({"query": query, "results": rows}) if args.json else "\n".join([*heading, *_lines(rows), ""])
            )
            out.write(printable(said) + "\n")
            out.flush()
            answered += 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    return CommandResult("", {"queries": answered})


def _typed(greeting: str) -> Iterator[str]:
    """The lines of standard input that hold a text; a person at a terminal is greeted and asked."""
    person = sys.stdin.isatty()
    if person:
        sys.stderr.write(greeting + "\n")
    while True:
        if person:
            sys.stderr.write("query> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _rows(hits: list[Hit]) -> list[dict[str, Any]]:
    return [
        _row(rank, hit.document_id, hit.cosine, hit.probability, hit.title, hit.text)
        for rank, hit in enumerate(hits, start=1)
    ]


def _row(
    rank: int, document_id: str, cosine: float, probability: float | None, title: str, text: str
) -> dict[str, Any]:
    return {"rank": rank, "document_id": document_id, "cosine": round(cosine, 4),
            "probability": None if probability is None else round(probability, 4),
            "title": title, "text": text}  # fmt: skip


def _lines(found: list[dict[str, Any]]) -> list[str]:
    """An answer as text."""
    return [_line(hit) for hit in found] or ["no document reaches the threshold"]


def _line(hit: dict[str, Any]) -> str:
    """One document in two lines: rank, probability (or cosine), title; then the start of the text."""
    figure = f"p={hit['probability']:.2f}" if hit["probability"] is not None else f"cos={hit['cosine']:.2f}"
    text = " ".join(hit["text"].split())
    shown = text if len(text) <= 100 else text[:97] + "..."
    title = " ".join((hit["title"] or hit["document_id"]).split())
    return f"{hit['rank']:>3}. {figure}  {title}\n     {shown}"
