"""The one runner of experiments: each run has a folder and leaves one result; a second call does what is missing."""

from __future__ import annotations

import gc
import json
import shutil
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from bixse.data.run import RUN_FILE
from bixse.encoders.loading.precision import use_precision
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
from bixse.lab.experiments.arms import RunResult
from bixse.scale.engines.job import Job
from bixse.scale.engines.processes import LocalEngine
from bixse.scale.engines.ranks import without_launcher
from bixse.training import recipe
from bixse.training.config import ADAPTER_FOLDER, CHECKPOINT_FOLDER, MODEL_FOLDER, TUNED_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from bixse.data.run import Run, Status
    from bixse.lab.experiments.arms import ArmRun
    from bixse.progress import Step
    from bixse.scale.engines.job import Engine
    from bixse.training.config import TrainConfig

RUNS_FOLDER = "runs"
"""Where an experiment keeps its runs: `runs/ARM/seed-N`, each with `result.json` and what it trained in `train`."""
RESULT_FILE = "result.json"
TRAIN_FOLDER = "train"
INPUTS_FOLDER = "inputs"
"""Where an experiment lays out what its runs read."""
PAIRS_FILE = "pairs.parquet"
"""The transformed training pairs of a run, until it has ended."""
ELSEWHERE = "another rank has not done it yet"
"""What is said of a run of another rank."""
FIX = "tried twice; fix: fewer jobs, or smaller batches"
"""What is said of a run that ended without a word of its own, such as by the death of its process."""
PARTS = (MODEL_FOLDER, ADAPTER_FOLDER, TUNED_FOLDER, CHECKPOINT_FOLDER)
"""Large parts of a training."""


@dataclass(frozen=True)
class Results:
    """The results of an experiment."""

    of: dict[str, RunResult]
    """Name of a run -> its result, in the order of the runs."""
    made: int
    """Runs that this call did; the others were there."""
    warnings: list[str]
    waiting: int = 0
    """Runs that other ranks have not done yet; they stand among the results as interrupted."""

    @property
    def status(self) -> Status:
        """For the record: finished when every run is."""
        if self.waiting:
            return "running"
        return "finished" if all(found.status == "finished" for found in self.of.values()) else "failed"


@dataclass(frozen=True)
class Experiment:
    """An experiment whose folder is open for this process, or for all ranks."""

    record: Run
    engine: Engine
    """What does the runs."""
    end: ExitStack
    """Closed with the folder."""

    @property
    def folder(self) -> Path:
        """That of all runs."""
        return self.record.folder / RUNS_FOLDER

    def in_turn(self) -> AbstractContextManager[None]:
        """Of several ranks, one at a time inside the block."""
        return alone_in(self.record.folder, wait=True) if self.engine.shared else nullcontext()


@contextmanager
def opened(record: Run, engine: Engine | None = None) -> Iterator[Experiment]:
    """The folder of an experiment, for this process alone; one refused before its first result leaves no folder.

    Without an engine the runs are done here, one after the other. Ranks are in the folder together, and do each of
    their runs as if they were alone.
    """
    out, engine = record.folder, engine or LocalEngine(1)
    with ExitStack() as end, without_launcher() if engine.shared else alone_in(out):
        new = not engine.shared and not (out / RUN_FILE).exists()
        if engine.shared and not (out / RUN_FILE).exists():
            record.save("running")  # the next rank sees whose folder it is
        try:
            yield Experiment(record, engine, end)
        except InputError:
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
    progress: Callable[[str, int], Step] | None = None,
    wanted: Callable[[ArmRun, dict[str, RunResult]], bool] = lambda run, results: True,
    after_each: Callable[[dict[str, RunResult]], object] = lambda results: None,
) -> Results:
    """Do every run that has no result; those that are finished are kept, and so are diverged ones.

    An interrupted run continues from its checkpoint, a failed one is tried again, and to have any other done anew its
    folder is deleted. What all runs share and cannot be used ends all, and so do a full disk and Ctrl-C. Of several
    ranks each does its share, and is alone in the folder from then on until it is closed.

    Args:
        experiment: as `opened` gives it; its record is saved as running, and as interrupted by Ctrl-C.
        runs: what to do, in this order.
        inputs: what their `measure` reads; it is sent to other processes.
        keep_models: leave what is trained in the folders of the runs.
        progress: makes a progress callback from a title and a total.
        wanted: whether a run is still wanted, given the results so far.
        after_each: called with all results after each run.
    """
    record, engine, folder = experiment.record, experiment.engine, experiment.folder
    if not engine.shared:
        record.save("running")
    results = _standing(runs, folder)
    for name, found in results.items():
        clear(folder / name, found, keep_models)
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
            found = ended.result or _result(run, status="failed", reason=f"{ended.error}, {FIX}")
            if ended.error:
                _write(folder / run.name, found)
            results.update({run.name: found, **(_standing(runs, folder) if engine.shared else {})})
            made += 1
            after_each(results)
            if advance is not None:
                advance(1)
    except (KeyboardInterrupt, InterruptedRunError) as error:
        record.save("interrupted")
        raise InterruptedRunError(
            f"{record.folder}: got Ctrl-C after {len(results)} of {len(runs)} runs; finished runs are kept; "
            "to go on: give the same command again"
        ) from error
    waiting = []
    if engine.shared:
        experiment.end.enter_context(experiment.in_turn())
        there = {run.name: load_result(run, folder) for run in runs if run.name not in results}
        results.update({name: own for name, own in there.items() if own is not None and own.status != "interrupted"})
        waiting = [run for run in runs if run.name not in results and wanted(run, results)]
        results.update({run.name: _result(run, status="interrupted", reason=ELSEWHERE) for run in waiting})
    ordered = {run.name: results[run.name] for run in runs if run.name in results}
    versions = sorted({found.version for found in ordered.values()})
    mixed = f"runs were made by several versions of bixse ({', '.join(versions)}): use a new --out to be sure"
    return Results(ordered, made, [mixed] if len(versions) > 1 else [], len(waiting))


@dataclass(frozen=True)
class RunJob(Job["ArmRun", RunResult]):
    """Runs as shards; which are complete, their results say."""

    inputs: Any
    folder: Path
    keep_models: bool

    def run(self, shard: ArmRun, kept: Any) -> RunResult:
        return execute(shard, self.inputs, self.folder, self.keep_models)

    def output(self, shard: ArmRun) -> Path:
        return self.folder / shard.name / RESULT_FILE

    def is_complete(self, shard: ArmRun) -> bool:
        found = load_result(shard, self.folder)
        return found is not None and found.stands

    def mark(self, shard: ArmRun) -> None:
        """The result is the mark."""


def execute(run: ArmRun, inputs: Any, folder: Path, keep_models: bool = False) -> RunResult:
    """Do one run and write its result to its folder; whatever a library raises fails this run alone."""
    own = folder / run.name
    with storage_errors(own):
        own.mkdir(parents=True, exist_ok=True)
    earlier = load_result(run, folder)
    started = time.perf_counter() - (earlier.seconds if earlier is not None and earlier.status == "interrupted" else 0)

    def write(**found: Any) -> RunResult:
        return _write(own, _result(run, seconds=time.perf_counter() - started, **found))

    try:
        with use_precision(run.settings.get("precision")):
            result = write(**vars(run.measure(run, inputs, own)))
    except (KeyboardInterrupt, InterruptedRunError):
        write(status="interrupted")
        raise
    except (StorageError, OutputExistsError, InvalidFileError):  # of all runs alike
        raise
    except Exception as error:
        result = write(status="diverged" if isinstance(error, DivergedError) else "failed", reason=_reason(error))
    finally:
        _free_memory()
    clear(own, result, keep_models)
    return result


def load_result(run: ArmRun, folder: Path) -> RunResult | None:
    """The result in a run's folder; None where there is none, or that of another run."""
    try:
        found = RunResult(**json.loads(read_text(folder / run.name / RESULT_FILE)))
    except (BixseError, OSError, ValueError, TypeError):
        return None
    return found if found.fingerprint == run.fingerprint else None


def train_run(config: TrainConfig, own: Path, title: str | None = None) -> recipe.TrainResult:
    """Train in a run's folder, or continue there; a title shows a bar; raises as `bixse.training.recipe.train`."""
    folder = own / TRAIN_FOLDER
    if folder.is_dir() and not (folder / RUN_FILE).exists():  # stopped before its record was written
        shutil.rmtree(folder)
    return recipe.train(config, folder, title is not None, title or "train")


def clear(own: Path, result: RunResult, keep_models: bool) -> None:
    """Delete what a run that has ended does not need any more; its log and record stay."""
    if not result.stands:
        return
    (own / PAIRS_FILE).unlink(missing_ok=True)
    for part in () if keep_models and result.status == "finished" else PARTS:
        with storage_errors(own):
            if (own / TRAIN_FOLDER / part).is_dir():
                shutil.rmtree(own / TRAIN_FOLDER / part)


def _standing(runs: Sequence[ArmRun], folder: Path) -> dict[str, RunResult]:
    """Name of a run -> its result, of those that need not be done again."""
    known = {run.name: load_result(run, folder) for run in runs}
    return {name: found for name, found in known.items() if found is not None and found.stands}


def _write(own: Path, result: RunResult) -> RunResult:
    write_atomically(own / RESULT_FILE, json.dumps(asdict(result), indent=1, default=str) + "\n")
    return result


def _result(run: ArmRun, **found: Any) -> RunResult:
    known = {"labels": run.arm.labels, "seed": run.seed, "fingerprint": run.fingerprint}
    return RunResult(**{"metrics": {}, **known, "version": metadata.version("bixse"), **found})


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "got no more memory; expected the batch to fit; fix: smaller batches or shorter texts"
    said = " ".join(str(error).split())
    return (said if isinstance(error, BixseError) else f"{type(error).__name__}: {said}")[:500]


def _free_memory() -> None:
    """Give back what a run held: the next one measures what is free before it begins."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
