"""`grade_shards`: grade pairs shard by shard, in this process, in others, or on other machines."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.data.pairs_files import load_pairs
from bixse.errors import IncompleteError, InputError
from bixse.judging.ask import AskProgress, ask, keys_of, shown_by
from bixse.judging.estimate import Estimate, estimate
from bixse.judging.grade import (
    JUDGEMENTS_NAME,
    PAIRS_NAME,
    GradeResult,
    judged,
    open_grading,
    questions_about,
    save_tables,
)
from bixse.judging.judge import stored_identity
from bixse.judging.judgements import summarise
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segment_answers import is_one_file, make_folder
from bixse.judging.shards import AskShards, asked_shards, content_of, cut_pairs, with_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.data.run import Run
    from bixse.judging.judge import Judge
    from bixse.judging.open_judge import GradeConfig
    from bixse.progress import Step
    from bixse.scale.engines.job import Engine


OF_THIS_RUN = {"asked": 0, "reused": 0, "usd_of_this_run": 0.0, "stopped": None}
"""Figures of a summary that are about a run, not about the pairs; as they are of a shard that was complete before."""

NOTHING: dict[str, Any] = {
    "not_asked": 0,
    "repeats_not_asked": 0,
    "precision": None,
    "answered_in_other_precision": {},
    "other_models": {},
    **OF_THIS_RUN,
}
"""What `bixse.judging.grade.judged` adds to a summary, of no pairs."""


class ShardJudge(NamedTuple):
    """What grades the shards of a process."""

    judge: Judge
    step: Step | None = None
    """Told what is answered."""


@dataclass(frozen=True)
class GradeShards(AskShards):
    """Shard n becomes the n-th file of `pairs.parquet` and `judgements.parquet`, here folders; gives its summary."""

    config: GradeConfig
    """With the rubric that the judge reads, if any."""

    def setup(self) -> ShardJudge:
        """Open the judge, which must be the one it is where the job comes from; so must pairs and ledger."""
        self.check()
        config = self.config
        if "dtype" in self.identity:
            config = config.model_copy(update={"dtype": self.identity["dtype"]})
        return ShardJudge(self.same(config.open()))

    def run(self, shard: int, kept: ShardJudge) -> dict[str, Any]:
        config, judge = self.config, kept.judge
        pairs = load_pairs(self.source.path, self.source.rows(shard))
        questions, show, state = questions_about(pairs, config), shown_by(kept.step), AskProgress()
        with Ledger(self.ledger) as book:
            book.load(keys_of(questions, judge.identity))
            budget = self.budget(shard, self._most_questions(shard))
            asked = (questions, judge.answers, judge.identity, book, self.prices, budget)
            for state in ask(*asked, config.retry_failed, config.strict):
                show(state)
            judgements, summary = judged(pairs, judge, config, state, self.prices, book, config.strict)
        save_tables(judgements, self.prices, self.file(JUDGEMENTS_NAME, shard), self.file(PAIRS_NAME, shard))
        return self.leave(shard, summary)

    def file(self, name: str, shard: int) -> Path:
        """The part of a table that is this shard's."""
        return self.folder / name / f"{shard:05d}.parquet"

    def summary(self, shard: int) -> dict[str, Any] | None:
        summary = super().summary(shard)
        tables = [JUDGEMENTS_NAME] + [PAIRS_NAME] * bool(summary and summary["statuses"].get("graded"))
        return summary if all(self.file(name, shard).exists() for name in tables) else None

    def is_complete(self, shard: int) -> bool:
        return super().is_complete(shard) and self._is_settled(self.summary(shard))

    def mark(self, shard: int) -> None:
        if self._is_settled(self.summary(shard)):
            super().mark(shard)

    def fingerprint(self) -> str:
        shards = [self.source.content, self.source.total, self.source.number]
        known = [self.identity, self.config.config(), self.config.strict, shards]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _is_settled(self, summary: dict[str, Any] | None) -> bool:
        """Whether a run has nothing to ask about a shard."""
        if summary is None or summary["not_asked"] or summary["repeats_not_asked"]:
            return False
        statuses = summary["statuses"]
        return not statuses.get("failed") and (not self.config.retry_failed or list(statuses) == ["graded"])

    def _most_questions(self, shard: int) -> int | None:
        """The shard's share of the pairs that the run may ask about, in questions."""
        rows, config = self.source.rows(shard), self.config
        if config.max_pairs is None:
            return None
        first, end = (config.max_pairs * place // self.source.total for place in (rows.start, rows.stop))
        return (end - first) * (len(config.rubric.variants) if config.rubric is not None else 1)


def total_of(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One summary of all shards: sums, and means weighted by what they are means of."""
    total = {name: _sum([one[name] for one in summaries]) for name in summaries[0]}
    for name, weight in (("mean_relevance", "graded"), ("mean_change_of_repeats", "repeats")):
        weights = [one["statuses"].get("graded", 0) if weight == "graded" else one[weight] for one in summaries]
        parts = [one[name] * number for one, number in zip(summaries, weights, strict=True) if one[name] is not None]
        total[name] = math.fsum(parts) / sum(weights) if parts else None
    return total


def _sum(values: list[Any]) -> Any:
    """Numbers are added, also those of mappings and lists; of texts the first, None does not count."""
    values = [value for value in values if value is not None]
    if not values or isinstance(values[0], str):
        return values[0] if values else None
    if isinstance(values[0], dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: sum(value.get(name, 0) for value in values) for name in names}
    if isinstance(values[0], list):
        return [sum(column) for column in zip(*values, strict=True)]
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


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
