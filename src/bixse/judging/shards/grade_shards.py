"""`grade_shards`: grade pairs shard by shard, in this process, in others, or on other machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.pairs_files import load_pairs
from bixse.errors import IncompleteError, InputError
from bixse.judging.estimate import Estimate, estimate
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME, GradeResult, open_grading
from bixse.judging.judge import stored_identity
from bixse.judging.judgements import summarise
from bixse.judging.ledgers.segment_answers import is_one_file, make_folder
from bixse.judging.shards.ask_shards import asked_shards, with_ledger
from bixse.judging.shards.row_shards import content_of, cut_pairs
from bixse.judging.shards.shard_job import NOTHING, OF_THIS_RUN, GradeShards, ShardJudge, total_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.data.run import Run
    from bixse.judging.judge import Judge
    from bixse.judging.open_judge import GradeConfig
    from bixse.progress import Step
    from bixse.scale.engines.job import Engine

COPY_FOLDER = ".pairs"
"""In the output folder: a copy of pairs that are no Parquet."""
ESTIMATE_FOLDER = ".estimate"
"""In the output folder: the record of `estimate_shards`."""


def grade_shards(
    config: GradeConfig, out: str | Path, judge: Judge, progress: Callable[[str, int], Step] | None = None
) -> GradeResult:
    """Grade the pairs of a file or folder in shards, of which one at a time is in memory in each process.

    As `bixse.grade`, with these differences: `pairs.parquet` and `judgements.parquet` are folders with one file per
    shard, in the order of the rows; the ledger is a folder, unless an SQLite file is named for one machine; equal pairs
    are found within a shard alone; each shard has its share, by rows, of `max_usd` and `max_pairs`. The same call again
    does the shards that are missing or have pairs without an answer.

    Args:
        config: pairs, judge and engine; without `shards` those of 50,000 rows.
        out: output folder, which all machines share.
        judge: what `config` opens, for this process and to know it by; other processes open their own.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: pairs, judge, ledger or engine cannot be used, or a machine does not find what is here.
        ModelError: a machine has another judge.
        IncompleteError: shards failed twice; the others are kept.
        StorageError: the folder or the ledger cannot be written.

    Example:
        ::

            config = GradeConfig(judge="http://localhost:8000", pairs="pairs/", shards=100, engine="ranks")
            grade_shards(config, "/shared/grade", config.open()).summary["statuses"]
    """
    place = config.chosen_engine(here=config.processes is None)
    job, record = _opened(config, Path(out), judge)
    job = with_ledger(job, config.engine, record)
    started, status = time.perf_counter(), "failed"
    try:
        result = _done(job, record, place, judge, progress)
        status = "finished" if result.complete else "interrupted"
    except (KeyboardInterrupt, IncompleteError):
        status = "interrupted"
        raise
    finally:
        record.timings["grade"] = record.timings.get("grade", 0.0) + time.perf_counter() - started
        record.save(status)  # type: ignore[arg-type]
    return result


def estimate_shards(config: GradeConfig, out: str | Path, judge: Judge) -> tuple[Estimate, float]:
    """What the first shard would take, and how many times as many rows there are; errors are those of `grade_shards`.

    The answers of its pilot are kept in the ledger of `out`.
    """
    job, record = _opened(config, Path(out), judge)
    record.save("interrupted")
    if config.pilot != 0 and not is_one_file(job.ledger):
        make_folder(job.ledger)
    rows = job.source.rows(0)
    found = estimate(
        load_pairs(job.source.path, rows), judge, job.folder / ESTIMATE_FOLDER, job.config, job.ledger, job.prices,
        config.pilot, config.max_usd, {"pairs": job.source.content}, config.strict,
    )  # fmt: skip
    return found, job.source.total / len(rows)


def _opened(config: GradeConfig, out: Path, judge: Judge) -> tuple[GradeShards, Run]:
    """The job, and the record of its run; nothing is written but a copy of pairs that are no Parquet."""
    if config.pairs is None:
        raise InputError("--pairs: got none; expected a file or folder with query and document; fix: name it")
    settings = config.model_copy(update={"rubric": config.asked_rubric()})
    inputs = {"pairs": content_of(config.pairs)}
    cut = config.shards or "auto"
    record, ledger = open_grading(range(1), judge, out, settings, config.ledger, inputs, config.strict, cut)
    job = GradeShards(
        folder=out.absolute(),
        source=cut_pairs(config.pairs, config.shards, out / COPY_FOLDER / PAIRS_NAME),
        config=settings,
        identity=stored_identity(judge.identity),
        ledger=ledger.absolute(),
        ledger_id="",
        prices=config.of(config.model or judge.name),
    )
    return job, record


def _done(
    job: GradeShards, record: Run, place: Engine, judge: Judge, progress: Callable[[str, int], Step] | None
) -> GradeResult:
    """Have this engine's share of the shards graded, and sum up what all of them are by then."""
    variants = len(job.config.rubric.variants) if job.config.rubric is not None else 1
    new, known = asked_shards(job, place, lambda step: ShardJudge(judge, step), variants, "grade", progress)
    before = [{**summary, **OF_THIS_RUN} for summary in known.values()]
    summary = total_of([{**summarise((), job.prices), **NOTHING}, *new.values(), *before])
    artifacts = {"judgements": str(job.folder / JUDGEMENTS_NAME), "ledger": str(job.ledger)}
    if summary["statuses"].get("graded"):
        artifacts["pairs"] = str(job.folder / PAIRS_NAME)
    record.results |= {"summary": summary, "judge": judge.name, "artifacts": sorted(artifacts)}
    artifacts["record"] = str(job.folder / "run.json")
    return GradeResult((), summary, artifacts, summary["stopped"], job.source.number - len(new) - len(known))
