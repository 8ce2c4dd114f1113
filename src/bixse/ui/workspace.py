"""What the pages share: a run folder's settings, its pairs, people's labels and the rubric they label by."""

from __future__ import annotations

import shlex
import threading
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME
from bixse.judging.open_judge import DEFAULT_RUBRIC
from bixse.judging.rubrics import load_rubric, rubric_names
from bixse.training.config import LOG_FILE
from bixse.ui.agreement_so_far import agreement_so_far
from bixse.ui.drawing import Desk, LabelPlan
from bixse.ui.label_log import open_labels
from bixse.ui.run_index import RunIndex, open_index
from bixse.ui.runs.run_list import read_record, runs_below
from bixse.ui.runs.train_batch import TrainBatches
from bixse.ui.runs.train_run import TrainRun
from bixse.ui.systems.two_systems import TwoSystems

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.judging.rubrics import Rubric
    from bixse.ui.agreement_so_far import AgreementSoFar
    from bixse.ui.label_log import LabelLog
    from bixse.ui.ui_settings import UiSettings


class Workspace:
    """An open run folder; what a page needs is read when the server starts, once."""

    def __init__(self, settings: UiSettings, index: RunIndex, labels: LabelLog) -> None:
        self.settings, self.index, self.labels = settings, index, labels
        self.lock = threading.Lock()
        self.jobs: dict[str, Any] = {}
        """Page -> the work in a thread that it began last; the lock is held to begin one."""
        self._agreement: tuple[Any, AgreementSoFar | None] = (None, None)

    @property
    def run(self) -> Path:
        return self.settings.run

    @cached_property
    def record(self) -> dict[str, Any]:
        """What run.json says; read once."""
        return read_record(self.run)

    @cached_property
    def rubric(self) -> Rubric:
        """What people label by.

        Raises:
            InputError: the folder was graded with a rubric that does not come with the package.
        """
        if self.settings.rubric is not None:
            return self.settings.rubric
        asked = (self.record.get("config") or {}).get("rubric")
        if not isinstance(asked, dict):
            return load_rubric(DEFAULT_RUBRIC)
        rubric = load_rubric(asked["name"]) if asked.get("name") in rubric_names() else None
        if rubric is None or rubric.content_hash != asked.get("hash"):
            raise InputError(
                f"--rubric: got none, and {self.run} was graded with one of your own ({asked.get('name')}); expected "
                "the rubric that people are to label by; fix: --rubric FILE.toml"
            )
        return rubric

    def audit_command(self, *others: Path) -> str:
        """What measures the folder's judge, and the judges of other files, against people's labels."""
        ends = (f"{self.rubric.scale.minimum:g}", f"{self.rubric.scale.maximum:g}")
        judges = (self.run / JUDGEMENTS_NAME, *others)
        words = ("bixse", "grade", "audit", "--judge", *judges, "--human", self.settings.labels_path, "--scale", *ends)
        return shlex.join(map(str, words))

    @cached_property
    def systems(self) -> TwoSystems | None:
        """The two that are compared; loaded when they are first asked for."""
        return TwoSystems(self.settings) if self.settings.systems else None

    @cached_property
    def training(self) -> TrainRun:
        """The log of the folder."""
        return TrainRun(self.run)

    @cached_property
    def batches(self) -> TrainBatches:
        """Those of a training run."""
        return TrainBatches(self.training)

    @cached_property
    def plan(self) -> LabelPlan:
        """Which pairs are labelled."""
        return LabelPlan(self.index, self.rubric, self.settings)

    @cached_property
    def desk(self) -> Desk:
        """Who labels what next."""
        return Desk(self.plan, self.index, self.labels)

    @property
    def agreement(self) -> AgreementSoFar | None:
        """Of judge and people; computed anew where labels came."""
        words, found = self._agreement
        if words is not self.labels.words:
            words, independent = self.labels.words, self.labels.independent
            labels = {
                pair: grade
                for pair, grade in self.labels.grades(independent=True).items()
                if any(word.probability is not None for word in independent[pair].values())  # drawn, chosen by nobody
            }
            found = agreement_so_far(labels, self.index, self.plan.probabilities, self.rubric, self.settings.seed)
            self._agreement = (words, found)
        return found


@contextmanager
def open_workspace(settings: UiSettings) -> Iterator[Workspace]:
    """A run folder with its labels, which no other process writes meanwhile.

    Raises:
        InputError: there are no pairs, or a file is damaged.
        OutputExistsError: another server has the labels.
    """
    if not settings.run.is_dir():
        raise InputError(f"{settings.run}: got no such folder; expected a run folder; fix: check the path")
    nothing = settings.pairs is None and not any(
        (settings.run / name).is_file() for name in (PAIRS_NAME, JUDGEMENTS_NAME)
    )
    others = settings.systems or (settings.run / LOG_FILE).is_file() or any(runs_below(settings.run))
    index = RunIndex(GradedPairs.from_rows([])) if nothing and others else open_index(settings.run, settings.pairs)
    with open_labels(settings.labels_path) as labels:
        workspace = Workspace(settings, index, labels)
        _ = workspace.desk  # what is refused is refused at the start, not at the first page
        workspace.training.look()
        yield workspace
