"""`bixse index`: make a search index of a collection, or say what one is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from bixse.cli.result import CommandResult
from bixse.cli.verb import Options, Verb
from bixse.engines.engine_settings import EngineSettings
from bixse.retrieval.retrieval_settings import IndexSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self


class IndexOptions(Options):
    """Where the index is."""

    out: Annotated[Path, Flag(metavar="INDEX")] = Path("runs/index")
    """Folder of the index; of a changed corpus only the new texts are encoded."""
    describe: Annotated[Path | None, Flag(metavar="INDEX")] = None
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
    from bixse.retrieval.index.make_index import make_index

    devices, warnings = settings.chosen_devices()
    chosen = settings.model_dump(exclude={*EngineSettings.model_fields, "devices", "precision"})
    report = make_index(**chosen, out=options.out, devices=devices, progress=progress_bar, where=settings)
    if report.waiting:
        text = (
            f"this rank's parts are encoded; {report.waiting} of other ranks are not: the last one makes the index, or "
            "the same command again"
        )
        metrics = {"seconds": report.seconds, "encoded": report.encoded, "waiting": report.waiting}
        return CommandResult(text, metrics, {}, warnings)
    documents = report.manifest.documents
    done = "this index is there already: nothing was done" if report.reused else (
        f"indexed {documents:,} documents in {report.seconds:.1f} s; {report.encoded:,} texts were encoded"
    )  # fmt: skip
    next_step = f'search it: bixse search {options.out} "a query"'
    metrics = report.manifest.figures()
    metrics |= {"seconds": report.seconds, "encoded": report.encoded, "reused": report.reused}
    text = "\n".join([done, *report.manifest.lines(options.out), next_step])
    return CommandResult(text, metrics, {"index": str(options.out)}, [*warnings, *report.warnings])


def _describe(options: IndexOptions) -> CommandResult:
    from bixse.retrieval.index.index_files import open_files

    assert options.describe is not None
    files = open_files(options.describe)
    try:
        if options.check:
            files.check()
    finally:
        files.close()
    checked = ["every file is as it was written"] if options.check else []
    text = "\n".join([*files.manifest.lines(options.describe), *checked])
    return CommandResult(text, files.manifest.figures(), {"index": str(options.describe)})


VERB = Verb(IndexSettings, IndexOptions, run, {"describe": _describe})
