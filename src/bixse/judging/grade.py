"""Grade pairs with a judge, shard by shard, in this process, in several, or on several machines."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import Pair, Pairs
from bixse.data.pairs_files import as_pairs, load_graded_pairs, load_pairs, parquet_pairs
from bixse.data.run import Run, open_run, read_record
from bixse.engine import Engine, Job
from bixse.errors import BixseError, IncompleteError, InputError, InterruptedRunError
from bixse.files.files import file_hash, json_hash, read_text, write_atomically
from bixse.files.run_folder import RUN_FILE
from bixse.judging.ask import Asking, keyed
from bixse.judging.judge import Answer, AnyJudge, Question, Usage, stored_identity
from bixse.judging.judgements import GradeSummary, judged, save_judgements
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import check_folder, make_folder
from bixse.judging.ledgers.writers import seal_left
from bixse.judging.open_judge import GradeConfig, Judge
from bixse.judging.spending import LEDGER_NAME, OverBudgetError, Spending
from bixse.progress import ProgressBars, Step, progress_bar
from bixse.rendering.wording import format_seconds

if TYPE_CHECKING:
    from bixse.judging.grade_settings import Prices

log = logging.getLogger(__name__)

PAIRS_NAME = "pairs.parquet"
"""The graded pairs, ready for `bixse train`."""
JUDGEMENTS_NAME = "judgements.parquet"
"""All pairs that were asked, with status, bounds, probabilities and price."""
SHARDS_FOLDER = "shards"
"""Folder in the output folder of a run in shards with the summary of each."""
ROWS = 50_000
"""Rows per shard if no number of shards is given: some hundred megabytes with the questions about them."""
COUNTED = 1000
"""Questions that are tokenized. The tokens of the rest follow from their characters."""
CHARACTERS_A_TOKEN = 4.0
"""A common ratio for English text, used if neither a tokenizer nor an answer gives tokens."""


@dataclass(frozen=True)
class GradeResult:
    """The result of a run of grading."""

    summary: GradeSummary
    artifacts: Mapping[str, str]
    """Name -> path of the files: judgements, ledger, record, and pairs if any pair has a grade."""
    waiting: int = 0
    """Pending shards of other ranks."""

    @property
    def complete(self) -> bool:
        """Return True if every pair has relevance."""
        return not self.summary.not_asked and not self.waiting and self.summary.graded == self.summary.pairs


@dataclass(frozen=True)
class Estimate:
    """The cost of the rest of a run of grading; tokens, `usd` and `seconds` are of questions without an answer."""

    pairs: int
    questions: int
    """One question per pair and prompt variant of the rubric, equal ones once."""
    answered: int
    """Questions with an answer in the ledger."""
    prompt_tokens: int
    completion_tokens: int
    counted_by: str
    """Source of the tokens: "tokenizer", "answers" (their usage) or "characters" (a guess)."""
    usd: float | None
    """Price without a discount for prompts in the server's cache; None without prices."""
    seconds: float | None
    """Wall time: the mean time of the answers in the ledger, divided by `at_once`; None without answers."""
    at_once: int
    """Concurrent questions."""
    times_as_many_rows: float = 1.0
    """All rows, divided by those of the first shard, which is estimated alone."""

    def text(self, name: str) -> str:
        """Format the estimate; `name` is the name of the judge."""
        counted = {
            "tokenizer": "counted by the judge's tokenizer",
            "answers": "from the usage of answers so far",
            "characters": "a guess at four characters per token",
        }[self.counted_by]
        unknown, left, lines = "unknown (--prices READ WRITTEN tells it)", self.questions - self.answered, []
        if self.times_as_many_rows > 1:
            lines.append(f"the first shard alone; all rows are {self.times_as_many_rows:.1f} times as many")
        lines += [
            f"{self.pairs} pairs, {self.questions} questions to {name}: {self.answered} answered, {left} to ask",
            f"tokens to read     {self.prompt_tokens:,} ({counted})",
            f"tokens to write    {self.completion_tokens:,}",
            f"price              {unknown if self.usd is None else f'{self.usd:.4f} US dollars (no cache discount)'}",
        ]
        if self.seconds is not None:
            lines.append(
                f"time               {format_seconds(self.seconds)} at {self.at_once} at once, from answers so far"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Worker:
    """The worker state of a process that grades shards."""

    judge: AnyJudge
    spending: Spending
    step: Step | None = None
    summaries: dict[int, GradeSummary] = field(default_factory=dict)
    """Shard -> summary of what this process did, also after a stop."""


@dataclass(frozen=True, kw_only=True)
class GradeShards(Job[int, GradeSummary]):
    """A job of grading.

    One shard writes the files `pairs.parquet` and `judgements.parquet`. Of several, shard n writes the n-th file of the
    folders of these names, and its summary.
    """

    folder: Path
    config: GradeConfig
    identity: dict[str, Any]
    ledger: Path
    content: str
    """Hash of the pairs."""
    total: int
    """Number of pairs."""
    number: int
    """Number of shards, at most one per pair."""
    pairs: Sequence[Pair] | None = None
    """The pairs of the only shard; None if each shard reads its rows of the file."""

    def setup(self) -> Worker:
        spending = Spending(self.ledger, self.config.prices)
        return Worker(self.config.open(spending), spending)

    def run(self, shard: int, state: Worker) -> GradeSummary:
        pairs, judge, config = self.read(shard), state.judge, self.config
        with Ledger(self.ledger) as ledger:
            most, identity = self._max_questions(shard), dict(judge.identity)
            asking = Asking(judge.answers, identity, ledger, state.spending, most, config.retry_failed)
            asked = [(pair, keyed(config.questions(pair), asking.identity)) for pair in pairs]
            try:
                asking.run([question for _, questions in asked for question in questions], state.step)
            finally:  # answers before a stop are written too
                judgements = []
                for pair, questions in asked:
                    answers = [answer for key, _ in questions if (answer := ledger.find(key)) is not None]
                    if len(answers) == len(questions):
                        judgements.append(judged(pair, answers, judge.scale, config.prices))
                state.summaries[shard] = summary = GradeSummary.of(judgements, len(pairs), asking)
                save_judgements(judgements, self.file(JUDGEMENTS_NAME, shard), self.file(PAIRS_NAME, shard))
                if self.pairs is None:
                    content = {"of": self.fingerprint(), "summary": asdict(summary)}
                    write_atomically(self.summary_file(shard), json.dumps(content) + "\n")
        return summary

    def read(self, shard: int) -> Sequence[Pair]:
        return load_pairs(self.config.pairs or "", self.rows(shard)) if self.pairs is None else self.pairs

    def rows(self, shard: int) -> range:
        return range(self.total * shard // self.number, self.total * (shard + 1) // self.number)

    def file(self, name: str, shard: int) -> Path:
        return self.folder / name / f"{shard:05d}.parquet" if self.pairs is None else self.folder / name

    def summary_file(self, shard: int) -> Path:
        return self.folder / SHARDS_FOLDER / f"{shard:05d}.json"

    def summary(self, shard: int) -> GradeSummary | None:
        """Return the summary of a shard from this run or an earlier run of the same job, or None."""
        try:
            stored = json.loads(read_text(self.summary_file(shard)))
            summary, same_job = GradeSummary(**stored["summary"]), stored["of"] == self.fingerprint()
        except (InputError, ValueError, KeyError, TypeError):
            return None
        names = [JUDGEMENTS_NAME, *([PAIRS_NAME] if summary.graded else [])]
        return summary if same_job and all(self.file(name, shard).exists() for name in names) else None

    def is_complete(self, shard: int) -> bool:
        """Return whether a run has nothing to ask about a shard."""
        summary = self.summary(shard)
        if summary is None or summary.not_asked or summary.statuses.get("failed"):
            return False
        return not self.config.retry_failed or summary.graded == summary.pairs

    def fingerprint(self) -> str:
        return json_hash([self.identity, self.config.recorded(), [self.content, self.total, self.number]])

    def _max_questions(self, shard: int) -> int | None:
        """Return the shard's share of `max_pairs` by rows, in questions."""
        rows, most = self.rows(shard), self.config.max_pairs
        if most is None:
            return None
        first, end = (most * position // self.total for position in (rows.start, rows.stop))
        return (end - first) * self.config.questions_per_pair


class BudgetReached(BixseError):  # noqa: N818 (the end of a budget is no error of the judge)
    """The limit of dollars was reached; `graded` holds the pairs that have a grade.

    Example:
        ::

            try:
                grades = grade(pairs, judge, ledger="answers", max_usd=5.0)
            except BudgetReached as error:
                grades = error.graded
    """

    def __init__(self, message: str, graded: Pairs | None) -> None:
        super().__init__(message)
        self.graded = graded


def grade(
    pairs: Any,
    judge: Judge | str | Callable[[str, str], Any],
    ledger: str | Path | None = None,
    max_usd: float | None = None,
    out: str | Path | None = None,
    verbose: bool = True,
) -> Pairs:
    """Grade pairs with a judge: the expected grade of each pair becomes its relevance in [0, 1].

    Args:
        pairs: a `Dataset`, a frame, an Arrow table, a list of dictionaries (query, document), or a path.
        judge: a `Judge`, or what one is made from. It stays open.
        ledger: folder that keeps the answers: no question is asked twice.
        max_usd: limit on what all calls with the ledger cost; needs prices.
        out: folder for the files of `bixse grade`; None leaves no file.
        verbose: show progress.

    Raises:
        InputError: unusable pairs or judge, or no pair with a grade.
        BudgetReached: `max_usd` is spent; the error holds what was graded.
        InterruptedRunError: Ctrl-C; `graded` of the error holds what was graded.

    Example:
        >>> from bixse.judging.open_judge import Judge
        >>> judge = Judge(lambda query, document: 3 if query.split()[-1] in document else 0, scale=(0, 3), name="word")
        >>> grade([{"query": "copy a folder", "document": "shutil: copy a folder"}], judge).relevance.tolist()
        [1.0]
    """
    judge = judge if isinstance(judge, Judge) else Judge(judge)
    if judge.function is not None and not judge.name and (ledger or out):
        raise InputError("judge: got a function without a name; expected one, under which answers are kept; fix: "
                         "Judge(function, name='mine-1')")  # fmt: skip
    rows = as_pairs(pairs, graded=False).rows()
    asked = [Pair(row["query_id"], row["query"], row["document_id"], row["document"], row.get("task")) for row in rows]
    prices = {"per_million": judge.config.prices.per_million, "max_usd": max_usd}
    config = GradeConfig.load(overrides={**dict(judge.config), "ledger": ledger, "prices": prices})
    with TemporaryDirectory(prefix="bixse-grade-") if out is None else nullcontext(str(out)) as folder:

        def graded() -> Pairs | None:
            file = Path(folder) / PAIRS_NAME
            return load_graded_pairs(file) if file.exists() else None

        try:
            result = grade_into(config, judge.open(), folder, asked, progress_bar if verbose else None)
        except InterruptedRunError as error:
            left = "the ledger keeps the answers" if ledger else "ledger= would keep the answers"
            stopped = error if out else InterruptedRunError(f"grade: got Ctrl-C; `graded` has the pairs so far; {left}")
            stopped.graded = graded()
            raise stopped from None
        table = graded()
    if result.summary.stopped is not None:
        raise BudgetReached(f"grade: {result.summary.stopped}; the pairs graded so far are in `graded`", table)
    if table is None:
        raise InputError(
            f"judge {judge.open().name}: got no grade for any pair ({result.summary.statuses}); expected some; fix: "
            "ask about one pair, and read the reason: judge(query, document)"
        )
    for line in result.summary.warnings(judge.open().name, config.prices):
        log.warning("%s", line)
    return table


def grade_into(
    config: GradeConfig,
    judge: AnyJudge,
    out: str | Path,
    pairs: Sequence[Pair] | None = None,
    progress: ProgressBars | None = None,
) -> GradeResult:
    """Grade pairs; the expected grade of each pair becomes its relevance in [0, 1] (BiXSE paper, section 3).

    Write `pairs.parquet` (graded pairs only), `judgements.parquet` (every pair asked), the ledger and `run.json` into
    `out`. The same call again continues where the run stopped, and asks no answered question. Doubts about the judge
    are logged before the first question.

    With `config.engine` the pairs of a Parquet file or folder are graded in shards, one in memory per process. Equal
    pairs are then found only within a shard, each shard has a share of `max_pairs` in proportion to its rows, and all
    machines share `out`. The same call again does the shards that are missing or lack an answer.

    `max_usd` limits what all calls with the same ledger cost. `judge` (opened from `config`) stays open. `pairs` in
    memory are graded instead of `config.pairs`. `progress` makes a progress callback (see `bixse.progress.Step`) from a
    title and a total.

    Raises:
        InputError: no pairs, or a folder with another run.
        StorageError: the folder or the ledger cannot be written.
        IncompleteError: some shards failed twice, the others are kept.
        InterruptedRunError: stopped by Ctrl-C or SIGTERM. The answers so far are kept, and the tables are written.
    """
    engine = config.engine.chosen_engine() if pairs is None else Engine()  # pairs in memory are graded here
    job, record = open_grading(config, judge, out, pairs)
    check_folder(job.ledger)
    record.save("running")  # before any other file, since other ranks look for the record
    if job.pairs is None:
        make_folder(job.ledger)
        seal_left(job.ledger)
    spending, shards = charge(judge, job.ledger, config.prices), range(job.number)
    sizes = {shard: len(job.rows(shard)) * config.questions_per_pair for shard in engine.share(shards)}
    step = progress("grade", sum(sizes.values())) if progress is not None and sizes else None
    worker, failed, stopped = Worker(judge, spending, step), list[str](), None
    with record.ending("grade"):
        try:
            if job.pairs is not None:
                job.run(0, worker)
            for ended in engine.map(job, shards, worker) if job.pairs is None else ():
                if ended.result is not None:
                    worker.summaries[ended.shard] = ended.result
                failed += [f"shard {ended.shard}: {ended.error}"] if ended.error else []
                if worker.step is not None and (ended.known or not engine.here):
                    worker.step(sizes[ended.shard])
        except OverBudgetError:  # another process came to the limit before this one opened its judge
            stopped = spending.limit_reached
        finally:  # the answers before a stop are in the tables, and count
            result = _summed(job, record, worker, stopped)
        record.status = "finished" if result.complete and not failed else "interrupted"
    if failed:
        raise IncompleteError(
            f"{job.folder}: got {len(failed)} of {len(shards)} shards that failed twice "
            f"({'; '.join(failed[:3])}); expected all; fix: correct the cause, then run the same command again"
        )
    return result


def _summed(job: GradeShards, record: Run, worker: Worker, stopped: str | None) -> GradeResult:
    """Add the shards of this call to those of earlier calls and of other ranks, and record the sum."""
    new, others = worker.summaries, [shard for shard in range(job.number) if shard not in worker.summaries]
    known = [summary for shard in others if (summary := job.summary(shard)) is not None]
    before = [replace(summary, asked=0, reused=0, stopped=None) for summary in known]
    total = sum([*new.values(), *before], GradeSummary(stopped=stopped))
    total = replace(total, **worker.spending.end())
    artifacts = {"judgements": str(job.folder / JUDGEMENTS_NAME), "ledger": str(job.ledger)}
    if total.graded:
        artifacts["pairs"] = str(job.folder / PAIRS_NAME)
    record.results |= {"summary": asdict(total), "judge": worker.judge.name, "artifacts": sorted(artifacts)}
    record.saved = f"{total.pairs} of {job.total} pairs are answered and kept"
    return GradeResult(total, {**artifacts, "record": str(job.folder / RUN_FILE)}, len(others) - len(known))


NO_PAIRS = "--pairs: got none; expected at least one, with query and document; fix: name a file, or check the export"


def read_pairs(config: GradeConfig) -> Sequence[Pair] | None:
    """Return the pairs to grade, or None for shards, which read their own: checked before a judge costs money."""
    config.engine.chosen_engine()  # refuses processes of a launcher that would all do the same work
    pairs = None if config.engine.in_shards or config.pairs is None else load_pairs(config.pairs)
    if config.pairs is None or not (parquet_pairs(config.pairs)[1] if pairs is None else pairs):
        raise InputError(NO_PAIRS)
    return pairs


def charge(judge: Any, ledger: Path, prices: Prices) -> Spending:
    """Return the spending of a ledger, and begin to book the judge's requests there, if it is a server."""
    client = getattr(judge, "client", None)
    spending: Spending | None = getattr(client, "spending", None)
    if spending is None or (spending.ledger, spending.prices) != (ledger.absolute(), prices):
        spending = Spending(ledger, prices)
        if client is not None:
            client.charge_to(spending)
    return spending


def open_grading(
    config: GradeConfig, judge: AnyJudge, out: str | Path, pairs: Sequence[Pair] | None
) -> tuple[GradeShards, Run]:
    """Return the job of a run of grading, and its record, new or resumed; write nothing."""
    folder, source, in_shards = Path(out).absolute(), config.pairs, config.engine.in_shards
    pairs = None if in_shards else pairs or read_pairs(config)
    inputs, total = dict[str, str](), len(pairs or ())
    if source is not None and (in_shards or source.is_dir()):
        inputs["pairs"], rows = parquet_pairs(source)
        total = total or rows
    elif source is not None:
        inputs["pairs"] = file_hash(source)
    if not total:
        raise InputError(NO_PAIRS)
    for doubt in judge.doubts:
        log.warning("%s", doubt)
    identity, shards = stored_identity(judge.identity), config.engine.shards
    settings = {"judge": identity, **config.recorded(), **({"shards": shards or "auto"} if in_shards else {})}
    record = open_run(folder, "grade", settings, inputs)
    ledger = config.ledger or ledger_of(folder, record.results)
    record.results["ledger"] = str(ledger.resolve())
    job = GradeShards(
        folder=folder,
        config=config.model_copy(update={"pairs": source and source.absolute()}),
        identity=identity,
        ledger=ledger.absolute(),
        content=inputs.get("pairs", ""),
        total=total,
        number=min(shards or -(-total // ROWS), total) if in_shards else 1,
        pairs=pairs,
    )
    return job, record


def spending_of(out: Path, ledger: Path | None, prices: Prices) -> Spending:
    """Return the spending of the ledger that a run in `out` uses, before its judge is opened."""
    with suppress(InputError):  # of no record, or a damaged one, which the run reports
        ledger = ledger or ledger_of(out, read_record(out / RUN_FILE)["results"])
    return Spending(ledger or out / LEDGER_NAME, prices)


def ledger_of(folder: Path, results: Mapping[str, Any]) -> Path:
    """Return the ledger that a run recorded, or the one in its folder if the folder has moved since."""
    inside = folder / LEDGER_NAME
    recorded = Path(results.get("ledger") or inside)
    return inside if inside.exists() and not recorded.exists() else recorded


def estimate(config: GradeConfig, judge: AnyJudge, out: str | Path, pairs: Sequence[Pair] | None = None) -> Estimate:
    """Count the questions left; ask and write nothing. Arguments and errors are as in `grade_into`.

    Tokens and time follow from the answers in the ledger: grade a hundred pairs first (`max_pairs`).
    """
    job, _ = open_grading(config, judge, out, pairs)
    asked_about = job.read(0)
    each = (question for pair in asked_about for question in config.questions(pair))
    questions = dict(keyed(each, judge.identity))
    answers: dict[str, Answer] = {}
    if job.ledger.exists():  # opening would make a ledger
        with Ledger(job.ledger) as ledger:
            ledger.load(questions)
            known = ((key, ledger.find(key)) for key in questions)
            # a run would ask the failed ones again
            answers = {key: answer for key, answer in known if answer is not None and answer.status != "failed"}
    left = [question for key, question in questions.items() if key not in answers]
    prompt, counted_by = _prompt_tokens(left, questions, answers, judge)
    written = [answer.usage.completion for answer in answers.values() if answer.usage.prompt]
    completion = round(len(left) * (math.fsum(written) / len(written) if written else 1.0))
    seconds = [answer.seconds for answer in answers.values() if answer.seconds]
    return Estimate(
        pairs=len(asked_about),
        questions=len(questions),
        answered=len(answers),
        prompt_tokens=prompt,
        completion_tokens=completion,
        counted_by=counted_by,
        usd=config.prices.usd(Usage(prompt=prompt, completion=completion)),
        seconds=math.fsum(seconds) / len(seconds) / judge.at_once * len(left) if seconds else None,
        at_once=judge.at_once,
        times_as_many_rows=job.total / len(asked_about),
    )


def _prompt_tokens(
    left: Sequence[Question], questions: Mapping[str, Question], answers: Mapping[str, Answer], judge: AnyJudge
) -> tuple[int, str]:
    length = sum(question.characters for question in left)
    sample = left[:: max(1, len(left) // COUNTED)][:COUNTED]
    counts = judge.count_tokens(sample) if sample else None
    if counts is not None:
        shown = sum(question.characters for question in sample)
        return round(sum(counts) * length / shown), "tokenizer"
    read = [(answer.usage.prompt, questions[key].characters) for key, answer in answers.items()]
    tokens, characters = sum(t for t, _ in read if t), sum(c for t, c in read if t)
    if tokens and characters:
        return round(length * tokens / characters), "answers"
    return round(length / CHARACTERS_A_TOKEN), "characters"
