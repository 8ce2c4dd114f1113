"""`Workspace`: the run folder that all pages share. `Page`: a page. `BackgroundJob`: work of a page in a thread."""

from __future__ import annotations

import logging
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from bixse.audit.agreement import agreement_in_words, agreement_within, cohen_kappa, counts_by_query
from bixse.audit.audit import first_relevant
from bixse.data.corpus import stream_documents
from bixse.data.run import read_record
from bixse.errors import BixseError, InputError
from bixse.evaluation.intervals import few_of_classes
from bixse.files.run_folder import RUN_FILE
from bixse.judging.grade import JUDGEMENTS_NAME
from bixse.judging.open_judge import DEFAULT_RUBRIC, GradeConfig
from bixse.judging.rubrics import Rubric, load_rubric, shipped_rubrics
from bixse.ui.label_log import LabelLog, open_labels
from bixse.ui.label_plan import Assignment, LabelPlan, RunIndex, open_index

if TYPE_CHECKING:
    from bixse.results import IntervalEstimate
    from bixse.ui.safety import Session
    from bixse.ui.ui_settings import UiSettings

T = TypeVar("T")
log = logging.getLogger(__name__)


def runs_below(root: Path) -> Iterator[Path]:
    """The folders with a run.json: the root, and folders up to two levels below it."""
    for pattern in (RUN_FILE, f"*/{RUN_FILE}", f"*/*/{RUN_FILE}"):
        yield from (path.parent for path in sorted(root.glob(pattern)))


@dataclass(frozen=True)
class AgreementSoFar:
    """The agreement of judge and people on all pairs of the folder, estimated from the labels."""

    labels: int  # number of pairs with a label and a grade of the judge
    kappa: IntervalEstimate  # kappa with quadratic weights
    within_one: IntervalEstimate

    @property
    def verdict(self) -> str:
        """Return what kappa says, as the end of a sentence about the judge."""
        return agreement_in_words(self.kappa, "weighted kappa")

    def width(self, labels: int) -> float | None:
        """Estimate the width of kappa's interval with this number of labels; None if unknown."""
        low, high = self.kappa.low, self.kappa.high
        if low is None or high is None or math.isclose(low, high, abs_tol=1e-9):  # the judge gives all pairs one grade
            return None
        return (high - low) * math.sqrt(self.labels / labels)  # it falls with the root of the number of labels

    def left(self, width: float) -> int | None:
        """Estimate the number of labels missing until the interval of kappa has this width; None if unknown."""
        now = self.width(self.labels)
        return None if now is None else max(0, math.ceil(self.labels * ((now / width) ** 2 - 1)))


class Workspace:
    """An open run folder, which is read once when the server starts."""

    def __init__(self, settings: UiSettings, index: RunIndex, labels: LabelLog) -> None:
        self.settings, self.run, self.index, self.labels = settings, settings.run, index, labels
        self.plan = LabelPlan(index, self.rubric, settings)
        self.assignment = Assignment(self.plan, index, labels)
        self.lock = threading.Lock()
        self.trial: Any = None
        """The last tried version of the rubric, and its job; hold `lock` to begin a trial."""
        self._agreement: tuple[Any, AgreementSoFar | None] = (None, None)
        self._made: dict[Any, Any] = {}

    def once(self, make: Callable[[Workspace], T]) -> T:
        """Return what `make` makes of this workspace, made once: the state that a page keeps between requests."""
        with self.lock:
            if make not in self._made:
                self._made[make] = make(self)
            value: T = self._made[make]
            return value

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of run.json, read once; empty if there is none."""
        path = self.run / RUN_FILE
        return read_record(path) if path.is_file() else {}

    @cached_property
    def rubric(self) -> Rubric:
        """The rubric that people label by; raises InputError if the folder was graded with an unknown rubric."""
        if self.settings.rubric is not None:
            return self.settings.rubric
        recorded = self.record.get("config", {}).get("rubric")
        if not isinstance(recorded, dict):
            return load_rubric(DEFAULT_RUBRIC)
        rubric = shipped_rubrics().get(str(recorded.get("name")))
        if rubric is None or rubric.content_hash != recorded.get("hash"):
            raise InputError(
                f"--rubric: got none for {self.run}, graded with the rubric {recorded.get('name')}; expected its file; "
                "fix: add --rubric FILE.toml"
            )
        return rubric

    @cached_property
    def titles(self) -> dict[str, str]:
        """Document id -> title, of documents to label; empty without --collection: pairs join title and text."""
        folder, wanted = self.settings.collection, set(self.index.pairs.document_ids) if len(self.index) else set()
        if folder is None or not wanted:
            return {}
        documents = stream_documents(folder / "corpus.jsonl")
        return {name: document.title for name, document in documents if document.title and name in wanted}

    @cached_property
    def judge(self) -> GradeConfig | None:
        """The settings of the judge that edited rubrics are tried on, if one is named."""
        if self.settings.judge is None:
            return None
        file = self.settings.judge_file
        return GradeConfig.load(file, {} if file else {"judge.name": self.settings.judge})

    def audit_command(self, *others: Path) -> str:
        """The command that measures the folder's judge, and the judges of other files, against people's labels."""
        ends = (f"{self.rubric.scale.minimum:g}", f"{self.rubric.scale.maximum:g}")
        judges = (self.run / JUDGEMENTS_NAME, *others)
        words = ("bixse", "grade", "audit", "--judge", *judges, "--human", self.settings.labels_path, "--scale", *ends)
        return shlex.join(map(str, words))

    @property
    def agreement(self) -> AgreementSoFar | None:
        """The agreement of judge and people, computed again after new labels; None for fewer than two queries."""
        words = self.labels.words
        if words is not self._agreement[0]:
            self._agreement = (words, self._agreement_so_far())
        return self._agreement[1]

    def _agreement_so_far(self) -> AgreementSoFar | None:
        """Weight each label by one over its pair's inclusion probability; leave out pairs that a person chose."""
        words, pairs = self.labels.independent, self.graded_by_both(independent=True)
        ids = zip(pairs["query_id"], pairs["document_id"], strict=True)
        drawn = [any(word.probability is not None for word in words[pair].values()) for pair in ids]
        pairs = pairs.loc[np.array(drawn, dtype=bool)]
        if pairs["query_id"].nunique() < 2:
            return None
        weights = 1 / self.plan.probabilities[pairs["row"]]
        human, judge = pairs["human"].to_numpy(), pairs["judge"].to_numpy()
        levels = np.array(self.rubric.values, dtype=np.float64)
        counts = counts_by_query(human, judge, list(pairs["query_id"]), levels, weights)
        same, next_to = agreement_within(0), agreement_within(1)
        measures = {"kappa": cohen_kappa(2), "within_one": lambda tables: same(tables) + next_to(tables)}
        few = few_of_classes(human >= first_relevant(levels, None), list(pairs["query_id"]))
        return AgreementSoFar(len(pairs), **counts.estimates(measures, few))

    def graded_by_both(self, independent: bool = False) -> pd.DataFrame:
        """The pairs that judge and people graded: row, ids, and the grades `human` and `judge`."""
        index, scale = self.index, self.rubric.scale
        rows = [
            (row, *pair, grade, judged)
            for pair, grade in self.labels.grades(independent).items()
            if (row := index.row_of.get(pair)) is not None and (judged := index.grade(row, scale)) is not None
        ]
        return pd.DataFrame(rows, columns=["row", "query_id", "document_id", "human", "judge"])


@contextmanager
def open_workspace(settings: UiSettings) -> Iterator[Workspace]:
    """Open a run folder and lock its labels; raise InputError if no page can show it, OutputExistsError if locked."""
    if not settings.run.is_dir():
        raise InputError(f"{settings.run}: got no such folder; expected a run folder; fix: check the path")
    others = settings.systems or any(runs_below(settings.run))
    index = open_index(settings.run, settings.pairs, may_be_empty=bool(others))
    with open_labels(settings.labels_path) as labels:
        workspace = Workspace(settings, index, labels)
        if strange := {event.grade for event in labels.events if event.grade is not None} - {*workspace.rubric.values}:
            raise InputError(f"{settings.labels_path}: got the grade {max(strange):g}; expected one of the rubric "
                             f"{workspace.rubric.name}; fix: add their --rubric, or another --labels")  # fmt: skip
        _ = workspace.judge  # wrong settings are refused now, not at the first trial
        yield workspace


@dataclass(frozen=True)
class Visit:
    """The content of one request."""

    session: Session
    query: Mapping[str, str]  # fields of the address, after `?`
    form: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # address of the server, such as http://127.0.0.1:8765

    @property
    def person(self) -> str:
        return self.session.person

    def real(self, name: str) -> float | None:
        """A finite number of the form or the address, or None."""
        try:
            number = float(self.form.get(name, self.query.get(name, "")))
        except ValueError:
            return None
        return number if math.isfinite(number) else None


Show: TypeAlias = "Callable[[Workspace, Visit], dict[str, Any]]"
"""Return the values of a template; read files, but change nothing."""
Draw: TypeAlias = "Callable[[Workspace, Visit], str | None]"
"""Return the SVG of a plot, if there is one."""
Act: TypeAlias = "Callable[[Workspace, Visit], str]"
"""Change something, and return the address to redirect to."""


@dataclass(frozen=True)
class Page:
    """One page, as a module of `bixse.ui.pages` lists it in `PAGES`."""

    name: str
    """Address and template: `/NAME` and `NAME.html.j2`."""
    title: str
    show: Show
    fits: Callable[[Workspace], bool]
    """Return True if the run folder has the data of the page."""
    actions: Mapping[str, Act] = field(default_factory=dict)
    """`/NAME/ACTION`, by POST."""
    parts: Mapping[str, Show] = field(default_factory=dict)
    """`/NAME/PART`, by GET, from `NAME-PART.html.j2`: a part that loads later, such as progress."""
    pictures: Mapping[str, Draw] = field(default_factory=dict)
    """`/NAME/PICTURE.svg`, by GET."""
    needs_person: bool = False
    """True if the page asks for a name first."""


class RefusedFormError(InputError):
    """A form that cannot be saved; the server shows its page again with the fields as they were sent."""


class NotReadyError(Exception):
    """A page needs a result of a job that is running; the server shows its progress, and loads the page again."""

    def __init__(self, job: BackgroundJob) -> None:
        super().__init__(job.status)


class BackgroundJob:
    """Work in a thread that the constructor starts; pages read its progress, and after its end `result` or `error`."""

    def __init__(self, name: str, work: Callable[[BackgroundJob], Any]) -> None:
        self.name, self.doing, self.note, self.error = name, "starting", "", ""
        self.done = self.total = 0
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)  # Ctrl-C does not wait for it
        self._thread.start()

    def _run(self, work: Callable[[BackgroundJob], Any]) -> None:
        try:
            self.result = work(self)
        except BixseError as error:
            self.error = str(error)
        except Exception as error:  # a thread has no caller that could report it
            log.exception("%s", self.name)
            self.error = f"{type(error).__name__}: {error}; the terminal shows more"

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> str:
        return f"{self.doing}: {self.done:,} of {self.total:,}" if self.total else self.doing

    def check(self) -> None:
        """Raise NotReadyError while the job is running, and InputError if it failed."""
        if self.is_running:
            raise NotReadyError(self)
        if self.error:
            raise InputError(self.error)

    def wait(self) -> BackgroundJob:
        self._thread.join()
        return self

    def begin(self, doing: str, total: int = 0) -> Callable[..., None]:
        """Begin a part of the work, and return the function that counts its steps."""
        self.doing, self.note, self.done, self.total = doing, "", 0, total

        def step(done: int, note: str = "", known: int = 0) -> None:
            self.done, self.note = self.done + done + known, note or self.note

        return step
