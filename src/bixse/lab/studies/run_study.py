"""Run every arm of a study with every seed, resumable run by run, and write the findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import RUN_FILE, open_run
from bixse.encoders.loading.precision import resolve_precision
from bixse.lab.experiments import ArmRun, do_runs, opened
from bixse.lab.lab_config import OWNED, PYDOCS, merged, train_config
from bixse.lab.studies.measures import run_config
from bixse.lab.studies.outcome import CLAIM_HEADERS, StudyOutcome, outcome_of, write_cards, write_outcome
from bixse.lab.studies.paper import find_study
from bixse.lab.studies.study import chosen_values, key_of
from bixse.lab.studies.study_inputs import input_hashes, prepare_inputs
from bixse.report.table import format_table
from bixse.scale.engine import PlaceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bixse.data.run import Run
    from bixse.lab.lab_config import StudyConfig
    from bixse.lab.studies.study import Study
    from bixse.lab.studies.study_inputs import StudyInputs
    from bixse.progress import Step


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    outcome: StudyOutcome
    artifacts: dict[str, str]
    made: int
    """Number of runs that this call did."""
    warnings: list[str] = field(default_factory=list)
    waiting: int = 0
    """Number of runs that are pending on other ranks. The tables lack them."""

    def text(self) -> str:
        """Return the tables of arms and claims, and the verdict."""
        outcome = self.outcome
        lines = [f"{outcome.study.title}: {self.made} runs made, {len(outcome.results) - self.made} were there", ""]
        lines += [format_table(outcome.summary_rows(), outcome.summary_headers()), ""]
        if outcome.claims:
            lines += [format_table(outcome.claim_rows(), CLAIM_HEADERS), ""]
        if outcome.apart:
            lines += [format_table(outcome.apart_rows(), outcome.apart_headers()), ""]
        return "\n".join([*lines, f"The paper: {outcome.study.paper}.", outcome.verdict()])


def run_study(
    config: StudyConfig,
    out: Path,
    command: str = "",
    progress: Callable[[str, int], Step] | None = None,
) -> StudyResult:
    """Train and measure every arm of a study with every seed, and write tables, findings, plot and page to `out`.

    A second call with the same configuration keeps finished runs, continues an interrupted run from its checkpoint, and
    repeats failed runs. The page shows `command`.

    Raises:
        InputError: the study, its values, pairs or collections cannot be used; nothing was trained.
        OutputExistsError: `out` holds another study.
        InterruptedRunError: stopped by Ctrl-C; the same call continues.
        StorageError: the disk is full.

    Example:
        ::

            config = StudyConfig.load(None, {"study": "losses", "preset": "smoke"})
            print(run_study(config, Path("runs/losses")).outcome.verdict())
    """
    study = find_study(config.study)
    values = chosen_values(study, config)
    record = _open(study, config, values, out)
    with opened(record, config.engine_of(config.jobs)) as experiment:
        with experiment.in_turn():
            inputs = prepare_inputs(config, out)
        runs = plan_runs(study, config, values, inputs)
        done = do_runs(experiment, runs, inputs, config.keep_models, progress)
        results = list(done.of.values())
        finished = list(zip(runs, results, strict=True))
        models = write_cards(study, finished, experiment.folder, command) if config.keep_models else []
        seedless = {key_of(run.arm.labels) for run in runs if not run.arm.trained}
        outcome = outcome_of(study, config, values, results, command, models, seedless)
        artifacts = write_outcome(outcome, out)
        record.results = {"runs": len(runs), "failed": len(outcome.failed)}
        record.save(done.status)
    warnings = list(done.warnings)
    missing = sum(run.arm.trained and found.status == "finished" for run, found in finished) - len(models)
    if config.keep_models and missing > 0:
        warnings.append(f"{missing} runs were finished before models were asked for: theirs are gone")
    return StudyResult(outcome, {**artifacts, "record": str(out / RUN_FILE)}, done.made, warnings, done.waiting)


def plan_runs(study: Study, config: StudyConfig, values: dict[str, Any], inputs: StudyInputs) -> list[ArmRun]:
    """Return every arm with every seed, with validated settings. Arms without training run once."""
    pairs = load_graded_pairs(inputs.pairs)
    runs: dict[str, ArmRun] = {}
    for arm in study.arms(config, values, pairs):
        seeds: Sequence[int] = config.seeds if arm.trained else config.seeds[:1]
        for seed in seeds:
            run = ArmRun(arm, seed, arm.measure or study.measure, merged(config.shared, arm.train or {}))
            runs.setdefault(run.name, run)
            if arm.trained:
                run_config(run, inputs, inputs.pairs)
    study.contrasts(values)
    return list(runs.values())


def _open(study: Study, config: StudyConfig, values: dict[str, Any], out: Path) -> Run:
    """Open the record of a study. Content of input files counts, their paths do not."""
    data = config.data
    apart = {"data", "size", "study", "preset", "jobs", "keep_models", "precision", *PlaceSettings.model_fields}
    settings = config.model_dump(mode="json", exclude=apart) | data.model_dump(mode="json")
    defaults = train_config({**config.shared, "pairs": "pairs.parquet"}).model_dump(mode="json", exclude=set(OWNED))
    settings |= {"values": values, "train": defaults}
    settings["train"]["precision"] = resolve_precision(config.shared.get("precision"))
    paths = ("pairs", "dev", "test", *(() if data.collection == PYDOCS else ("collection",)))
    return open_run(out, f"study {study.name}", settings, input_hashes(config), paths)
