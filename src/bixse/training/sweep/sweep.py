"""`sweep`: train every cell of a search over settings, resumable, and rank the cells on dev."""

from __future__ import annotations

import gc
import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import storage_errors
from bixse.data.run_record import RUN_FILE, open_run
from bixse.encoders.identity import model_path_settings
from bixse.errors import InputError, InterruptedRunError, InvalidFileError, OutputExistsError, TrainingError
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.recipe import ADAPTER_FOLDER, CHECKPOINT_FOLDER, MODEL_FOLDER, TUNED_FOLDER, train
from bixse.training.sweep.sweep_plan import input_hashes, plan_cells, run_folder
from bixse.training.sweep.sweep_table import (
    BEST_FILE,
    TABLE_FILE,
    Outcome,
    SweepRow,
    rank_cells,
    write_best,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.data.run_record import RunRecord
    from bixse.training.recipe import TrainResult
    from bixse.training.sweep.sweep_config import SweepConfig
    from bixse.training.sweep.sweep_plan import Cell

CELLS_FOLDER = "cells"
"""Where a sweep keeps the training runs of its cells."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left."""

    rows: list[SweepRow]
    """A row a cell, best first."""
    table_path: Path
    """The table as CSV."""
    best: SweepRow | None
    """The best cell; None when none finished."""
    best_path: Path | None
    """Its settings, for `bixse train --config`."""
    model_path: Path | None
    """Its model, of the seed that did best; None where none was kept."""
    warnings: list[str]
    """What the user should know."""
    reused: bool
    """Every cell had ended before; nothing was trained."""

    @property
    def failed(self) -> list[SweepRow]:
        """The cells that did not finish."""
        return [row for row in self.rows if row.status != "finished"]


def sweep(config: SweepConfig, out: Path, progress: bool = True) -> SweepResult:
    """Train every cell in a folder of its own below `out/cells` and rank them by nDCG@10 on dev.

    After each run `out/sweep.csv` and `out/best.yaml` hold what is known. Called again with the same configuration,
    finished cells are reused, an interrupted one continues from its checkpoint, and one that could not be trained
    because its settings did not fit the machine is tried again. One whose training failed is not: it would fail
    again; delete its folder to have it trained anew.

    Args:
        config: what varies, and around what.
        out: output folder.
        progress: show a bar for each run, with the number of its cell.

    Raises:
        InputError: a cell's configuration, the pairs or the dev collection cannot be used; nothing was trained.
        OutputExistsError: `out` holds another sweep, its inputs changed since, or another process trains in it.
        StorageError: the disk is full.
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.

    Example:
        ::

            base = {"pairs": "pairs.jsonl", "dev": "my-collection", "model": "demo"}
            vary = {"optimizer.learning_rate": [5e-5, 1e-4], "loss": ["bixse", "infonce"]}
            result = sweep(SweepConfig(base=base, vary=vary), Path("runs/sweep"))
            print(result.best.label, result.best.best)
    """
    cells = plan_cells(config)
    inputs = input_hashes(cells)
    record = open_run(out, "sweep", *_identity(config, cells[0]))
    outcomes = _known_outcomes(record, cells, inputs)
    before, new = dict(outcomes), not (out / RUN_FILE).exists()
    record.save("running")
    try:
        for cell in cells:
            for run in cell.configs:
                name = run_folder(cell, run)
                if name not in outcomes:
                    title = f"cell {cell.number} of {len(cells)}: {cell.label}"
                    title += f", seed {run.seed}" if len(cell.configs) > 1 else ""
                    outcomes[name] = _train(run, out / CELLS_FOLDER / name, progress, title, inputs[name])
                    record.results = {"runs": {**record.results.get("runs", {}), name: asdict(outcomes[name])}}
                    record.save()
                    _free_memory()
                    _write(config, out, cells, outcomes)
                if outcomes[name].status != "finished":
                    break  # the cell is not ranked: its other seeds would be trained for nothing
        rows, best = _write(config, out, cells, outcomes)
    except (KeyboardInterrupt, InterruptedRunError) as error:
        record.save("interrupted")
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InterruptedRunError(f"cell {cell.number} of {len(cells)}: {error}") from error
    except InputError:
        if new and not (out / CELLS_FOLDER).exists():  # a sweep refused for its inputs leaves no folder behind
            (out / RUN_FILE).unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()
        raise
    record.save("finished")
    best_row = rows[0] if best is not None else None
    model = out / CELLS_FOLDER / best / MODEL_FOLDER if best is not None else None
    return SweepResult(
        rows=rows,
        table_path=out / TABLE_FILE,
        best=best_row,
        best_path=out / BEST_FILE if best is not None else None,
        model_path=model if model is not None and model.is_dir() else None,
        warnings=_warnings(config, cells, best_row),
        reused=outcomes == before,
    )


def _identity(config: SweepConfig, first: Cell) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """What makes two sweeps the same, for `open_run`: shared settings with their defaults, and what varies.

    The number of random cells does not count: it may be raised. The inputs are compared run by run.
    """
    run = first.configs[0]
    settings = run.model_dump(mode="json")
    for key in (*config.vary, "seed"):
        *parents, last = key.split(".")
        section: Any = settings
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    own = config.model_dump(mode="json", include={"search", "vary", "seed", "keep"})
    settings |= {"sweep": {**own, "seeds": [run.seed for run in first.configs]}, "cells": config.cells}
    return settings, {}, ("cells", *TrainConfig.path_settings(), *model_path_settings(run.model))


def _known_outcomes(
    record: RunRecord, cells: Sequence[Cell], inputs: Mapping[str, Mapping[str, str]]
) -> dict[str, Outcome]:
    """Outcomes of an earlier call that stand: finished or failed, folder there, inputs the same.

    Raises:
        OutputExistsError: an input changed since.
        InputError: the record is damaged.
    """
    path = record.folder / RUN_FILE
    try:
        known = {name: Outcome(**entry) for name, entry in record.results.get("runs", {}).items()}
    except (TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: got a damaged record ({error}); expected the JSON that bixse wrote; "
            "fix: choose another --out, or delete the folder"
        ) from error
    outcomes = {}
    for name in (run_folder(cell, run) for cell in cells for run in cell.configs):
        outcome = known.get(name)
        folder = record.folder / CELLS_FOLDER / name
        if outcome is None or outcome.status == "refused" or not (folder / RUN_FILE).is_file():
            continue
        changed = [key for key, value in inputs[name].items() if outcome.inputs.get(key) != value]
        if changed:
            raise OutputExistsError(
                f"{folder}: got a run on other inputs (changed: {', '.join(changed)}); expected the same; "
                "fix: choose another --out, or delete the folder of the sweep"
            )
        outcomes[name] = outcome
    return outcomes


def _train(config: TrainConfig, folder: Path, progress: bool, title: str, inputs: dict[str, str]) -> Outcome:
    """Train one run, and say what it left."""
    record = _record(folder)
    try:
        result = train(config, folder, progress, title)
    except (OutputExistsError, InvalidFileError):  # of all cells alike
        raise
    except (InputError, TrainingError) as error:
        if isinstance(error, InputError) and _record(folder) == record:  # training had not begun
            return Outcome("refused", _line(error), inputs=inputs)
        return Outcome("failed", _line(error), seconds=_seconds(folder), inputs=inputs)
    except Exception as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
            raise
        reason = "training: got no more memory; expected the batch to fit; fix: vary smaller batches or texts"
        return Outcome("refused", reason, seconds=_seconds(folder), inputs=inputs)
    before, best = _figures(result)
    return Outcome("finished", "", before, best, result.best_step, _seconds(folder), result.warnings, inputs)


def _figures(result: TrainResult) -> tuple[float | None, float | None]:
    """nDCG@10 on dev before training and of the model that was kept: merged, or the best checkpoint."""
    if result.merge is not None and result.merge.points:
        return result.merge.dev(0.0), result.merge.dev(result.merge.weight)
    figures = dev_figures(result.history)
    return figures.get(0), None if result.best_step is None else figures.get(result.best_step)


def _seconds(folder: Path) -> float:
    """Wall time of a run over all its calls, from its record; 0 where it wrote none."""
    try:
        return float(json.loads(_record(folder))["timings"]["train"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def _record(folder: Path) -> bytes:
    """The record of a run as it is written; empty where there is none."""
    try:
        return (folder / RUN_FILE).read_bytes()
    except OSError:
        return b""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _free_memory() -> None:
    """Give back what a run held: the next one measures what is free before it begins."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _write(
    config: SweepConfig, out: Path, cells: Sequence[Cell], outcomes: Mapping[str, Outcome]
) -> tuple[list[SweepRow], str | None]:
    """Write the table and the best settings, drop models that are not kept; gives rows and the best run's folder."""
    rows = rank_cells(cells, outcomes)
    write_table(out / TABLE_FILE, rows)
    best = None
    if rows[0].status == "finished":
        cell = cells[rows[0].cell - 1]
        run = next(run for run in cell.configs if run.seed == rows[0].best_seed)
        best = run_folder(cell, run)
        write_best(out / BEST_FILE, rows[0], run, len(cells))
    if config.keep != "all":
        _drop_models(config, out, cells, outcomes, best)
    return rows, best


def _drop_models(
    config: SweepConfig, out: Path, cells: Sequence[Cell], outcomes: Mapping[str, Outcome], best: str | None
) -> None:
    """Delete the models of finished runs that are not kept, and the checkpoints of failed ones.

    Of a cell whose seeds are not all trained, the best model so far stays: the cell may still become the best.
    """
    for cell in cells:
        names = [name for name in (run_folder(cell, run) for run in cell.configs) if name in outcomes]
        open_still = len(names) < len(cell.configs) and all(outcomes[name].status == "finished" for name in names)
        ahead = max(names, key=lambda name: outcomes[name].best or 0.0, default=None) if open_still else None
        for name in names:
            kept = config.keep == "best" and name in (best, ahead)
            parts = (
                (MODEL_FOLDER, ADAPTER_FOLDER, TUNED_FOLDER)
                if outcomes[name].status == "finished"
                else (CHECKPOINT_FOLDER,)
            )
            for part in () if kept or outcomes[name].status == "refused" else parts:
                folder = out / CELLS_FOLDER / name / part
                with storage_errors(folder):
                    if folder.is_dir():
                        shutil.rmtree(folder)


def _warnings(config: SweepConfig, cells: Sequence[Cell], best: SweepRow | None) -> list[str]:
    """What the user should know before believing the table."""
    warnings = [] if best is None else [f"best cell: {warning}" for warning in best.warnings]
    if config.cells is not None and len(cells) < config.cells:
        warnings.append(f"{config.cells} cells were drawn, {len(cells)} of them different: the others are left out")
    if len(cells[0].configs) == 1 and len(cells) > 1:
        warnings.append(
            "one seed per cell: nobody knows how much of a difference is chance; list several under `seeds`"
        )
    return warnings
