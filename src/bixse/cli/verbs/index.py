"""`bixse index`: make a search index of a collection, or say what one is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import model_validator

from bixse.cli.result import CommandResult
from bixse.cli.verb import Options, Verb
from bixse.retrieval.index.index_settings import IndexSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self

    from bixse.retrieval.index.manifest import Manifest


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
    chosen = settings.model_dump(exclude={"processes", "devices", "precision"})
    report = make_index(**chosen, out=options.out, devices=devices, progress=progress_bar)
    documents = report.manifest.documents
    done = "this index is there already: nothing was done" if report.reused else (
        f"indexed {documents:,} documents in {report.seconds:.1f} s; {report.encoded:,} texts were encoded"
    )  # fmt: skip
    next_step = f'search it: bixse search {options.out} "a query"'
    metrics = _metrics(report.manifest)
    metrics |= {"seconds": report.seconds, "encoded": report.encoded, "reused": report.reused}
    text = "\n".join([done, *_described(options.out, report.manifest), next_step])
    return CommandResult(text, metrics, {"index": str(options.out)}, [*warnings, *report.warnings])


def _describe(options: IndexOptions) -> CommandResult:
    """Say what an index is."""
    from bixse.retrieval.index.index_files import open_files

    assert options.describe is not None
    files = open_files(options.describe)
    try:
        if options.check:
            files.check()
    finally:
        files.close()
    checked = ["every file is as it was written"] if options.check else []
    text = "\n".join([*_described(options.describe, files.manifest), *checked])
    return CommandResult(text, _metrics(files.manifest), {"index": str(options.describe)})


def _described(folder: Path, manifest: Manifest) -> list[str]:
    size = sum(file.size for file in manifest.files)
    kind = "exact" if manifest.ann is None else f"{manifest.ann.factory} ({manifest.ann.parameters})"
    lines = [
        f"{folder}: {manifest.documents:,} documents, {kind}, {manifest.dtype}, {size / 1e6:,.1f} MB",
        f"model: {manifest.encoder.name}, {manifest.encoder.dimensions} dimensions",
    ]
    if manifest.recall is not None:
        recall = manifest.recall
        lines.append(
            f"recall against exact search: {recall.at_10:.3f} at 10, {recall.at_100:.3f} at 100 "
            f"({recall.queries} {recall.source})"
        )
    return lines


def _metrics(manifest: Manifest) -> dict[str, Any]:
    size = sum(file.size for file in manifest.files)
    return {**manifest.model_dump(include={"documents", "dtype", "encoder", "ann", "recall"}), "bytes": size}


VERB = Verb(IndexSettings, IndexOptions, run, {"describe": _describe})
