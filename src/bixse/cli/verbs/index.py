"""`bixse index`: make a search index of a collection."""

from __future__ import annotations

from typing import Annotated

from bixse.cli.verb import CommandResult, Options, Output, Verb, waits
from bixse.errors import InputError
from bixse.index.index_settings import IndexSettings
from bixse.settings import Flag


class IndexOptions(Options):
    """The database that the index is written to."""

    to: Annotated[str | None, Flag(metavar="STORE")] = None
    """Write the index to a vector database too: lancedb:PATH/TABLE or qdrant:URL/COLLECTION."""


def run(settings: IndexSettings, options: IndexOptions) -> CommandResult:
    """Make an index."""
    from bixse.index.make_index import export_index, make_index
    from bixse.index.vector_store import connect
    from bixse.progress import progress_bar

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


OUT = Output("Folder of the index. After a change of the corpus, only new texts are encoded.", "runs/index", "INDEX")
VERB = Verb(IndexSettings, IndexOptions, run, out=OUT, first=("model", "collection", "processes"))
