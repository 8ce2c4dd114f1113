"""Ranges of rows of documents or pairs, and jobs that ask a judge or a writer about each range through one ledger."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from bixse.data.pairs_files import pairs_to_parquet
from bixse.errors import IncompleteError, InputError, ModelError
from bixse.files.files import file_hash, read_text, write_atomically
from bixse.files.parquet import footer_hash, row_counts
from bixse.files.rows import files_of, kind_of
from bixse.judging.ask import Budget
from bixse.judging.judge import stored_identity
from bixse.judging.ledgers.segments import FOLDER_FILE, check_folder, folder_id, make_folder
from bixse.judging.ledgers.writers import seal_left
from bixse.scale.engine import Job, is_marked, mark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bixse.data.run import Run
    from bixse.judging.grade_settings import Prices, PriceSettings
    from bixse.judging.judge import Judge, TextModel
    from bixse.progress import Step
    from bixse.scale.engine import Engine

ROWS = 50_000
"""Rows per shard if no number of shards is given: some hundred megabytes with the questions about them."""
SHARDS_FOLDER = "shards"
"""Folder in the output folder with the summary and the completion marker of each shard."""

Own = TypeVar("Own", bound="AskShards")
Opened = TypeVar("Opened", bound="Judge | TextModel")


@dataclass(frozen=True)
class RowShards:
    """Ranges of rows of nearly equal size."""

    path: Path
    """A Parquet file, a folder of Parquet files, or a file of another format."""
    content: str
    """The hash that `content_of` gives for the path."""
    total: int
    """Number of rows."""
    number: int
    """Number of shards, at most one per row."""

    def rows(self, shard: int) -> range:
        return range(self.total * shard // self.number, self.total * (shard + 1) // self.number)


def number_of_shards(wanted: int | None, total: int) -> int:
    """Return the wanted number of shards, or as many as `ROWS` rows per shard give; at most one per row."""
    return min(wanted or -(-total // ROWS), total)


def cut_pairs(path: Path, number: int | None, copy: Path) -> RowShards:
    """Cut pairs into shards; only the footers of Parquet files are read."""
    if not _is_parquet(path):  # only Parquet can be read from any row on; the copy is made once per content
        if not is_marked(copy, content := file_hash(path)):
            pairs_to_parquet(path, copy)
            mark(copy, content)
        path = copy
    total = sum(row_counts(_files(path)))
    if not total:
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")
    return RowShards(path.absolute(), content_of(path), total, number_of_shards(number, total))


def content_of(path: Path) -> str:
    """Return a hash of the footers of Parquet files, or of all bytes of another file."""
    files = _files(path)
    if not _is_parquet(path):
        return file_hash(path)
    # A footer has the position, least and greatest value of each column, and is read at once from files of any size.
    known = [[file.name, file.stat().st_size, footer_hash(file)] for file in files]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    return files_of(path, (".parquet",), "a file or folder of pairs")


def _is_parquet(path: Path) -> bool:
    return path.is_dir() or kind_of(path) == ".parquet"


@dataclass(frozen=True, kw_only=True)
class AskShards(Job[int, dict[str, Any]]):
    """The base of jobs that ask about rows. Each shard returns its summary and writes it to a file."""

    folder: Path
    source: RowShards
    """The documents or pairs."""
    config: PriceSettings
    """Settings that open the judge or writer, with the engine."""
    identity: dict[str, Any]
    """Identity of the judge or writer on the machine that started the job."""
    ledger: Path
    prices: Prices
    ledger_id: str = ""
    """Id of the ledger; a machine that has another ledger at this path is refused."""

    def opened_here(self, opening: Callable[[], Opened]) -> Opened:
        """Open the judge or writer of this process; raise if source, ledger or model differ on this machine."""
        if content_of(self.source.path) != self.source.content:
            raise InputError(
                f"{self.source.path}: got other pairs or documents than on the machine that started this; expected the "
                "same; fix: name a file or folder that all machines share"
            )
        if not (self.ledger / FOLDER_FILE).exists() or folder_id(self.ledger) != self.ledger_id:
            raise InputError(
                f"{self.ledger}: got no such ledger on this machine; expected the one that this run was started with; "
                "fix: a --ledger folder that is mounted on all machines under the same path"
            )
        opened = opening()
        if stored_identity(opened.identity) == self.identity:
            return opened
        opened.close()
        raise ModelError(
            f"{opened.name!r}: got another one than where this run was started; expected the same model, "
            "revision and server on every machine; fix: a folder that all share, or the same revision"
        )

    def output(self, shard: int) -> Path:
        return self.folder / SHARDS_FOLDER / f"{shard:05d}.json"

    def leave(self, shard: int, summary: dict[str, Any]) -> dict[str, Any]:
        write_atomically(self.output(shard), json.dumps({"of": self.fingerprint(), "summary": summary}) + "\n")
        return summary

    def summary(self, shard: int) -> dict[str, Any] | None:
        """Return the summary of a shard from this run or an earlier run of the same job, or None."""
        try:
            found = json.loads(read_text(self.output(shard)))
            return dict(found["summary"]) if found["of"] == self.fingerprint() else None
        except (InputError, ValueError, KeyError, TypeError):
            return None

    def budget(self, shard: int, questions: int | None = None) -> Budget:
        """Return the shard's share, by rows, of the dollars of the run, with a limit of questions."""
        usd, rows = self.config.max_usd, self.source.rows(shard)
        return Budget(None if usd is None else usd * len(rows) / self.source.total, questions)


def with_ledger(job: Own, record: Run) -> Own:
    """Save the record of a job as running, make its ledger, and seal what killed processes left in it."""
    check_folder(job.ledger)
    record.save("running")  # before any other file, since other ranks look for the record
    job = replace(job, ledger_id=make_folder(job.ledger))
    seal_left(job.ledger)
    return job


def asked_shards(
    job: AskShards,
    place: Engine,
    kept: Callable[[Step | None], Any],  # makes the worker state of this process from a progress callback
    a_row: int,  # questions per row
    title: str,
    progress: Callable[[str, int], Step] | None,
) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """Run this engine's share of the shards; return their summaries, and the summaries that were there before."""
    shards = range(job.source.number)
    sizes = {shard: len(job.source.rows(shard)) * a_row for shard in place.share(shards)}
    step = progress(title, sum(sizes.values())) if progress is not None and sizes else None
    new, failed = {}, []
    for ended in place.map(job, shards, kept(step)):
        if ended.result is not None:
            new[ended.shard] = ended.result
        failed += [f"shard {ended.shard}: {ended.error}"] if ended.error else []
        if step is not None and (ended.known or not place.here):
            step(sizes[ended.shard])
    if failed:
        raise IncompleteError(
            f"{job.folder}: got {len(failed)} of {len(shards)} shards that failed twice "
            f"({'; '.join(failed[:3])}); expected all; fix: what is said there, then the same command again"
        )
    known = {shard: summary for shard in shards if shard not in new and (summary := job.summary(shard)) is not None}
    return new, known
