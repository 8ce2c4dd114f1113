"""Shards of which each asks a judge or a writer of queries through one ledger, and leaves what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from bixse.errors import IncompleteError, InputError, ModelError
from bixse.files.files import read_text, write_atomically
from bixse.judging.ask import Budget
from bixse.judging.judge import stored_identity
from bixse.judging.ledgers.segment_answers import check_no_file, has_id, is_one_file, make_folder, seal_left
from bixse.scale.engines.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bixse.data.run import Run
    from bixse.judging.judge import Judge, TextModel
    from bixse.judging.prices import Prices, PriceSettings
    from bixse.judging.shards.row_shards import RowShards
    from bixse.progress import Step
    from bixse.scale.engines.job import Engine

SHARDS_FOLDER = "shards"
"""In the output folder: what came of each shard, and marks of those that are complete."""


Own = TypeVar("Own", bound="AskShards")
Opened = TypeVar("Opened", bound="Judge | TextModel")


@dataclass(frozen=True)
class AskShards(Job[int, dict[str, Any]]):
    """What such jobs share; each shard gives and leaves a summary."""

    folder: Path
    source: RowShards
    """What is asked about."""
    config: PriceSettings
    """With the engine, and how judge or writer are opened."""
    identity: dict[str, Any]
    """Of the judge or writer where the job comes from."""
    ledger: Path
    ledger_id: str
    """Of a ledger in a folder; "" of a file, which processes of one machine share."""
    prices: Prices

    def check(self) -> None:
        """Refuse, by an InputError, a machine that does not find the same source and ledger."""
        self.source.check()
        if self.ledger_id and not has_id(self.ledger, self.ledger_id):
            raise InputError(
                f"{self.ledger}: got no such ledger on this machine; expected the one that this run was started with; "
                "fix: a --ledger folder that is mounted on all machines under the same path"
            )

    def same(self, opened: Opened) -> Opened:
        """The judge or writer that this process opened; a ModelError refuses another one than where the job is from."""
        if stored_identity(opened.identity) != self.identity:
            opened.close()
            raise ModelError(
                f"{opened.name!r}: got another one than where this run was started; expected the same model, "
                "revision and server on every machine; fix: a folder that all share, or the same revision"
            )
        return opened

    def output(self, shard: int) -> Path:
        return self.folder / SHARDS_FOLDER / f"{shard:05d}.json"

    def leave(self, shard: int, summary: dict[str, Any]) -> dict[str, Any]:
        """Write down what came of a shard."""
        write_atomically(self.output(shard), json.dumps({"of": self.fingerprint(), "summary": summary}) + "\n")
        return summary

    def summary(self, shard: int) -> dict[str, Any] | None:
        """What came of a shard, now or in an earlier run of the same; None where nothing has yet."""
        try:
            found = json.loads(read_text(self.output(shard)))
            return dict(found["summary"]) if found["of"] == self.fingerprint() else None
        except (InputError, ValueError, KeyError, TypeError):
            return None

    def budget(self, shard: int, questions: int | None = None) -> Budget:
        """The shard's share, by rows, of the dollars that the run may spend; and most questions."""
        usd, rows = self.config.max_usd, self.source.rows(shard)
        return Budget(None if usd is None else usd * len(rows) / self.source.total, questions)


def with_ledger(job: Own, engine: str, record: Run) -> Own:
    """Begin the run of a job: the record, and a ledger in a folder, which all machines share.

    Raises:
        InputError: a ledger in one file for several machines.
    """
    shared = engine != "local" or not is_one_file(job.ledger)
    if shared:
        check_no_file(job.ledger)
    record.save("running")  # before anything else is there: other ranks look for it
    if not shared:
        return job
    job = replace(job, ledger_id=make_folder(job.ledger))
    seal_left(job.ledger)
    return job


def asked_shards(
    job: AskShards,
    place: Engine,
    kept: Callable[[Step | None], Any],
    a_row: int,
    title: str,
    progress: Callable[[str, int], Step] | None,
) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """Have this engine's share of the shards done: summaries of those, and of others that are there.

    `kept` gives what the shards of this process need, with a progress callback that `progress` makes from title and
    total; `a_row` is the number of questions about a row.

    Raises:
        IncompleteError: shards failed twice; the others are kept.
    """
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
