"""Run every arm of a study with every seed, resumable run by run, and write the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.loading.precision import resolve_precision
from bixse.engine import PlaceSettings
from bixse.files.run_folder import RUN_FILE
from bixse.lab.experiments import TRAIN_FOLDER, ArmRun, do_runs, opened
from bixse.lab.lab_config import OWNED, PYDOCS, StudyConfig, merged
from bixse.lab.studies.measures import run_config
from bixse.lab.studies.outcome import StudyOutcome, outcome_of, write_outcome
from bixse.lab.studies.paper import find_study
from bixse.lab.studies.study import Study, chosen_values, key_of
from bixse.lab.studies.study_inputs import STATIC, StudyInputs, input_hashes, prepare_inputs
from bixse.training.config import MODEL_FOLDER, TrainConfig

if TYPE_CHECKING:
    from bixse.progress import ProgressBars


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    outcome: StudyOutcome
    artifacts: dict[str, str]
    made: int
    warnings: list[str] = field(default_factory=list)
    waiting: int = 0
    """Number of runs that are pending on other ranks. The tables lack them."""


def run_study(config: StudyConfig, out: Path, command: str = "", progress: ProgressBars | None = None) -> StudyResult:
    """Train and measure every arm of a study with every seed, and write tables, findings and plot to `out`.

    A second call with the same configuration keeps finished runs, continues an interrupted run from its checkpoint, and
    repeats failed runs. The findings show `command`.

    Raises:
        InputError: the study, its values, pairs or collections cannot be used; nothing was trained.
        OutputExistsError: `out` holds another study.
        InterruptedRunError: stopped by Ctrl-C; the same call continues.
        StorageError: the disk is full.
    """
    study = find_study(config.study)
    values = chosen_values(study, config)
    # content of input files counts, their paths do not
    apart = {"data", "study", "preset", "jobs", "keep_models", "precision", *PlaceSettings.model_fields}
    settings = config.model_dump(mode="json", exclude=apart) | config.data.model_dump(mode="json")
    train = TrainConfig.load(None, {**config.shared, "pairs": "pairs.parquet"})
    settings |= {"values": values, "train": train.model_dump(mode="json", exclude=set(OWNED))}
    # resolved: `auto` on another machine would mix two dtypes in one table
    settings["train"]["precision"] = resolve_precision(config.shared.get("precision"))
    paths = ("pairs", "dev", "test", "extra_test", *(() if config.data.collection == PYDOCS else ("collection",)))
    record = open_run(out, f"study {study.name}", settings, input_hashes(config), paths)
    with opened(record, config.engine_of(config.jobs)) as experiment:
        with experiment.in_turn():
            inputs = prepare_inputs(config, out)
        runs = plan_runs(study, config, values, inputs)
        done = do_runs(experiment, runs, inputs, config.keep_models, progress)
        results = list(done.of.values())
        seedless = {key_of(run.arm.labels) for run in runs if not run.arm.trained}
        outcome = outcome_of(study, config, values, results, command, seedless)
        artifacts = write_outcome(outcome, out)
        record.results = {"runs": len(runs), "failed": len(outcome.failed)}
        record.save(done.status)
    warnings = list(done.warnings)
    trained = [run for run, each in zip(runs, results, strict=True) if run.arm.trained and each.status == "finished"]
    missing = sum(not (experiment.folder / run.name / TRAIN_FOLDER / MODEL_FOLDER).is_dir() for run in trained)
    if config.keep_models and missing:
        warnings.append(f"{missing} runs finished before --keep-models was given: their models are gone")
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


def plan_study(config: StudyConfig) -> tuple[str, int, list[str]]:
    """Check every arm's settings without reading data; return a text, the number of runs and the missing files.

    Raises ConfigError or InputError.
    """
    study, data = find_study(config.study), config.data
    arms = study.arms(config, chosen_values(study, config), None)
    trained = [arm for arm in arms if arm.trained]
    for arm in trained:
        TrainConfig.load(None, {**merged(config.shared, arm.train or {}), "pairs": "pairs.parquet"})
    files = [*data.pairs, *data.dev, *data.test, *data.extra_test]
    files += [] if data.pairs or data.collection == PYDOCS else [Path(data.collection) / "qrels"]
    missing = [str(path) for path in dict.fromkeys(files) if not path.exists()]
    if config.model not in ("demo", STATIC) and not Path(config.model).exists():
        missing.append(f"{config.model} (fetched from the hub at the first run)")
    others, seeds = len(arms) - len(trained), len(config.seeds)
    runs = len(trained) * seeds + others
    lines = [f"trained: {arm.label}" for arm in trained]
    lines.append(f"{len(trained)} trained arms x {seeds} seeds, {others} other arms: {runs} runs")
    lines += [f"not there: {name}" for name in missing] or ["all files are there"]
    return "\n".join(lines), runs, missing
