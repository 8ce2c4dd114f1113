"""`bixse index`: make a search index of a collection, or describe one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from bixse.cli.verb import CommandResult, Options, Verb, waits
from bixse.scale.index.index_settings import IndexSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self


class IndexOptions(Options):
    """The folder of the index, and the actions on an index."""

    out: Annotated[Path, Flag(metavar="INDEX")] = Path("runs/index")
    """Folder of the index; of a changed corpus only the new texts are encoded."""
    to: Annotated[str | None, Flag(metavar="STORE")] = None
    """Write the index into a vector database too: lancedb:PATH/TABLE or qdrant:URL/COLLECTION."""
    describe: Annotated[str | None, Flag(metavar="INDEX")] = None
    """Say what an index is, and make none."""
    check: bool = False
    """With --describe: verify the checksum of every file."""

    @model_validator(mode="after")
    def _check_of_an_index(self) -> Self:
        if self.check and self.describe is None:
            raise ValueError("--check: got no index to check; expected --describe INDEX; fix: add it")
        return self


def run(settings: IndexSettings, options: IndexOptions) -> CommandResult:
    """Make an index."""
    from bixse.progress import progress_bar
    from bixse.scale.index.make_index import make_index
    from bixse.search.search_collection import read_queries

    if options.to is not None:
        _check_reachable(options.to)
        if settings.recall_queries is not None:
            read_queries(settings.recall_queries)  # refuse wrong queries before anything is encoded
    report = make_index(settings, options.out, progress_bar)
    if report.waiting:
        return waits(report.waiting, report.warnings, seconds=report.seconds, encoded=report.encoded)
    documents = report.manifest.documents
    done = "this index is there already: nothing was done" if report.reused else (
        f"indexed {documents:,} documents in {report.seconds:.1f} s; {report.encoded:,} texts were encoded"
    )  # fmt: skip
    next_step = f'search it: bixse search {options.out} "a query"'
    metrics = report.manifest.figures()
    metrics |= {"seconds": report.seconds, "encoded": report.encoded, "reused": report.reused}
    text = "\n".join([done, *report.manifest.lines(options.out), next_step])
    result = CommandResult(text, metrics, {"index": str(options.out)}, list(report.warnings))
    if options.to is None or report.elsewhere:
        return result
    return _exported(result, settings, options.out, options.to)


def _check_reachable(to: str) -> None:
    """Refuse an unusable database before anything is encoded."""
    from bixse.scale.index.vector_store import connect

    with closing(connect(to)) as store:
        if store.exists():
            store.manifest  # noqa: B018  # raises if bixse did not write the database


def _exported(result: CommandResult, settings: IndexSettings, index: Path, to: str) -> CommandResult:
    from bixse.progress import progress_bar
    from bixse.scale.index.export_index import export_index

    chosen = settings.model_dump(include={"model", "recall_target", "recall_queries"})
    report = export_index(index, to, **chosen, progress=progress_bar)
    done = f"wrote {report.written:,} of {report.manifest.documents:,} documents to {to} in {report.seconds:.1f} s"
    found = report.manifest.model_dump(include={"ann", "recall"})
    metrics = {**result.metrics, "store": {**found, "written": report.written, "seconds": report.seconds}}
    text = "\n".join([result.text, done, *report.manifest.recall_lines(), f'search there: bixse search {to} "a query"'])
    return replace(result, text=text, metrics=metrics, artifacts={**result.artifacts, "store": to},
                   warnings=[*result.warnings, *report.warnings])  # fmt: skip


def _describe(options: IndexOptions) -> CommandResult:
    from bixse.scale.index.vector_store import open_stored

    assert options.describe is not None
    with closing(open_stored(options.describe)) as files:
        manifest = files.manifest
        if options.check:
            files.check()
    checked = [] if not options.check else [
        "every file is as it was written" if manifest.files else "every document is there"
    ]  # fmt: skip
    text = "\n".join([*manifest.lines(options.describe), *checked])
    return CommandResult(text, manifest.figures(), {"index": options.describe})


VERB = Verb(IndexSettings, IndexOptions, run, {"describe": _describe})
