"""Grading as shards of a job: each reads its rows, asks through the ledger, and writes its tables."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.data.io.files import read_text, write_atomically
from bixse.data.pairs_files import load_pairs
from bixse.engines.job import Job
from bixse.errors import InputError, ModelError
from bixse.grading.ask import AskProgress, Budget, ask, keys_of, shown_by
from bixse.grading.grade import JUDGEMENTS_NAME, PAIRS_NAME, judged, questions_about, save_tables
from bixse.grading.judge import stored_identity
from bixse.grading.ledger import Ledger
from bixse.grading.ledgers.segment_answers import FOLDER_FILE, folder_id

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.grading.judge import Judge
    from bixse.grading.open_judge import GradeConfig
    from bixse.grading.prices import Prices
    from bixse.grading.shards.pair_shards import PairShards
    from bixse.progress import Step

SHARDS_FOLDER = "shards"
"""In the output folder: what came of each shard, and marks of those that are complete."""
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
"""What `bixse.grading.grade.judged` adds to a summary, of no pairs."""


class ShardJudge(NamedTuple):
    """What grades the shards of a process."""

    judge: Judge
    step: Step | None = None
    """Told what is answered."""


@dataclass(frozen=True)
class GradeShards(Job[int, dict[str, Any]]):
    """Shard n becomes the n-th file of `pairs.parquet` and `judgements.parquet`, here folders; gives its summary."""

    folder: Path
    pairs: PairShards
    config: GradeConfig
    """With the rubric that the judge reads, if any."""
    identity: dict[str, Any]
    """Of the judge where the job comes from."""
    ledger: Path
    ledger_id: str
    """Of a ledger in a folder; "" of a file, which processes of one machine share."""
    prices: Prices

    def setup(self) -> ShardJudge:
        """Open the judge, which must be the one it is where the job comes from; so must pairs and ledger."""
        self.pairs.check()
        if self.ledger_id and (not (self.ledger / FOLDER_FILE).exists() or folder_id(self.ledger) != self.ledger_id):
            raise InputError(
                f"{self.ledger}: got no such ledger on this machine; expected the one that this run was started with; "
                "fix: a --ledger folder that is mounted on all machines under the same path"
            )
        config = self.config
        if "dtype" in self.identity:
            config = config.model_copy(update={"dtype": self.identity["dtype"]})
        judge = config.open()
        if stored_identity(judge.identity) != self.identity:
            judge.close()
            raise ModelError(
                f"judge {judge.name!r}: got another one than where this run was started; expected the same model, "
                "revision and server on every machine; fix: a folder that all share, or the same revision"
            )
        return ShardJudge(judge)

    def run(self, shard: int, kept: ShardJudge) -> dict[str, Any]:
        config, judge = self.config, kept.judge
        pairs = load_pairs(self.pairs.path, self.pairs.rows(shard))
        questions, show, state = questions_about(pairs, config), shown_by(kept.step), AskProgress()
        with Ledger(self.ledger) as book:
            book.load(keys_of(questions, judge.identity))
            asked = (questions, judge.answers, judge.identity, book, self.prices, self._budget(shard))
            for state in ask(*asked, config.retry_failed, config.strict):
                show(state)
            judgements, summary = judged(pairs, judge, config, state, self.prices, book, config.strict)
        save_tables(judgements, self.prices, self.file(JUDGEMENTS_NAME, shard), self.file(PAIRS_NAME, shard))
        write_atomically(self.output(shard), json.dumps({"of": self.fingerprint(), "summary": summary}) + "\n")
        return summary

    def output(self, shard: int) -> Path:
        return self.folder / SHARDS_FOLDER / f"{shard:05d}.json"

    def file(self, name: str, shard: int) -> Path:
        """The part of a table that is this shard's."""
        return self.folder / name / f"{shard:05d}.parquet"

    def summary(self, shard: int) -> dict[str, Any] | None:
        """What came of a shard, now or in an earlier run of the same; None where nothing has yet."""
        try:
            found = json.loads(read_text(self.output(shard)))
            summary = dict(found["summary"]) if found["of"] == self.fingerprint() else None
        except (InputError, ValueError, KeyError, TypeError):
            return None
        tables = [JUDGEMENTS_NAME] + [PAIRS_NAME] * bool(summary and summary["statuses"].get("graded"))
        return summary if all(self.file(name, shard).exists() for name in tables) else None

    def is_complete(self, shard: int) -> bool:
        return super().is_complete(shard) and self._is_settled(self.summary(shard))

    def mark(self, shard: int) -> None:
        if self._is_settled(self.summary(shard)):
            super().mark(shard)

    def fingerprint(self) -> str:
        shards = [self.pairs.content, self.pairs.total, self.pairs.number]
        known = [self.identity, self.config.config(), self.config.strict, shards]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _is_settled(self, summary: dict[str, Any] | None) -> bool:
        """Whether a run has nothing to ask about a shard."""
        if summary is None or summary["not_asked"] or summary["repeats_not_asked"]:
            return False
        statuses = summary["statuses"]
        return not statuses.get("failed") and (not self.config.retry_failed or list(statuses) == ["graded"])

    def _budget(self, shard: int) -> Budget:
        """The shard's share of what the run may spend."""
        rows, config = self.pairs.rows(shard), self.config
        usd = None if config.max_usd is None else config.max_usd * len(rows) / self.pairs.total
        if config.max_pairs is None:
            return Budget(usd)
        first, end = (config.max_pairs * place // self.pairs.total for place in (rows.start, rows.stop))
        return Budget(usd, (end - first) * (len(config.rubric.variants) if config.rubric is not None else 1))


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
