"""`bixse search`: the best documents of an index or a collection, with probabilities of relevance."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_cache_argument
from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult
from bixse.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.retrieval.hits import Hit
    from bixse.retrieval.index.search import SearchIndex

STDIN = "-"
"""What --queries takes for queries that are typed, or come through a pipe."""
WITH_COLLECTION = ("processes", "devices", "cache", "collection")
"""Flags of a search without an index."""
WITH_INDEX = ("queries", "out", "exact", "model_at")
"""Flags of a search in an index."""


class _Query(argparse.Action):
    """The query: needed where --queries names none; with nargs="?" it could not stand behind a flag."""

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
    parser.add_argument("--threshold", type=float, metavar="P",
                        help="show only documents at least this probable to be relevant, 0 to 1")  # fmt: skip
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
    several.add_argument("--exact", action="store_true", help="score every document, whatever the type of the index")
    several.add_argument("--model-at", metavar="MODEL", help="the model of the index, where it has moved")


def run(args: argparse.Namespace) -> CommandResult:
    """Answer one query or many."""
    from bixse.errors import InputError
    from bixse.retrieval.hits import check_queries, check_top
    from bixse.retrieval.index.manifest import is_index

    check_top(args.top)
    if args.query is not None and args.queries is not None:
        raise InputError(f"--queries: got {args.queries!r} beside a query; expected one of the two; fix: leave one out")
    if args.query is not None:
        check_queries([args.query])
    indexed = is_index(Path(args.model))
    wrong = [name for name in (WITH_COLLECTION if indexed else WITH_INDEX) if getattr(args, name) not in (None, False)]
    if wrong:
        found, fix = ("an index", "leave it out") if indexed else ("a model", "make an index with `bixse index`")
        raise InputError(
            f"--{wrong[0].replace('_', '-')}: got it for {found}; expected it "
            f"{'with a model and --collection' if indexed else 'with an index'} only; fix: {fix}"
        )
    if indexed:
        if args.out is not None and args.queries in (None, STDIN):
            raise InputError("--out: got it without a file of queries; expected --queries FILE; fix: leave --out out")
        return _search_index(args)
    if args.collection is None:
        raise InputError(
            f"{args.model}: got no index and no --collection; expected the folder of an index, or a model and a "
            "collection; fix: add --collection DIR, or make an index with "
            "`bixse index MODEL --collection DIR --out INDEX`"
        )
    return _search_collection(args)


def _search_index(args: argparse.Namespace) -> CommandResult:
    from bixse.retrieval.hits import read_queries
    from bixse.retrieval.index.search import open_index

    queries = read_queries(Path(args.queries)) if args.queries not in (None, STDIN) else {}
    limits = {"top": args.top, "threshold": args.threshold, "at_precision": args.at_precision}
    with open_index(args.model, args.model_at, args.task, args.exact) as index:
        if args.queries == STDIN:
            return _answer_each(index, limits, args.json)
        if args.query is not None:
            return _one_answer(index.search(args.query, **limits))
        if args.out is not None:
            return _write_run(index, queries, limits, args.out)
        return _many_answers(queries, index.search(list(queries.values()), **limits))


def _write_run(index: SearchIndex, queries: dict[str, str], limits: dict[str, Any], out: Path) -> CommandResult:
    from bixse.data.trec import write_run
    from bixse.errors import InputError
    from bixse.progress import progress_bar

    spaced = [name for name in queries if name.split() != [name]]
    if spaced:
        raise InputError(
            f"--queries: got query id {spaced[0]!r}; expected no white space (it separates the columns of a run); "
            "fix: rename it, or leave --out out"
        )
    run = index.search_run(queries, progress=progress_bar, **limits)
    write_run(out, run, tag="-".join(Path(index.manifest.encoder.name).name.split()) or "model")
    number = sum(map(len, run.values()))
    text = f"wrote {number:,} documents of {len(run):,} queries to {out}"
    return CommandResult(text, {"queries": len(run), "documents": number}, {"run": str(out)})


def _search_collection(args: argparse.Namespace) -> CommandResult:
    from bixse.progress import progress_bar
    from bixse.retrieval.search_collection import search_collection

    devices, warnings = chosen_devices(args)
    answer = search_collection(
        args.model,
        args.collection,
        args.query,
        top=args.top,
        threshold=args.threshold,
        at_precision=args.at_precision,
        task=args.task,
        progress=progress_bar,
        devices=devices,
        cache=args.cache,
    )
    return _one_answer(answer.hits, [*warnings, *answer.warnings])


def _one_answer(hits: Sequence[Hit], warnings: Sequence[str] = ()) -> CommandResult:
    rows = _rows(hits)
    return CommandResult("\n".join(_lines(rows)), {"results": rows}, warnings=list(warnings))


def _many_answers(queries: dict[str, str], answers: Sequence[Sequence[Hit]]) -> CommandResult:
    shown = []
    lines: list[str] = []
    for (query_id, query), hits in zip(queries.items(), answers, strict=True):
        rows = _rows(hits)
        shown.append({"query_id": query_id, "query": query, "results": rows})
        lines += [f"{query_id}: {query}", *_lines(rows), ""]
    return CommandResult("\n".join(lines), {"answers": shown})


def _answer_each(index: SearchIndex, limits: dict[str, Any], as_json: bool) -> CommandResult:
    """Read queries line by line and answer each at once, on the real standard output."""
    out = sys.__stdout__ or sys.stdout
    answered = 0
    try:
        for query in _typed(f"{len(index):,} documents; a query a line, Ctrl-D ends"):
            rows = _rows(index.search(query, **limits))
            heading = [] if sys.stdin.isatty() else [query]
            plain = "\n".join([*heading, *_lines(rows), ""])
            out.write(printable(json.dumps({"query": query, "results": rows}) if as_json else plain) + "\n")
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


def _rows(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "document_id": hit.document_id, "cosine": round(hit.cosine, 4),
         "probability": None if hit.probability is None else round(hit.probability, 4),
         "title": hit.title, "text": hit.text}
        for rank, hit in enumerate(hits, start=1)
    ]  # fmt: skip


def _lines(found: list[dict[str, Any]]) -> list[str]:
    """An answer as text: rank, probability (or cosine) and title; then the start of the text."""
    lines = []
    for hit in found:
        figure = f"p={hit['probability']:.2f}" if hit["probability"] is not None else f"cos={hit['cosine']:.2f}"
        text = " ".join(hit["text"].split())
        shown = text if len(text) <= 100 else text[:97] + "..."
        title = " ".join((hit["title"] or hit["document_id"]).split())
        lines.append(f"{hit['rank']:>3}. {figure}  {title}\n     {shown}")
    return lines or ["no document reaches the threshold"]
