"""Grade pairs by a judge: questions through the ledger, one row per pair, a record of what it took."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import save_graded_pairs
from bixse.data.run import Run, open_run
from bixse.errors import BixseError, InputError, InterruptedRunError
from bixse.judging.ask import AskProgress, Budget, ask, keys_of, of_another_model, shown_by
from bixse.judging.grade_settings import GradeSettings, Prices
from bixse.judging.judge import Answer, Judge, Question, stored_identity
from bixse.judging.judgements import JudgedPair, graded_pairs, save_judgements, summarise
from bixse.judging.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Sized

    from bixse.data.graded_pairs import Pair
    from bixse.progress import Step

log = logging.getLogger(__name__)

PAIRS_NAME = "pairs.parquet"
"""The graded pairs, ready for `bixse train`."""
JUDGEMENTS_NAME = "judgements.parquet"
"""Every pair that was asked, with its status, bounds, probabilities and price."""
LEDGER_NAME = "ledger.sqlite"
"""Every answer, unless another ledger is named."""
LEDGER_FOLDER = "ledger"
"""The same of a run that is cut into shards."""


@dataclass(frozen=True)
class GradeResult:
    """What came of a run of grading."""

    judgements: Sequence[JudgedPair]
    """One per pair and repeat, in the order of the pairs, repeats last; none of a run in shards, which has them in
    files."""
    summary: Mapping[str, Any]
    """Counts, tokens, dollars: see `summarise`; with `asked`, `reused`, `not_asked`, `usd_of_this_run`."""
    artifacts: Mapping[str, str]
    """Name -> path of what was written: judgements, ledger, record, and pairs where there are any."""
    stopped: str | None
    """The limit that ended it early, or None."""
    waiting: int = 0
    """Shards that other ranks have not done yet."""

    @property
    def complete(self) -> bool:
        """Every pair has relevance, and those to be asked again were."""
        left = self.summary["not_asked"] + self.summary["repeats_not_asked"] + self.waiting
        return not left and self.summary["statuses"].get("graded", 0) == self.summary["pairs"]


def grade(
    pairs: Sequence[Pair],
    judge: Judge,
    out: str | Path,
    settings: GradeSettings | None = None,
    ledger: str | Path | None = None,
    prices: Prices | None = None,
    budget: Budget | None = None,
    retry_failed: bool = False,
    inputs: Mapping[str, str] | None = None,
    progress: Callable[[str, int], Step] | None = None,
    strict: bool = False,
) -> GradeResult:
    """Grade pairs; the expected grade of each becomes its relevance in [0, 1] (BiXSE paper, section 3).

    Writes `pairs.parquet` (graded pairs alone), `judgements.parquet` (every pair asked), `ledger.sqlite` and `run.json`
    into `out`. The same call again asks nothing that was answered and goes on where it stopped.

    Args:
        pairs: what to grade.
        judge: see `bixse.judging.judge`; not closed here.
        out: output folder.
        settings: rubric, and what else decides the rows.
        ledger: answers shared with other runs, in a file or a folder that is there (see `bixse.judging.ledger`); None:
            those this folder used before, or `out/ledger.sqlite`.
        prices: 0 when None.
        budget: no limit when None.
        retry_failed: ask only pairs whose answer has no grade.
        inputs: input name -> hash, for run.json.
        progress: makes a progress callback (see `bixse.progress.Step`) from a title and a total.
        strict: ask nothing of a judge that does not look trustworthy, and take no answer of another model. Without it
            the doubts are logged as warnings, and such answers are counted.

    Raises:
        InputError: no pairs, a folder that holds another run, or with `strict` a judge to be doubted.
        StorageError: the folder or the ledger cannot be written.
        InterruptedRunError: stopped by Ctrl-C; answers so far are kept and tables written.
    """
    settings, prices, budget = settings or GradeSettings(), prices or Prices(), budget or Budget()
    record, answers = open_grading(pairs, judge, out, settings, ledger, inputs, strict)
    record.save("running")
    started = time.perf_counter()
    questions = questions_about(pairs, settings)
    show = shown_by(progress("grade", len(questions)) if progress is not None else None)
    state, interrupted, failure = AskProgress(), False, None
    with Ledger(answers) as book:
        try:
            book.load(keys_of(questions, judge.identity))
            for state in ask(questions, judge.answers, judge.identity, book, prices, budget, retry_failed, strict):
                show(state)
        except KeyboardInterrupt:
            interrupted = True
        except BixseError as error:
            failure = error
        result = _write(pairs, judge, settings, state, prices, record, book, strict)
    record.timings["grade"] = record.timings.get("grade", 0.0) + time.perf_counter() - started
    record.save("failed" if failure else "finished" if result.complete else "interrupted")
    if failure is not None:
        raise failure
    if interrupted:
        raise InterruptedRunError(
            f"stopped by Ctrl-C or SIGTERM: {result.summary['pairs']} of {len(pairs)} pairs are answered and kept in "
            f"{out}; the same command goes on from there"
        )
    return result


def open_grading(
    pairs: Sized,
    judge: Judge,
    out: str | Path,
    settings: GradeSettings,
    ledger: str | Path | None,
    inputs: Mapping[str, str] | None,
    strict: bool,
    shards: int | str | None = None,
) -> tuple[Run, Path]:
    """The record of a run of grading, new or to go on with, and its ledger; nothing is written yet."""
    if not pairs:
        raise InputError("pairs: got none; expected at least one; fix: check what was selected")
    _tell_doubts(judge, strict)
    folder = Path(out)
    config = {"judge": stored_identity(judge.identity), **settings.config(), **({"shards": shards} if shards else {})}
    record = open_run(folder, "grade", config, dict(inputs or {}), paths=("ask_twice", "seed"))  # of repeats alone
    answers = Path(ledger or record.results.get("ledger") or folder / (LEDGER_FOLDER if shards else LEDGER_NAME))
    record.results["ledger"] = str(answers.resolve())
    return record, answers


def _tell_doubts(judge: Judge, strict: bool) -> None:
    doubts: Sequence[str] = getattr(judge, "doubts", ())
    for doubt in doubts:
        log.warning("%s", doubt)
    if strict and doubts:
        raise InputError(
            f"--strict: got a judge that does not look trustworthy ({'; '.join(doubts)}); expected the "
            "model that was named, and known questions answered as they should be; fix: choose another model, server, "
            "rubric or --mode, or leave --strict out"
        )


def questions_about(pairs: Sequence[Pair], settings: GradeSettings) -> list[Question]:
    """What is asked about the pairs, repeats last."""
    return [q for pair, repeat in settings.with_repeats(pairs) for q in settings.questions(pair, repeat)]


def judged(
    pairs: Sequence[Pair],
    judge: Judge,
    settings: GradeSettings,
    state: AskProgress,
    prices: Prices,
    ledger: Ledger[Answer],
    strict: bool,
) -> tuple[list[JudgedPair], dict[str, Any]]:
    """What the ledger now holds about the pairs, in their order, repeats last, and a summary."""
    judgements, identity = [], dict(judge.identity)
    others: Counter[str] = Counter()
    for pair, repeat in settings.with_repeats(pairs):
        found = [ledger.find(question.key(identity)) for question in settings.questions(pair, repeat)]
        answers = [answer for answer in found if answer is not None]
        strangers = [answer.judge for answer in answers if of_another_model(answer, identity)]
        if len(answers) == len(found) and not (strict and strangers):
            others.update(strangers)
            judgements.append(JudgedPair(pair, answers, judge.scale, repeat))
    repeated = sum(judgement.repeat > 0 for judgement in judgements)
    return judgements, {
        **summarise(judgements, prices),
        "not_asked": len(pairs) - (len(judgements) - repeated),
        "repeats_not_asked": sum(repeat for _, repeat in settings.with_repeats(pairs)) - repeated,
        "asked": state.asked,
        "reused": state.reused,
        "precision": identity.get("dtype"),
        "answered_in_other_precision": dict(state.other_precision),
        "usd_of_this_run": state.usd,
        "other_models": dict(others),
        "stopped": state.stopped,
    }


def save_tables(judgements: Sequence[JudgedPair], prices: Prices, rows: Path, graded: Path) -> None:
    """Write all judgements to the file `rows`, and those with a grade to `graded`, which is deleted without any."""
    save_judgements(judgements, prices, rows)
    table = graded_pairs(judgements)
    if len(table):
        save_graded_pairs(table, graded)
    else:
        graded.unlink(missing_ok=True)


def _write(
    pairs: Sequence[Pair],
    judge: Judge,
    settings: GradeSettings,
    state: AskProgress,
    prices: Prices,
    record: Run,
    ledger: Ledger[Answer],
    strict: bool,
) -> GradeResult:
    judgements, summary = judged(pairs, judge, settings, state, prices, ledger, strict)
    artifacts = {"judgements": str(record.folder / JUDGEMENTS_NAME), "ledger": str(ledger.path)}
    save_tables(judgements, prices, record.folder / JUDGEMENTS_NAME, record.folder / PAIRS_NAME)
    if (record.folder / PAIRS_NAME).exists():
        artifacts["pairs"] = str(record.folder / PAIRS_NAME)
    record.results |= {"summary": summary, "judge": judge.name, "artifacts": sorted(artifacts)}
    return GradeResult(judgements, summary, {**artifacts, "record": str(record.folder / "run.json")}, state.stopped)
