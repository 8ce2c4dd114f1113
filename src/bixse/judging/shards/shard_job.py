"""Grading as shards of a job: each reads its rows, asks through the ledger, and writes its tables."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.data.pairs_files import load_pairs
from bixse.judging.ask import AskProgress, ask, keys_of, shown_by
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME, judged, questions_about, save_tables
from bixse.judging.ledger import Ledger
from bixse.judging.shards.ask_shards import AskShards

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.judging.judge import Judge
    from bixse.judging.open_judge import GradeConfig
    from bixse.progress import Step

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
