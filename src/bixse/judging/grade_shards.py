"""Grade pairs shard by shard, in this process, in other processes, or on other machines."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.data.pairs_files import load_pairs
from bixse.errors import IncompleteError, InputError
from bixse.judging.ask import Asking
from bixse.judging.ask_shards import AskShards, asked_shards, content_of, cut_pairs, with_ledger
from bixse.judging.estimate import Estimate, estimate
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME, GradeResult, GradeSummary, Grading, open_grading, result_of
from bixse.judging.judge import stored_identity
from bixse.judging.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.data.run import Run
    from bixse.judging.judge import Judge
    from bixse.judging.open_judge import GradeConfig
    from bixse.progress import Step

COPY_FOLDER = ".pairs"
"""Folder in the output folder with a Parquet copy of pairs of another format."""
ESTIMATE_FOLDER = ".estimate"
"""Folder in the output folder with the record of `estimate_shards`."""


class ShardJudge(NamedTuple):
    """The worker state of a process that grades shards."""

    judge: Judge
    step: Step | None = None


@dataclass(frozen=True, kw_only=True)
class GradeShards(AskShards):
    """A job of grading; shard n becomes the n-th file of the folders `pairs.parquet` and `judgements.parquet`."""

    config: GradeConfig
    """Settings with the rubric that the judge reads, or without one."""

    def setup(self) -> ShardJudge:
        config = self.config
        if "dtype" in self.identity:  # "auto" may mean another dtype on the CPU or GPU of this machine
            config = config.model_copy(update={"dtype": self.identity["dtype"]})
        return ShardJudge(self.opened_here(config.open))

    def run(self, shard: int, kept: ShardJudge) -> dict[str, Any]:
        config, judge, budget = self.config, kept.judge, self.budget(shard, self._most_questions(shard))
        pairs = load_pairs(self.source.path, self.source.rows(shard))
        with Ledger(self.ledger) as book:
            shared = dict(judge.identity), book, self.prices, budget, config.retry_failed, config.strict
            grading = Grading(pairs, judge, config, Asking(judge.answers, *shared))
            grading.ask(kept.step)
            _, summary = grading.write(self.file(JUDGEMENTS_NAME, shard), self.file(PAIRS_NAME, shard))
        return self.leave(shard, asdict(summary))

    def file(self, name: str, shard: int) -> Path:
        return self.folder / name / f"{shard:05d}.parquet"

    def summary(self, shard: int) -> dict[str, Any] | None:
        summary = super().summary(shard)
        tables = [JUDGEMENTS_NAME] + [PAIRS_NAME] * bool(summary and summary["statuses"].get("graded"))
        return summary if all(self.file(name, shard).exists() for name in tables) else None

    def is_complete(self, shard: int) -> bool:
        return super().is_complete(shard) and self._is_settled(shard)

    def mark(self, shard: int) -> None:
        if self._is_settled(shard):
            super().mark(shard)

    def fingerprint(self) -> str:
        shards = [self.source.content, self.source.total, self.source.number]
        known = [self.identity, self.config.config(), self.config.strict, shards]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _is_settled(self, shard: int) -> bool:
        """Return whether a run has nothing to ask about a shard."""
        summary = self.summary(shard)
        if summary is None or summary["not_asked"] or summary["repeats_not_asked"]:
            return False
        statuses = summary["statuses"]
        return not statuses.get("failed") and (not self.config.retry_failed or list(statuses) == ["graded"])

    def _most_questions(self, shard: int) -> int | None:
        """Return the shard's share, by rows, of `max_pairs`, in questions."""
        rows, most = self.source.rows(shard), self.config.max_pairs
        if most is None:
            return None
        first, end = (most * place // self.source.total for place in (rows.start, rows.stop))
        return (end - first) * self.config.questions_per_pair


def grade_shards(
    config: GradeConfig, out: str | Path, judge: Judge, progress: Callable[[str, int], Step] | None = None
) -> GradeResult:
    """Grade the pairs of a file or folder like `bixse.grade`, but in shards, one in memory per process."""
    # Differences: equal pairs are found only within a shard, and each shard has its share, by rows, of `max_usd` and
    # `max_pairs`. All machines share `out`. `judge`, which `config` opens, is for this process and for its identity;
    # other processes open their own. The same call again does the shards that are missing or lack an answer.
    place = config.chosen_engine()
    job, record = _opened(config, Path(out).absolute(), judge)
    job = with_ledger(job, record)
    started, status = time.perf_counter(), "failed"
    try:
        new, known = asked_shards(
            job, place, lambda step: ShardJudge(judge, step), job.config.questions_per_pair, "grade", progress
        )
        before = [GradeSummary(**summary).before_this_run for summary in known.values()]
        total = sum([*(GradeSummary(**summary) for summary in new.values()), *before], GradeSummary())
        result = result_of(record, judge, total, job.ledger, (), job.source.number - len(new) - len(known))
        status = "finished" if result.complete else "interrupted"
    except (KeyboardInterrupt, IncompleteError):  # IncompleteError: some shards failed twice, the others are kept
        status = "interrupted"
        raise
    finally:
        record.timings["grade"] = record.timings.get("grade", 0.0) + time.perf_counter() - started
        record.save(status)  # type: ignore[arg-type]
    return result


def estimate_shards(config: GradeConfig, out: str | Path, judge: Judge) -> tuple[Estimate, float]:
    """Estimate the first shard, and return all rows divided by its rows; the answers of its pilot are kept."""
    job, record = _opened(config, Path(out).absolute(), judge)
    record.save("interrupted")
    rows = job.source.rows(0)
    found = estimate(
        load_pairs(job.source.path, rows), judge, job.folder / ESTIMATE_FOLDER, job.config, job.ledger, job.prices,
        config.pilot, config.max_usd, {"pairs": job.source.content}, config.strict,
    )  # fmt: skip
    return found, job.source.total / len(rows)


def _opened(config: GradeConfig, out: Path, judge: Judge) -> tuple[GradeShards, Run]:
    """Return the job and the record of its run; write only a Parquet copy of pairs of another format."""
    if config.pairs is None:
        raise InputError("--pairs: got none; expected a file or folder with query and document; fix: name it")
    settings = config.model_copy(update={"rubric": config.asked_rubric()})
    inputs = {"pairs": content_of(config.pairs)}
    cut = config.shards or "auto"
    record, ledger = open_grading(range(1), judge, out, settings, config.ledger, inputs, config.strict, cut)
    job = GradeShards(
        folder=out,
        source=cut_pairs(config.pairs, config.shards, out / COPY_FOLDER / PAIRS_NAME),
        config=settings,
        identity=stored_identity(judge.identity),
        ledger=ledger.absolute(),
        prices=config.of(config.model or judge.name),
    )
    return job, record
