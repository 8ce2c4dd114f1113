"""Run experiments: arms with seeds, one folder and one result per run. A second call does only the missing runs."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from bixse.encoders.loading.precision import use_precision
from bixse.engine import Engine, Job, without_launcher
from bixse.errors import (
    BixseError,
    DivergedError,
    InputError,
    InterruptedRunError,
    InvalidFileError,
    OutputExistsError,
    StorageError,
)
from bixse.files.files import LOCK_FILE, alone_in, read_text, storage_errors, write_atomically
from bixse.files.run_folder import RUN_FILE
from bixse.training.config import ADAPTER_FOLDER, CHECKPOINT_FOLDER, MODEL_FOLDER, TUNED_FOLDER, TrainConfig
from bixse.training.train import train_into

if TYPE_CHECKING:
    from bixse.data.run import Run, Status
    from bixse.progress import ProgressBars
    from bixse.training.recipe import TrainResult


ArmLabels: TypeAlias = Mapping[str, Any]
"""Label -> value. The labels tell the arms of an experiment apart."""
Measure: TypeAlias = "Callable[[ArmRun, Any, Path], Measured]"
"""A module-level function that does a run: (run, inputs of all runs, folder of the run) -> figures."""
RunStatus: TypeAlias = Literal["finished", "diverged", "failed", "interrupted"]
"""`diverged` is final, because the run would diverge again. The next call continues the other unfinished runs."""
PATHS = ("model", *TrainConfig.path_settings())
"""Training settings that hold the path of an input."""
NAME_LENGTH = 80


@dataclass(frozen=True)
class Arm:
    """One way to train or to measure. It runs once per seed.

    Example:
        >>> arm = Arm({"loss": "bixse", "optimizer.learning_rate": 1e-4}, train={"loss": "bixse"})
        >>> arm.label, arm.folder, arm.trained
        ('loss=bixse, learning_rate=0.0001', 'loss=bixse,learning_rate=0.0001', True)
    """

    labels: ArmLabels
    train: Mapping[str, Any] | None = None
    """Settings of `TrainConfig` on top of the shared ones. None: nothing is trained and seeds have no effect."""
    pairs: Mapping[str, Any] = field(default_factory=dict)
    """Transform of the training pairs -> its argument."""
    measure: Measure | None = None
    """The function that does the runs. None: the experiment's function."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return self.train is not None

    @property
    def label(self) -> str:
        """The labels in words. A dotted label loses its section if it stays unique."""
        short = [key.rpartition(".")[2] for key in self.labels]
        names = [name if short.count(name) == 1 else key for key, name in zip(self.labels, short, strict=True)]
        return ", ".join(f"{name}={show(value)}" for name, value in zip(names, self.labels.values(), strict=True))

    @property
    def folder(self) -> str:
        """The name of the arm's folder: its label, plus a hash if the label is too long or has unsafe characters."""
        plain = self.label.replace(", ", ",")
        name = re.sub(r"[^\w.+=,-]", "_", plain, flags=re.ASCII)
        if name == plain and len(name) <= NAME_LENGTH:
            return name
        return f"{name[: NAME_LENGTH - 9]}-{hashlib.sha256(plain.encode('utf-8', 'replace')).hexdigest()[:8]}"


@dataclass(frozen=True)
class ArmRun:
    """An arm with one training seed."""

    arm: Arm
    seed: int
    measure: Measure
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path of the run's folder, relative to the folder of all runs."""
        return f"{self.arm.folder}/seed-{self.seed}"

    @property
    def fingerprint(self) -> str:
        """A SHA-256 that identifies the run within its experiment. Paths of inputs do not count."""
        settings = {key: value for key, value in (self.arm.train or {}).items() if key not in PATHS}
        # `default=str`, because labels may hold paths
        known = [self.arm.labels, settings, self.arm.pairs, self.measure.__name__, self.arm.options, self.seed]
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Measured:
    """The figures of a run."""

    metrics: Mapping[str, float]
    """Metric -> mean over queries. With several collections, the mean of their means."""
    per_query: Mapping[str, float] = field(default_factory=dict)
    """`collection/query` -> the primary metric."""
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures without a claim (other collections, the model before merging): name -> figures as in `per_query`."""
    rows: int | None = None
    precision: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class RunResult(Measured):
    """The content of a run's `result.json`."""

    labels: ArmLabels = field(default_factory=dict)
    seed: int = 0
    status: RunStatus = "finished"
    reason: str = ""
    seconds: float = 0.0
    """Wall time of training and measuring. It includes earlier calls of an interrupted run."""
    fingerprint: str = ""
    version: str = ""

    @property
    def label(self) -> str:
        return f"{Arm(self.labels).label}, seed {self.seed}"

    @property
    def is_final(self) -> bool:
        """True if another call would give the same result."""
        return self.status in ("finished", "diverged")


def show(value: Any) -> str:
    """Return a setting's value as text for tables, labels and names."""
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return json.dumps(value, default=str)


RUNS_FOLDER = "runs"
"""The folder of the runs: `runs/ARM/seed-N`, each with `result.json` and the training in `train`."""
RESULT_FILE = "result.json"
TRAIN_FOLDER = "train"
INPUTS_FOLDER = "inputs"
PAIRS_FILE = "pairs.parquet"
"""The transformed training pairs of a run. They are deleted when the run has ended."""
FIX = "tried twice; fix: fewer jobs, or smaller batches"
"""The reason of a run that ended without an error of its own, for example because its process died."""
PARTS = (MODEL_FOLDER, ADAPTER_FOLDER, TUNED_FOLDER, CHECKPOINT_FOLDER)


@dataclass(frozen=True)
class Results:
    """The results of an experiment."""

    of: dict[str, RunResult]
    """Name of a run -> its result, in the order of the runs."""
    made: int
    warnings: list[str]
    waiting: int = 0
    """Number of runs that are pending on other ranks. Their results are marked as interrupted."""

    @property
    def status(self) -> Status:
        if self.waiting:
            return "running"
        return "finished" if all(result.status == "finished" for result in self.of.values()) else "failed"


@dataclass(frozen=True)
class Experiment:
    """An experiment with its folder open, for this process alone or for all ranks."""

    record: Run
    engine: Engine
    end: ExitStack
    """Callbacks to run when the folder is closed."""

    @property
    def folder(self) -> Path:
        return self.record.folder / RUNS_FOLDER

    def in_turn(self) -> AbstractContextManager[None]:
        """Return a block that one rank at a time enters."""
        return alone_in(self.record.folder, wait=True) if self.engine.shared else nullcontext()


@contextmanager
def opened(record: Run, engine: Engine | None = None) -> Iterator[Experiment]:
    """Open an experiment's folder, for this process alone or for all ranks. The default engine runs serially here."""
    out, engine = record.folder, engine or Engine()
    # a launcher's variables would make each run one rank of a distributed training
    with ExitStack() as end, without_launcher() if engine.shared else alone_in(out):
        new = not engine.shared and not (out / RUN_FILE).exists()
        if engine.shared and not (out / RUN_FILE).exists():
            record.save("running")  # written before any work: the next rank checks the settings against it
        try:
            yield Experiment(record, engine, end)
        except InputError:  # without a folder, the corrected command can use the same --out
            if new and not list(out.glob(f"{RUNS_FOLDER}/*/*/{RESULT_FILE}")):
                for folder in (RUNS_FOLDER, INPUTS_FOLDER):
                    shutil.rmtree(out / folder, ignore_errors=True)
                for file in (RUN_FILE, LOCK_FILE):
                    (out / file).unlink(missing_ok=True)
                with suppress(OSError):
                    out.rmdir()
            raise


def do_runs(
    experiment: Experiment,
    runs: Sequence[ArmRun],
    inputs: Any,
    keep_models: bool = False,
    progress: ProgressBars | None = None,
    wanted: Callable[[ArmRun, dict[str, RunResult]], bool] = lambda run, results: True,
    after_each: Callable[[dict[str, RunResult]], object] = lambda results: None,
) -> Results:
    """Do every run without a final result, and continue interrupted ones. `wanted` decides, given the results so far.

    Delete a run's folder to repeat the run. A full disk, Ctrl-C and errors that concern all runs end all runs. With
    several ranks, each does its share and then locks the folder until the experiment is closed. `inputs` are sent to
    `measure`, also in other processes.
    """
    record, engine, folder = experiment.record, experiment.engine, experiment.folder
    if not engine.shared:
        record.save("running")
    results = _final_results(runs, folder)
    for name, result in results.items():
        clear(folder / name, result, keep_models)
    missing = len(results) < len(runs)
    advance = progress(record.command, len(runs)) if progress is not None and missing else None
    if advance is not None and results:
        advance(0, known=len(results))
    made = 0
    try:
        job = RunJob(inputs, folder, keep_models)
        for ended in engine.map(job, runs, wanted=lambda run: wanted(run, results)):
            if ended.known:
                continue
            run = ended.shard
            result = ended.result or _result(run, status="failed", reason=f"{ended.error}, {FIX}")
            if ended.error:  # its process ended before it wrote a result
                _write(folder / run.name, result)
            # other ranks write results meanwhile
            results.update({run.name: result, **(_final_results(runs, folder) if engine.shared else {})})
            made += 1
            after_each(results)
            if advance is not None:
                advance(1)
    except (KeyboardInterrupt, InterruptedRunError) as error:
        record.save("interrupted")
        raise InterruptedRunError(
            f"{record.folder}: got Ctrl-C after {len(results)} of {len(runs)} runs; finished runs are saved; "
            "to continue: give the same command again"
        ) from error
    waiting = _wait_for_other_ranks(experiment, runs, results, wanted) if engine.shared else 0
    ordered = {run.name: results[run.name] for run in runs if run.name in results}
    versions = sorted({result.version for result in ordered.values()})
    mixed = f"runs were made by several versions of bixse ({', '.join(versions)}): use a new --out to be sure"
    return Results(ordered, made, [mixed] if len(versions) > 1 else [], waiting)


def _wait_for_other_ranks(
    experiment: Experiment,
    runs: Sequence[ArmRun],
    results: dict[str, RunResult],
    wanted: Callable[[ArmRun, dict[str, RunResult]], bool],
) -> int:
    """Add the results of other ranks, and an interrupted one per run that they still do; return the number of these."""
    # held until the tables are written: two ranks that end together would both find runs pending
    experiment.end.enter_context(experiment.in_turn())
    there = {run.name: load_result(run, experiment.folder) for run in runs if run.name not in results}
    results.update({name: each for name, each in there.items() if each is not None and each.status != "interrupted"})
    waiting = [run for run in runs if run.name not in results and wanted(run, results)]
    why = "another rank has not done it yet"
    results.update({run.name: _result(run, status="interrupted", reason=why) for run in waiting})
    return len(waiting)


@dataclass(frozen=True)
class RunJob(Job["ArmRun", RunResult]):
    """Runs as shards. A shard is complete if its result is final."""

    inputs: Any
    folder: Path
    keep_models: bool

    def run(self, shard: ArmRun, worker_state: Any) -> RunResult:
        return execute(shard, self.inputs, self.folder, self.keep_models)

    def output(self, shard: ArmRun) -> Path:
        return self.folder / shard.name / RESULT_FILE

    def is_complete(self, shard: ArmRun) -> bool:
        result = load_result(shard, self.folder)
        return result is not None and result.is_final


def execute(run: ArmRun, inputs: Any, folder: Path, keep_models: bool = False) -> RunResult:
    """Do one run and write its result to its folder. An exception of a library fails this run alone."""
    run_folder = folder / run.name
    with storage_errors(run_folder):
        run_folder.mkdir(parents=True, exist_ok=True)
    earlier = load_result(run, folder)
    started = time.perf_counter() - (earlier.seconds if earlier is not None and earlier.status == "interrupted" else 0)

    def write(**fields: Any) -> RunResult:
        return _write(run_folder, _result(run, seconds=time.perf_counter() - started, **fields))

    try:
        with use_precision(run.settings.get("precision")):
            result = write(**vars(run.measure(run, inputs, run_folder)))
    except (KeyboardInterrupt, InterruptedRunError):
        write(status="interrupted")
        raise
    except (StorageError, OutputExistsError, InvalidFileError):  # these errors would hit every other run too
        raise
    except Exception as error:
        result = write(status="diverged" if isinstance(error, DivergedError) else "failed", reason=_reason(error))
    finally:
        gc.collect()  # the next run measures the free memory before it begins
        torch.cuda.empty_cache()
    clear(run_folder, result, keep_models)
    return result


def load_result(run: ArmRun, folder: Path) -> RunResult | None:
    """Return the result in a run's folder. None if it is missing, unreadable, or belongs to another run."""
    try:
        result = RunResult(**json.loads(read_text(folder / run.name / RESULT_FILE)))
    except (BixseError, OSError, ValueError, TypeError):
        return None
    return result if result.fingerprint == run.fingerprint else None


def train_run(config: TrainConfig, run_folder: Path, title: str | None = None) -> TrainResult:
    """Train in a run's folder or continue there, as `train_into` does. A title shows a progress bar."""
    folder = run_folder / TRAIN_FOLDER
    if folder.is_dir() and not (folder / RUN_FILE).exists():  # stopped before its record, and refused
        shutil.rmtree(folder)
    return train_into(config, folder, title is not None, title or "train")


def clear(run_folder: Path, result: RunResult, keep_models: bool) -> None:
    """Delete the pairs and large folders of a run with a final result. Its log and record stay."""
    if not result.is_final:
        return
    (run_folder / PAIRS_FILE).unlink(missing_ok=True)
    for part in () if keep_models and result.status == "finished" else PARTS:
        with storage_errors(run_folder):
            if (run_folder / TRAIN_FOLDER / part).is_dir():
                shutil.rmtree(run_folder / TRAIN_FOLDER / part)


def _final_results(runs: Sequence[ArmRun], folder: Path) -> dict[str, RunResult]:
    known = {run.name: load_result(run, folder) for run in runs}
    return {name: result for name, result in known.items() if result is not None and result.is_final}


def _write(run_folder: Path, result: RunResult) -> RunResult:
    write_atomically(run_folder / RESULT_FILE, json.dumps(asdict(result), indent=1, default=str) + "\n")
    return result


def _result(run: ArmRun, **fields: Any) -> RunResult:
    known = {"labels": run.arm.labels, "seed": run.seed, "fingerprint": run.fingerprint}
    return RunResult(**{"metrics": {}, **known, "version": metadata.version("bixse"), **fields})


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, imported late
        return "got no more memory; expected the batch to fit; fix: smaller batches or shorter texts"
    message = " ".join(str(error).split())
    return (message if isinstance(error, BixseError) else f"{type(error).__name__}: {message}")[:500]
