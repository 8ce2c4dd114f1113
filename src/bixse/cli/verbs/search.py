"""`bixse index`: a search index of a collection. `bixse search`: the best documents of one, with probabilities."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bixse.cli.checks import check_corpus_file, check_model
from bixse.cli.verb import CommandResult, Options, Output, Verb, waits
from bixse.errors import InputError, InvalidFileError, printable
from bixse.index.index_settings import IndexSettings
from bixse.progress import progress_bar
from bixse.search.retrieval_settings import STDIN, SearchSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from bixse.index.search import SearchIndex
    from bixse.search.hits import Hit


class IndexOptions(Options):
    """The database that the index is written to."""

    to: Annotated[str | None, Flag(metavar="STORE")] = None
    """Write the index to a vector database too: lancedb:PATH/TABLE or qdrant:URL/COLLECTION."""


def run_index(settings: IndexSettings, options: IndexOptions) -> CommandResult:
    """Make an index."""
    from bixse.index.make_index import export_index, make_index
    from bixse.index.vector_store import connect

    if options.to is not None:  # refuses an unusable database before anything is encoded
        if settings.engine == "ranks":
            raise InputError("--to: got it with engine ranks; expected one process; fix: give the same command again, "
                             "without --engine, when all ranks have ended")  # fmt: skip
        connect(options.to).close()
    report = make_index(settings, options.folder, progress_bar)
    metrics = {"documents": report.manifest.documents, "encoder": report.manifest.encoder.model_dump(),
               "seconds": report.seconds, "encoded": report.encoded, "reused": report.reused}  # fmt: skip
    if report.waiting:
        return waits(report.waiting, report.warnings, **metrics)
    documents, encoder = report.manifest.documents, report.manifest.encoder
    lines = [
        "this index is there already: nothing was done" if report.reused else
        f"indexed {documents:,} documents in {report.seconds:.1f} s; {report.encoded:,} texts were encoded",
        f"model: {encoder.name}, {encoder.dimensions} dimensions",
        f'search it: bixse search {options.folder} "a query"',
    ]  # fmt: skip
    artifacts = {"index": str(options.folder)}
    if options.to is not None:
        metrics["written"] = export_index(options.folder, options.to, progress_bar)
        artifacts["store"] = options.to
        lines.append(f"wrote {metrics['written']:,} of {documents:,} documents to {options.to}")
    return CommandResult("\n".join(lines), metrics, artifacts, list(report.warnings))


MADE = Output("Folder of the index. After a change of the corpus, only new texts are encoded.", "runs/index", "INDEX")
INDEX = Verb(IndexSettings, IndexOptions, run_index, out=MADE, first=("model", "collection", "processes"))


LIMITS = {"top", "threshold", "at_precision"}
"""Settings that limit the documents in an answer."""


def run_search(settings: SearchSettings, options: Options) -> CommandResult:
    """Answer one query or many."""
    from bixse.index.vector_store import is_stored
    from bixse.search.hits import check_queries
    from bixse.search.search_collection import search_collection

    if settings.query is not None:
        check_queries([settings.query])
    indexed = is_stored(settings.model)
    settings.check_for(indexed)
    if options.out is not None and (not indexed or settings.queries in (None, STDIN)):
        raise InputError("--out: got no index with --queries FILE; expected both; fix: add them, or leave --out out")
    if indexed:
        return _search_index(settings, options)
    assert settings.collection is not None
    check_corpus_file(settings.collection)
    check_model(settings.model)
    chosen = settings.model_dump(include={"model", "collection", "query", "task", "cache", *LIMITS})
    answer = search_collection(**chosen, progress=progress_bar)
    return CommandResult("\n".join(_hit_lines(answer.hits)), {"results": _plain_hits(answer.hits)}, {}, answer.warnings)


def _search_index(settings: SearchSettings, options: Options) -> CommandResult:
    from bixse.data.trec import write_run

    limits = settings.model_dump(include=LIMITS)
    many = settings.queries not in (None, STDIN)
    queries = read_queries(Path(settings.queries or "")) if many else {}
    from bixse.index.search import open_index  # after the queries are read: it imports torch

    with open_index(settings.model, settings.model_at, settings.task, settings.exact) as index:
        if settings.query is not None:
            hits = index.search(settings.query, **limits)
            return CommandResult("\n".join(_hit_lines(hits)), {"results": _plain_hits(hits)}, {}, index.warnings)
        if not many:
            return _answer_each(index, limits, "--json" in options.words)
        if options.out is None:
            hits_of = dict(zip(queries, index.search(list(queries.values()), **limits), strict=True))
            blocks = ([f"{name}: {queries[name]}", *_hit_lines(hits), ""] for name, hits in hits_of.items())
            answers = [
                {"query_id": name, "query": queries[name], "results": _plain_hits(hits)}
                for name, hits in hits_of.items()
            ]
            return CommandResult(
                "\n".join(line for block in blocks for line in block), {"answers": answers}, {}, index.warnings
            )
        run = index.search_run(queries, progress=progress_bar, **limits)
        write_run(options.out, run, tag="-".join(Path(index.manifest.encoder.name).name.split()) or "model")
        number = sum(map(len, run.values()))
        text = f"wrote {number:,} documents of {len(run):,} queries to {options.out}"
        metrics = {"queries": len(run), "documents": number}
        return CommandResult(text, metrics, {"run": str(options.out)}, index.warnings)


def _answer_each(index: SearchIndex, limits: dict[str, Any], as_json: bool) -> CommandResult:
    """Answer queries line by line, each at once, on the real standard output."""
    out = sys.__stdout__ or sys.stdout
    answered = 0
    try:
        for query in _typed(f"{len(index):,} documents; one query per line, Ctrl-D ends"):
            hits = index.search(query, **limits)
            heading = [] if sys.stdin.isatty() else [query]
            plain = "\n".join([*heading, *_hit_lines(hits), ""])
            line = json.dumps({"query": query, "results": _plain_hits(hits)}) if as_json else plain
            out.write(printable(line) + "\n")
            out.flush()
            answered += 1
    except BrokenPipeError:  # the reader, such as `head`, has ended; Python's flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    return CommandResult("", {"queries": answered}, {}, index.warnings)


def _typed(greeting: str) -> Iterator[str]:
    """Yield the non-empty lines of standard input, with a greeting and prompts at a terminal."""
    person = sys.stdin.isatty()
    if person:
        sys.stderr.write(greeting + "\n")
    with suppress(EOFError):
        while True:
            if line := input("query> " * person).strip():  # the command redirects sys.stdout to standard error
                yield line


def read_queries(path: Path) -> dict[str, str]:
    """Read queries, id -> text, in file order; raises InputError for none, InvalidFileError for invalid lines.

    The file has the columns _id and text (.jsonl, .csv, .tsv, .parquet), or one query per line with ids q1, q2, ...
    """
    from bixse.data.corpus import read_queries as queries_of_table
    from bixse.files.rows import kind_of, text_lines

    if kind_of(path) in (".jsonl", ".csv", ".tsv", ".parquet"):
        return queries_of_table(path)
    errors = InvalidFileError(path)
    queries: dict[str, str] = {}
    for number, line, _ in text_lines(path, errors):
        queries[f"q{number}"] = line
        if not line.strip():
            errors.add(number, "text", "an empty query", "a text", "fill it in or drop the line")
    errors.raise_any()
    if not queries:
        raise InputError(f"{path}: got no queries; expected at least one; fix: write one per line")
    return queries


def _plain_hits(hits: Iterable[Hit]) -> list[dict[str, Any]]:
    """Return hits as plain data, ranked from 1."""
    return [
        {"rank": rank, "document_id": hit.document_id, "cosine": round(hit.cosine, 4),
         "probability": None if hit.probability is None else round(hit.probability, 4),
         "title": hit.title, "text": hit.text}
        for rank, hit in enumerate(hits, start=1)
    ]  # fmt: skip


def _hit_lines(hits: Iterable[Hit]) -> list[str]:
    """Format hits for a terminal: rank, probability (or cosine), id, title, and the start of the text."""
    lines = []
    for rank, hit in enumerate(hits, start=1):
        figure = f"cos={hit.cosine:.2f}" if hit.probability is None else f"p={hit.probability:.2f}"
        heading = f"{hit.document_id}  {' '.join(hit.title.split())}".rstrip()
        text = " ".join(hit.text.split())
        lines.append(f"{rank:>3}. {figure}  {heading}\n     {text if len(text) <= 100 else text[:97] + '...'}")
    return lines or ["no document reaches the threshold"]


OUT = Output("File for the answers of an index to --queries, as a TREC run.", metavar="FILE")
FIRST = ("model", "query", "collection", "top", "threshold")
SEARCH = Verb(SearchSettings, Options, run_search, out=OUT, first=FIRST)
