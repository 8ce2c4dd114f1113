"""`sweep`: train the arms of a search over settings, resumable run by run, and rank them on dev."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection_files import files_of_split
from bixse.data.io.files import hash_files
from bixse.data.run_record import open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.experiments.arms import ArmRun, Measured
from bixse.experiments.runner import RUNS_FOLDER, TRAIN_FOLDER, clear, do_runs, opened, train_run
from bixse.experiments.sweep.sweep_arms import plan_arms
from bixse.experiments.sweep.sweep_table import BEST_FILE, TABLE_FILE, rank_arms, write_best, write_table
from bixse.progress import progress_bar
from bixse.settings import paths_in
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import dev_figures, watched_splits
from bixse.training.recipe import MODEL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.experiments.arms import Arm, RunResult
    from bixse.experiments.sweep.sweep_config import SweepConfig
    from bixse.experiments.sweep.sweep_table import SweepRow


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left."""

    rows: list[SweepRow]
    """A row per arm, best first."""
    table_path: Path
    """The table as CSV."""
    best: SweepRow | None
    """The best arm; None when none finished."""
    best_path: Path | None
    """Its settings, for `bixse train --config`."""
    model_path: Path | None
    """Its model, of the seed that did best; None where none was kept."""
    warnings: list[str]
    """What the user should know."""
    reused: bool
    """Every run had ended before; nothing was trained."""

    @property
    def failed(self) -> list[SweepRow]:
        """The arms that did not finish."""
        return [row for row in self.rows if row.status != "finished"]


def sweep(config: SweepConfig, out: Path, progress: bool = True) -> SweepResult:
    """Train every arm with every seed in a folder of its own below `out/runs` and rank the arms by nDCG@10 on dev.

    After each run `out/sweep.csv` and `out/best.yaml` hold what is known. Called again with the same configuration,
    finished runs are kept, an interrupted one continues from its checkpoint, and a failed one is tried again. A run
    that diverged is not: it would only do so again; delete its folder to have it trained anew.

    Args:
        config: what varies, and around what.
        out: output folder.
        progress: show a bar for each run, or one over all where several are at work.

    Raises:
        InputError: an arm's settings, the pairs or the dev collection cannot be used; nothing was trained.
        OutputExistsError: `out` holds another sweep, its inputs changed since, or another process is at work in it.
        StorageError: the disk is full.
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.

    Example:
        ::

            base = {"pairs": "pairs.jsonl", "dev": "my-collection", "model": "demo"}
            vary = {"optimizer.learning_rate": [5e-5, 1e-4], "loss": ["bixse", "infonce"]}
            result = sweep(SweepConfig(base=base, vary=vary), Path("runs/sweep"))
            print(result.best.label, result.best.best)
    """
    arms = plan_arms(config)
    first = TrainConfig.load(None, arms[0].train)
    seeds = config.seeds or (first.seed,)
    runs = [ArmRun(arm, seed, train_on_dev, {**(arm.train or {}), "seed": seed}) for arm in arms for seed in seeds]
    record = open_run(out, "sweep", *_identity(config, first, seeds))
    titles = {run.name: f"run {n} of {len(runs)}: {run.arm.label}, seed {run.seed}" for n, run in enumerate(runs, 1)}

    def tables(results: Mapping[str, RunResult]) -> list[SweepRow]:
        rows = rank_arms(arms, seeds, results)
        write_table(out / TABLE_FILE, rows)
        if rows[0].status == "finished":
            write_best(out / BEST_FILE, rows[0], arms[rows[0].arm - 1], len(arms))
        _drop_models(config, out, runs, results, rows)
        return rows

    with opened(record):
        done = do_runs(
            record,
            runs,
            titles if progress and config.jobs == 1 else {},
            config.jobs,
            keep_models=config.keep != "none",
            progress=progress_bar if progress and config.jobs != 1 else None,
            wanted=lambda run, results: all(
                results[other.name].status == "finished"
                for other in runs
                if other.arm is run.arm and other.name in results
            ),
            after_each=tables,
        )
        rows = tables(done.of)
        record.save(done.status)
    best = rows[0] if rows[0].status == "finished" else None
    model = out / RUNS_FOLDER / best.best_run / TRAIN_FOLDER / MODEL_FOLDER if best is not None else None
    return SweepResult(
        rows=rows,
        table_path=out / TABLE_FILE,
        best=best,
        best_path=out / BEST_FILE if best is not None else None,
        model_path=model if model is not None and model.is_dir() else None,
        warnings=[*done.warnings, *_warnings(config, arms, seeds, best)],
        reused=done.made == 0,
    )


def train_on_dev(run: ArmRun, titles: Mapping[str, str], own: Path) -> Measured:
    """Train a run; its figures are nDCG@10 on dev before and after.

    After: of the model that was kept, merged with the base model or the best checkpoint.
    """
    config = TrainConfig.load(None, run.settings)
    result = train_run(config, own, titles.get(run.name))
    figures = dev_figures(result.history)
    before, after = figures.get(0), figures.get(result.best_step) if result.best_step is not None else None
    if result.merge is not None and result.merge.points:
        before, after = result.merge.dev(0.0), result.merge.dev(result.merge.weight)
    found = {"before": before, "after": after, "best_step": result.best_step}
    metrics = {name: value for name, value in found.items() if value is not None}
    return Measured(metrics, precision=config.precision, warnings=result.warnings)


def _identity(
    config: SweepConfig, first: TrainConfig, seeds: Sequence[int]
) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """What makes two sweeps the same, for `open_run`: shared settings with their defaults, what varies, and inputs.

    The number of random arms does not count: it may be raised.
    """
    settings = first.model_dump(mode="json")
    for key in (*config.vary, "seed"):
        *parents, last = key.split(".")
        section: Any = settings
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    own = config.model_dump(mode="json", include={"search", "vary", "seed", "keep"})
    settings |= {"sweep": {**own, "seeds": list(seeds)}, "trials": config.trials}
    return settings, _input_hashes(config, first), (
        "trials", *TrainConfig.path_settings(), *model_path_settings(first.model)
    )  # fmt: skip


def _input_hashes(config: SweepConfig, first: TrainConfig) -> dict[str, str]:
    """Content hashes of what the runs read; where a path varies, of each of its values."""
    files: dict[str, Path] = {}
    hashes: dict[str, str] = {}
    for key in ("pairs", "model", "instructions"):
        values = config.vary.get(key, [getattr(first, key)])
        for number, value in enumerate(values, start=1):
            name = key if key not in config.vary else f"{key}/{number}"
            if key == "model":
                hashes |= {f"{name}/{file}": content for file, content in model_hashes(value).items()}
            elif key == "instructions" and value is not None:
                hashes[name] = load_instructions(Path(value)).content_hash()
            else:
                files |= {f"{name}/{path.name}": path for path in paths_in(value)}
    for split in watched_splits(first):
        folder = split.folder.resolve().name
        for file in files_of_split(split.split):
            files[f"{split.role}/{folder}/{file}"] = split.folder / file
    return hashes | hash_files(files)


def _drop_models(
    config: SweepConfig, out: Path, runs: Sequence[ArmRun], results: Mapping[str, RunResult], rows: Sequence[SweepRow]
) -> None:
    """With `keep: best`, delete the models of finished runs but the best one.

    Of an arm whose seeds are not all trained, the best model so far stays: the arm may still become the best.
    """
    if config.keep != "best":
        return
    kept = {row.best_run for row in rows if row.status == "waiting" or row is rows[0]}
    for run in runs:
        if run.name in results and run.name not in kept:
            clear(out / RUNS_FOLDER / run.name, results[run.name], keep_models=False)


def _warnings(config: SweepConfig, arms: Sequence[Arm], seeds: Sequence[int], best: SweepRow | None) -> list[str]:
    """What the user should know before believing the table."""
    warnings = [] if best is None else [f"best arm: {warning}" for warning in best.warnings]
    if config.trials is not None and len(arms) < config.trials:
        warnings.append(f"{config.trials} arms were drawn, {len(arms)} of them different: the others are left out")
    if len(seeds) == 1 and len(arms) > 1:
        warnings.append("one seed per arm: nobody knows how much of a difference is chance; list several under `seeds`")
    return warnings
