"""The one runner of experiments: each run has a folder and leaves one result; a second call does what is missing."""

from __future__ import annotations

import gc
import json
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import LOCK_FILE, read_text, storage_errors, write_atomically
from bixse.data.run_record import RUN_FILE
from bixse.encoders.loading.precision import use_precision
from bixse.engines.job import Job
from bixse.engines.processes import LocalEngine
from bixse.errors import (
    BixseError,
    DivergedError,
    InputError,
    InterruptedRunError,
    InvalidFileError,
    OutputExistsError,
    StorageError,
)
from bixse.experiments.arms import RunResult
from bixse.training import recipe
from bixse.training.distributed import first_process_alone_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bixse.data.run_record import RunRecord, Status
    from bixse.experiments.arms import ArmRun
    from bixse.progress import Step
    from bixse.training.config import TrainConfig

RUNS_FOLDER = "runs"
"""Where an experiment keeps its runs: `runs/ARM/seed-N`, each with `result.json` and what it trained in `train`."""
RESULT_FILE = "result.json"
TRAIN_FOLDER = "train"
INPUTS_FOLDER = "inputs"
"""Where an experiment lays out what its runs read."""
PAIRS_FILE = "pairs.parquet"
"""The transformed training pairs of a run, until it has ended."""
FIX = "tried twice; fix: fewer jobs, or smaller batches"
"""What is said of a run that ended without a word of its own, such as by the death of its process."""
PARTS = (recipe.MODEL_FOLDER, recipe.ADAPTER_FOLDER, recipe.TUNED_FOLDER, recipe.CHECKPOINT_FOLDER)
"""Large parts of a training."""


@dataclass(frozen=True)
class Results:
    """The results of an experiment."""

    of: dict[str, RunResult]
    """Name of a run -> its result, in the order of the runs."""
    made: int
    """Runs that this call did; the others were there."""
    warnings: list[str]

    @property
    def status(self) -> Status:
        """For the record: finished when every run is."""
        return "finished" if all(found.status == "finished" for found in self.of.values()) else "failed"


@contextmanager
def opened(record: RunRecord) -> Iterator[Path]:
    """The folder of all runs, for this process alone; one refused before its first result leaves no folder."""
    out = record.folder
    with first_process_alone_in(out):
        new = not (out / RUN_FILE).exists()
        try:
            yield out / RUNS_FOLDER
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
    record: RunRecord,
    runs: Sequence[ArmRun],
    inputs: Any,
    jobs: int | None = 1,
    keep_models: bool = False,
    progress: Callable[[str, int], Step] | None = None,
    wanted: Callable[[ArmRun, dict[str, RunResult]], bool] = lambda run, results: True,
    after_each: Callable[[dict[str, RunResult]], object] = lambda results: None,
) -> Results:
    """Do every run that has no result, within `opened`; those that are finished are kept, and so are diverged ones.

    An interrupted run continues from its checkpoint, a failed one is tried again, and to have any other done anew its
    folder is deleted. What all runs share and cannot be used ends all, and so do a full disk and Ctrl-C.

    Args:
        record: of the experiment; it is saved as running, and as interrupted by Ctrl-C.
        runs: what to do, in this order.
        inputs: what their `measure` reads; with several processes it is sent to them.
        jobs: runs at once, see `LocalEngine`.
        keep_models: leave what is trained in the folders of the runs.
        progress: makes a progress callback from a title and a total.
        wanted: whether a run is still wanted, given the results so far.
        after_each: called with all results after each run.
    """
    folder = record.folder / RUNS_FOLDER
    record.save("running")
    known = {run.name: load_result(run, folder) for run in runs}
    results = {name: found for name, found in known.items() if found is not None and found.stands}
    missing = [run for run in runs if run.name not in results]
    for name, found in results.items():
        clear(folder / name, found, keep_models)
    advance = progress(record.command, len(runs)) if progress is not None and missing else None
    if advance is not None and results:
        advance(0, known=len(results))
    still = (run for run in missing if wanted(run, results))
    made = 0
    try:
        for ended in LocalEngine(jobs).map(RunJob(inputs, folder, keep_models), still):
            run = ended.shard
            results[run.name] = ended.result or _result(run, status="failed", reason=f"{ended.error}, {FIX}")
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
    ordered = {run.name: results[run.name] for run in runs if run.name in results}
    versions = sorted({found.version for found in ordered.values()})
    mixed = f"runs were made by several versions of bixse ({', '.join(versions)}): use a new --out to be sure"
    return Results(ordered, made, [mixed] if len(versions) > 1 else [])


@dataclass(frozen=True)
class RunJob(Job["ArmRun", RunResult]):
    """Runs as shards; which are complete, their results say."""

    inputs: Any
    folder: Path
    keep_models: bool

    def run(self, shard: ArmRun, kept: Any) -> RunResult:
        return execute(shard, self.inputs, self.folder, self.keep_models)


def execute(run: ArmRun, inputs: Any, folder: Path, keep_models: bool = False) -> RunResult:
    """Do one run and write its result to its folder; whatever a library raises fails this run alone."""
    own = folder / run.name
    with storage_errors(own):
        own.mkdir(parents=True, exist_ok=True)
    earlier = load_result(run, folder)
    started = time.perf_counter() - (earlier.seconds if earlier is not None and earlier.status == "interrupted" else 0)

    def write(**found: Any) -> RunResult:
        result = _result(run, seconds=time.perf_counter() - started, **found)
        write_atomically(own / RESULT_FILE, json.dumps(asdict(result), indent=1, default=str) + "\n")
        return result

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
